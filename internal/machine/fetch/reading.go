package fetch

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"berth"
)

// chunk is how much of a file is read at once, in bytes.
const chunk = 1 << 20

// reading reads a file of a volume, and at the end verifies that the whole file had the listed
// version.
type reading struct {
	ctx    context.Context //nolint:containedctx // of the one answer
	volume *volume
	file   opened
	object object
	at     int64  // of the file, behind ready
	buffer []byte // of which ready is a part
	ready  []byte
}

// opened is an open file. Each of its calls may wait for a dead file server.
type opened interface {
	io.ReaderAt
	io.Closer
	syscall.Conn
}

// Read returns bytes from the buffer, which more fills with one call to the file system.
func (r *reading) Read(p []byte) (int, error) {
	if len(r.ready) == 0 {
		if r.at >= r.object.size {
			return 0, io.EOF
		}
		if err := r.more(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

// more reads the next bytes. The last come only if the file has not changed.
func (r *reading) more() error {
	if r.buffer == nil {
		r.buffer = make([]byte, min(chunk, r.object.size-r.at))
	}
	into, at := r.buffer[:min(int64(len(r.buffer)), r.object.size-r.at)], r.at
	n, err := call(r.ctx, r.volume, func(func()) (int, error) {
		n, err := r.file.ReadAt(into, at)
		switch {
		case errors.Is(err, io.EOF):
			return 0, Changed{r.volume.url(r.object.key)}
		case err != nil:
			return 0, r.volume.gone(r.object.key, err)
		case at+int64(n) == r.object.size:
			return n, r.volume.same(r.file, r.object)
		}
		return n, nil
	}, nil)
	if err != nil {
		return err
	}
	r.ready, r.at = into[:n], at+int64(n)
	return nil
}

// Close closes the file in the background: a dead file server may block the close
// without end, as NFS does. The reader does not wait, since no written data can be
// lost.
func (r *reading) Close() error {
	closed := make(chan error, 1)
	go func() {
		r.volume.calls <- struct{}{}
		defer func() { <-r.volume.calls }()
		closed <- r.file.Close()
	}()
	timer := time.NewTimer(silence)
	defer timer.Stop()
	select {
	case err := <-closed:
		return err
	case <-r.ctx.Done():
	case <-timer.C:
	}
	return nil
}

// call runs do, a call to the file system, and stops waiting when ctx has ended or no
// answer has arrived for a while: the machine may wait for a dead file server without
// end. The goroutine is left behind until it is answered, and its result is dropped;
// the number of such goroutines is bounded. do must own the data that it uses.
func call[T any](ctx context.Context, v *volume, do func(alive func()) (T, error), drop func(T)) (T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer timer.Stop()
	var none T
	givenUp := func() error {
		err := context.Cause(ctx)
		if errors.Is(err, errSilent) {
			err = berth.Errorf(berth.CodeUnavailable, "the folder %s does not answer on this machine", v.name)
		}
		return err
	}
	select {
	case v.calls <- struct{}{}:
	case <-ctx.Done():
		return none, givenUp()
	}
	type answer struct {
		got T
		err error
	}
	answered := make(chan answer)
	go func() {
		defer func() { <-v.calls }()
		got, err := do(func() { timer.Reset(silence) })
		select {
		case answered <- answer{got, err}:
		case <-ctx.Done():
			if err == nil && drop != nil {
				drop(got)
			}
		}
	}()
	select {
	case a := <-answered:
		return a.got, a.err
	case <-ctx.Done():
		return none, givenUp()
	}
}
