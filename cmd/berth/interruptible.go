package main

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// outputGrace is how long a write may take after an interrupt before its reader counts as paused. It is far above the
// time of a write on a busy machine, so that the last message of a command is not lost.
const outputGrace = 500 * time.Millisecond

// interruptible is a standard stream of which a blocked write ends after an interrupt. The reader may pause for as long
// as it likes, such as a pager that shows its first page: a write into its full pipe has no other end.
//
// Once a write was given up, the stream takes nothing more, as a later write could come first.
type interruptible struct {
	ctx context.Context // ends with the interrupt
	to  io.Writer

	mu      sync.Mutex       // held during a write
	written chan writeResult // has room for the result of a write that was given up
	copied  []byte
	paused  atomic.Bool                 // a write was given up
	failed  atomic.Pointer[outputError] // the first failed write
}

// writeResult is the result of a write.
type writeResult struct {
	n   int
	err error
}

func newInterruptible(ctx context.Context, to io.Writer) *interruptible {
	return &interruptible{ctx: ctx, to: to, written: make(chan writeResult, 1)}
}

// Write writes b. After an interrupt it fails with the error of the context if the reader takes nothing for
// outputGrace.
func (w *interruptible) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paused.Load() {
		return 0, w.ctx.Err()
	}
	w.copied = append(w.copied[:0], b...) // the caller may change b once the write was given up
	go func() {                           // ends with the process if the reader takes nothing more
		n, err := w.to.Write(w.copied)
		w.written <- writeResult{n, err}
	}()
	var r writeResult
	select {
	case r = <-w.written:
	case <-w.ctx.Done():
		select {
		case r = <-w.written:
		case <-time.After(outputGrace):
			w.paused.Store(true)
			return 0, w.ctx.Err()
		}
	}
	if r.err != nil {
		w.failed.CompareAndSwap(nil, &outputError{r.err})
	}
	return r.n, r.err
}

// lost returns the error of output that did not arrive, nil if all did. A command may ignore the error of a print.
func (w *interruptible) lost() error {
	if w.paused.Load() {
		return w.ctx.Err()
	}
	if err := w.failed.Load(); err != nil {
		return err
	}
	return nil
}
