package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

	"berth/activities/node"
)

// Logs delivers the container's lines; see node.Runtime. A line of more than
// 16 KiB arrives in parts, as the engine stores it.
//
// One stream of the engine is not enough to follow: it ends at once for a
// container that was not started, and it may end early, without an error, when
// the engine stops or rotates its files. So the reader remembers its place and
// asks again until the container has exited and a last look, made after the
// exit, has found nothing new.
func (e *Engine) Logs(ctx context.Context, name string, since time.Time, follow bool,
	emit func(node.LogLine) error) error {
	c, err := e.Inspect(ctx, name)
	if err != nil {
		return err
	}
	r := &logReader{emit: emit, since: since}
	for idle := 20 * time.Millisecond; follow && c.State != node.ContainerExited; {
		seen := r.delivered
		if err := e.readLogs(ctx, c, r, follow); err != nil {
			return err
		}
		if c, err = e.Inspect(ctx, name); err != nil {
			return err
		}
		if c.State == node.ContainerExited {
			break
		}
		if r.delivered > seen {
			idle = 20 * time.Millisecond
		}
		if err := pause(ctx, idle); err != nil {
			return fmt.Errorf("follow logs of container %s: %w", name, err)
		}
		idle = min(2*idle, 500*time.Millisecond)
	}
	return e.readLogs(ctx, c, r, false)
}

// readLogs reads one stream of the engine to its end.
func (e *Engine) readLogs(ctx context.Context, c node.Container, r *logReader, follow bool) error {
	o := container.LogsOptions{ShowStdout: true, ShowStderr: true, Timestamps: true, Follow: follow}
	if !r.since.IsZero() {
		o.Since = r.since.Add(-disorder).UTC().Format(time.RFC3339Nano)
	}
	r.last, r.again = time.Time{}, 0
	out, errs := &logStream{r: r}, &logStream{r: r, stderr: true}
	body, err := e.api.ContainerLogs(ctx, c.ID, o)
	if err != nil {
		if gone := absent(c.Name, err); gone != nil {
			return gone
		}
		if cerrdefs.IsConflict(err) { // 409: it is being removed, and its log with it
			return fmt.Errorf("container %s: %w", c.Name, node.ErrNoContainer)
		}
		return fmt.Errorf("read logs of container %s: %w", c.Name, err)
	}
	defer body.Close()
	_, err = stdcopy.StdCopy(out, errs, body)
	switch {
	case r.refused != nil:
		return r.refused
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("read logs of container %s: %w", c.Name, ctx.Err())
	case err != nil:
		return fmt.Errorf("read logs of container %s: %w", c.Name, err)
	}
	return nil
}

// disorder is how far the stamps in a log may run backwards. The engine copies
// stdout and stderr separately and stamps a line before it stores it, so two
// lines can end up stored in the other order of their stamps. Such a line is
// given the stamp of the one before it; every read begins this much early, so
// that it comes to the same result as the reads before.
const disorder = time.Second

// logReader keeps the place in a container's log over several streams. The
// engine can only be asked for everything at or after a time, and several lines
// may carry the same one, so the place is a time and how many lines of that
// time were delivered.
type logReader struct {
	emit      func(node.LogLine) error
	since     time.Time // stamp of the last line delivered, or where to begin
	at        int       // lines delivered with exactly that stamp
	last      time.Time // the newest stamp this stream has shown
	again     int       // lines at since that this stream has repeated
	delivered int
	refused   error // returned by emit
}

// deliver passes a line on unless an earlier stream has delivered the same line. A line stamped
// earlier than the line before takes over that line's stamp (see disorder).
func (r *logReader) deliver(line node.LogLine) error {
	if line.At.Before(r.last) {
		line.At = r.last
	}
	r.last = line.At
	switch {
	case line.At.Before(r.since):
		return nil
	case line.At.Equal(r.since) && r.again < r.at:
		r.again++
		return nil
	case line.At.Equal(r.since):
		r.at++
		r.again++
	default:
		r.since, r.at, r.again = line.At, 1, 1
	}
	if err := r.emit(line); err != nil {
		r.refused = err
		return err
	}
	r.delivered++
	return nil
}

// logStream receives stdout or stderr. StdCopy writes each frame whole, and the
// engine sends each line, or part of a long one, as one frame that begins with
// its stamp.
type logStream struct {
	r      *logReader
	stderr bool
	last   node.LogLine
	seen   []int64 // stamps of the latest lines, in Unix nanoseconds, never falling
}

var errNoStamp = errors.New("log line without a time stamp")

// Write receives one frame of the stream, which the engine sends as one stamped line.
func (s *logStream) Write(frame []byte) (int, error) {
	head, text, ok := bytes.Cut(frame, []byte(" "))
	if !ok {
		return 0, fmt.Errorf("%w: %.100q", errNoStamp, frame)
	}
	at, err := time.Parse(time.RFC3339Nano, string(head))
	if err != nil {
		return 0, fmt.Errorf("%w: %.100q", errNoStamp, frame)
	}
	line := node.LogLine{At: at.UTC(), Stderr: s.stderr, Text: string(bytes.TrimSuffix(text, []byte("\n")))}
	if s.repeats(line) {
		return len(frame), nil
	}
	s.remember(line)
	if err := s.r.deliver(line); err != nil {
		return 0, err
	}
	return len(frame), nil
}

// repeats reports whether the engine sends a line for the second time. Engines up to 20.10 repeat
// lines when they rotate a file that is being followed: they send the new file again from its
// beginning. Within stdout, or stderr, stamps do not fall otherwise, unless the machine's clock
// was set back; then the stamps are new ones. Only the parts of one long line have equal stamps.
func (s *logStream) repeats(line node.LogLine) bool {
	if line.At.Before(s.last.At) {
		_, found := slices.BinarySearch(s.seen, line.At.UnixNano())
		return found
	}
	return line == s.last && len(line.Text) < longestLine
}

// remember keeps the stamps of about as many lines as one file of the log holds.
func (s *logStream) remember(line node.LogLine) {
	const most = 1 << 20
	switch {
	case line.At.Before(s.last.At): // the clock was set back
		s.seen = nil
	case len(s.seen) == most:
		s.seen = append([]int64(nil), s.seen[most/2:]...)
	}
	s.seen = append(s.seen, line.At.UnixNano())
	s.last = line
}

// longestLine is where the engine cuts a line into parts.
const longestLine = 16 << 10
