package fakeruntime

import (
	"bytes"
	"context"
	"sync"
	"time"

	"berth/activities/node"
)

// longestLine is where an engine cuts a line into parts.
const longestLine = 16 << 10

// logBuffer is what one container wrote. Any number of readers follow it.
type logBuffer struct {
	mu      sync.Mutex
	max     int
	lines   []node.LogLine
	dropped int           // lines that were forgotten, so that readers keep their place
	closed  bool          // no more lines will come
	changed chan struct{} // non-nil while a reader waits; closed on the next change
}

func newLogBuffer(maxLines int) *logBuffer { return &logBuffer{max: maxLines} }

func (l *logBuffer) append(line node.LogLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	if len(l.lines) >= 2*l.max { // drop many at once, so that appending stays cheap
		n := len(l.lines) - l.max
		l.lines = append([]node.LogLine(nil), l.lines[n:]...)
		l.dropped += n
	}
	l.wake()
}

func (l *logBuffer) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake()
}

func (l *logBuffer) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// after returns the lines from position at on, the position after them, and a
// channel that tells of more; the channel is nil when no more will come.
func (l *logBuffer) after(at int) ([]node.LogLine, int, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := l.dropped + len(l.lines)
	lines := l.lines[max(0, at-l.dropped):len(l.lines):len(l.lines)]
	if l.closed {
		return lines, end, nil
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return lines, end, l.changed
}

// read emits the lines at or after since. With a nil stop it returns after
// those that exist; otherwise it follows until the log is closed or stop is.
func (l *logBuffer) read(ctx context.Context, since time.Time, stop <-chan struct{},
	emit func(node.LogLine) error) error {
	at := 0
	for {
		lines, next, more := l.after(at)
		at = next
		for _, line := range lines {
			if line.At.Before(since) {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := emit(line); err != nil {
				return err
			}
		}
		if more == nil || stop == nil {
			return nil
		}
		select {
		case <-more:
		case <-stop:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stream cuts what is written into lines. A container's program may write to
// it from several goroutines.
type stream struct {
	log    *logBuffer
	stderr bool
	mu     sync.Mutex
	rest   []byte
}

func (l *logBuffer) stream(stderr bool) *stream { return &stream{log: l, stderr: stderr} }

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rest = append(s.rest, p...)
	for {
		line, rest, whole := bytes.Cut(s.rest, []byte("\n"))
		switch {
		case len(line) > longestLine:
			s.emit(line[:longestLine])
			s.rest = s.rest[longestLine:]
		case whole:
			s.emit(line)
			s.rest = rest
		default:
			return len(p), nil
		}
	}
}

// flush emits a last line that has no newline.
func (s *stream) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.rest) > 0 {
		s.emit(s.rest)
		s.rest = nil
	}
}

func (s *stream) emit(line []byte) {
	s.log.append(node.LogLine{At: time.Now().UTC().Round(0), Stderr: s.stderr, Text: string(line)})
}
