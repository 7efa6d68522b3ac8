package unfinished

import (
	"bytes"
	"strings"
	"time"

	"berth/activities/node"
)

// settled is the age from which a line without a carriage return counts as unfinished. Younger ones are most often
// about to be finished.
const settled = time.Second

// line is the unfinished line of one stream of a container. The zero line is empty.
type line struct {
	text     []byte
	returned bool      // the last byte was a carriage return: further text replaces this one
	redrawn  bool      // the line had a carriage return
	since    time.Time // first byte of the line
	at       time.Time // last change of text
}

// write adds output that arrived at now.
func (l *line) write(p []byte, now time.Time) {
	if i := bytes.LastIndexByte(p, '\n'); i >= 0 {
		*l = line{text: l.text[:0], at: now}
		p = p[i+1:]
	}
	for len(p) > 0 {
		if p[0] == '\r' {
			l.returned, l.redrawn = true, true
			p = p[1:]
			continue
		}
		segment := p
		if i := bytes.IndexByte(p, '\r'); i >= 0 {
			segment = p[:i]
		}
		p = p[len(segment):]
		if l.returned {
			l.text, l.returned = l.text[:0], false
		}
		if l.since.IsZero() {
			l.since = now
		}
		l.text = append(l.text, segment[:min(len(segment), node.MaxUnfinishedLine-len(l.text))]...)
		l.at = now
	}
}

// shown returns the text to be shown at now: that of a redrawn line, or of one that has settled.
func (l *line) shown(now time.Time) string {
	if len(l.text) == 0 || !l.redrawn && now.Sub(l.since) < settled {
		return ""
	}
	// A character may be cut at the end, or may not have arrived as a whole.
	return strings.ReplaceAll(strings.ToValidUTF8(string(l.text), ""), "\x00", "")
}

// lines are the unfinished lines of a container: stdout and stderr.
type lines [2]line

// picture returns the line that changed last, of the streams with an unfinished line.
func (s *lines) picture(now time.Time) node.UnfinishedLine {
	last := node.UnfinishedLine{At: now}
	found := false
	for i := range s {
		text := s[i].shown(now)
		if text != "" && (!found || s[i].at.After(last.At)) {
			last, found = node.UnfinishedLine{At: s[i].at, Stderr: i == 1, Text: text}, true
		}
	}
	return last
}
