package web

import (
	"bytes"
	"net/http"
	"strings"
	"time"
)

// textStream sends a text line by line, as a file. The browser must take each piece within
// writeTime.
type textStream struct {
	v     *visit
	name  string
	begun bool
	held  bytes.Buffer
}

// streamPiece is the number of bytes that are sent at once.
const streamPiece = 32 << 10

// line appends a line.
func (t *textStream) line(text string) error {
	if !t.begun {
		t.begun = true
		h := t.v.w.Header()
		h.Set("Content-Type", "text/plain; charset=utf-8")
		h.Set("Content-Disposition", `attachment; filename="`+strings.ReplaceAll(t.name, `"`, "")+`"`)
	}
	t.held.WriteString(text)
	t.held.WriteByte('\n')
	if t.held.Len() < streamPiece {
		return nil
	}
	return t.flush()
}

// flush sends the held bytes.
func (t *textStream) flush() error {
	_ = http.NewResponseController(t.v.w).SetWriteDeadline(time.Now().Add(writeTime))
	_, err := t.held.WriteTo(t.v.w)
	return err
}
