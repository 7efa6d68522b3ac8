package wire

import (
	"bytes"
	"time"
)

// AppendLogLine appends a line in the format of stored logs: the engine's stamp, o
// or e for the stream, the text, a newline. The format depends on the line alone, so
// that a second read of the engine's log yields the same bytes. A newline inside the
// text would split the line, so it becomes a blank.
func AppendLogLine(b []byte, at time.Time, stderr bool, text string) []byte {
	b = at.UTC().AppendFormat(b, time.RFC3339Nano)
	if stderr {
		b = append(b, " e "...)
	} else {
		b = append(b, " o "...)
	}
	start := len(b)
	b = append(b, text...)
	for i := start; i < len(b); i++ {
		if b[i] == '\n' {
			b[i] = ' '
		}
	}
	return append(b, '\n')
}

// LogLineTime returns the stamp of an encoded line, with or without its newline. ok is
// false for any other text.
func LogLineTime(line []byte) (time.Time, bool) {
	stamp, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok || len(rest) < 2 || rest[0] != 'o' && rest[0] != 'e' || rest[1] != ' ' {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	return at, err == nil
}

// SlugLogDamaged is the code of the error for a log with a missing or short piece in the store. A repetition seldom
// helps.
const SlugLogDamaged = "log_damaged"

// LogLine is one line that a member of a job wrote.
type LogLine struct {
	At      time.Time `json:"at"`
	Stream  string    `json:"stream" enum:"stdout,stderr"`
	Text    string    `json:"text"`
	Attempt int       `json:"attempt"`
	Member  int       `json:"member"`

	// Position is the position after the line, for Last-Event-ID. Only answers with positions have it.
	Position string `json:"position,omitempty" doc:"with positions=true, the position after the line"`
}
