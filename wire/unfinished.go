package wire

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"berth"
)

// Limits of unfinished lines.
const (
	// MaxUnfinishedText is the greatest size of an unfinished line in bytes; the agent cuts longer ones.
	MaxUnfinishedText = 4 << 10
	// MaxFollowedMembers is the number of members of one machine whose unfinished lines are read at a time.
	MaxFollowedMembers = 16
)

// UnfinishedReport carries the unfinished lines of members of a machine that somebody follows. It is shown to users,
// and nothing is decided by it: a lost report costs a moment of a display.
type UnfinishedReport struct {
	AgentBoot string           `json:"agent_boot"`
	Epoch     int64            `json:"epoch"`
	Lines     []UnfinishedLine `json:"lines"`
}

// UnfinishedLine is a picture of the unfinished line of a member, such as a progress bar. An empty text means that the
// member's output has no unfinished line.
type UnfinishedLine struct {
	Alloc  berth.AllocationID `json:"alloc"`
	At     time.Time          `json:"at"` // when the text changed
	Stderr bool               `json:"stderr,omitempty"`
	Text   string             `json:"text"`
}

// Valid returns an error for a report that no agent sends.
func (r UnfinishedReport) Valid() error {
	if len(r.Lines) == 0 || len(r.Lines) > MaxFollowedMembers {
		return berth.Errorf(berth.CodeInvalid, "the report has %d unfinished lines; allowed: 1 to %d", len(r.Lines),
			MaxFollowedMembers)
	}
	seen := map[berth.AllocationID]bool{}
	for _, l := range r.Lines {
		fault := ""
		switch {
		case seen[l.Alloc]:
			fault = "is named twice"
		case len(l.Text) > MaxUnfinishedText:
			fault = fmt.Sprintf("has a line of %d bytes; allowed: %d", len(l.Text), MaxUnfinishedText)
		case !utf8.ValidString(l.Text):
			fault = "has a line that is not valid UTF-8"
		case strings.Contains(l.Text, "\x00"):
			fault = "has a line with a zero byte, which PostgreSQL does not store"
		}
		if fault != "" {
			return berth.Errorf(berth.CodeInvalid, "unfinished lines: member %d %s", l.Alloc, fault)
		}
		seen[l.Alloc] = true
	}
	return nil
}
