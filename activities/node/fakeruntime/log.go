package fakeruntime

import (
	"bytes"
	"context"
	"sync"
	"time"

	"berth/activities/node"
)

// longestLine is the length at which an engine cuts a line into parts.
const longestLine = 16 << 10

// logBuffer is the log of one container. Any number of readers may follow it.
type logBuffer struct {
	mu      sync.Mutex
	max     int // lines that are always kept; up to twice as many may be
	lines   []node.LogLine
	dropped int           // lines removed from the front; positions of readers count them
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

// close ends the log: followers return once they have read the last line.
func (l *logBuffer) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake()
}

// wake wakes all waiting readers; l.mu is held.
func (l *logBuffer) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// after returns the lines from a position on, the position after the last line, and a
// channel that is closed when more lines come. The channel is nil if the log is complete. A
// reader that is too slow misses the dropped lines.
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

// read emits the lines at or after since. With a nil stop it returns after the existing
// lines; otherwise it follows until the log or stop is closed.
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

// stream cuts a program's output into lines. Write may be called concurrently, since a
// container's program may write from several goroutines.
type stream struct {
	log    *logBuffer
	stderr bool
	mu     sync.Mutex
	rest   []byte // the beginning of a line
}

func (l *logBuffer) stream(stderr bool) *stream { return &stream{log: l, stderr: stderr} }

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rest = append(s.rest, p...)
	for {
		line, rest, whole := bytes.Cut(s.rest, []byte("\n"))
		switch {
		// Also without a newline yet, so that rest stays short.
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

// flush emits an unfinished last line.
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
