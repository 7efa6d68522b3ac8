package client

import (
	"sync"
	"time"
)

// streamQuiet is the time without a sign of life after which a stream counts as silent: the server writes at least
// every 15 s. streamGap is the time without a connection after which it does: a restarted server is back sooner.
const (
	streamQuiet = 20 * time.Second
	streamGap   = 2 * time.Second
)

// streamWatch reports when a stream falls silent and when it is heard again, over all its connections. Before the first
// sign of life it reports nothing. All methods may be called concurrently.
type streamWatch struct {
	report func(silent bool) // called while mu is held, so that reports keep their order; nil: not wanted

	mu      sync.Mutex
	due     time.Time   // when the stream counts as silent
	timer   *time.Timer // nil before the first sign of life, and after stop
	silent  bool
	stopped bool
	busy    bool // the caller's function is at work, and nothing is read from the stream
	ended   int  // connections that have ended
}

// heard records a sign of life.
func (w *streamWatch) heard() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alive()
}

// steady returns a function that records a sign of life of the present connection. It does nothing once the connection
// has ended: the timer that calls it may fire at that moment.
func (w *streamWatch) steady() func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	connection := w.ended
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.ended == connection {
			w.alive()
		}
	}
}

// alive records a sign of life. The caller holds w.mu.
func (w *streamWatch) alive() {
	if w.report == nil || w.stopped {
		return
	}
	// The timer is not set again for each line of a log: it looks at due when it fires.
	w.due = time.Now().Add(streamQuiet)
	if w.timer == nil {
		w.timer = time.AfterFunc(streamQuiet, w.look)
	}
	if w.silent {
		w.silent = false
		w.timer.Reset(streamQuiet)
		w.report(false)
	}
}

// calling records the begin and the end of a call of the caller's function. Its time says nothing about the server: a
// reader of the caller's output, such as a pager, may pause.
func (w *streamWatch) calling(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy = on; !on && w.timer != nil && !w.silent {
		w.due = time.Now().Add(streamQuiet)
	}
}

// broke records the end of a connection.
func (w *streamWatch) broke() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended++
	// A further connection that fails does not extend the time.
	if soon := time.Now().Add(streamGap); w.timer != nil && soon.Before(w.due) {
		w.due = soon
		w.timer.Reset(streamGap)
	}
}

// look reports a stream that is silent by now, and otherwise looks again when it may be.
func (w *streamWatch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil || w.silent {
		return
	}
	if w.busy {
		w.timer.Reset(streamQuiet)
		return
	}
	if rest := time.Until(w.due); rest > 0 {
		w.timer.Reset(rest)
		return
	}
	w.silent = true
	w.report(true)
}

// stop ends the reports.
func (w *streamWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	w.timer, w.stopped = nil, true
}
