package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"berth"
)

// pacedBody is a body that is cut off where fewer than least bytes come in a window. Time
// without a reader, because the store or the check is slow, does not count once it is
// longer than the window.
type pacedBody struct {
	t      *transfer
	r      io.Reader
	window time.Duration
	least  int64

	until time.Time // end of the present window; zero before the first read
	got   int64     // bytes of the present window
	err   error     // of the transport or the pace; nil at the end of the body
}

// Read returns an error of slug slugTooSlow where the body is cut off. A read deadline
// that has passed cancels the call's context (net/http does), so it is only set to a time
// at which the window has failed for certain.
func (p *pacedBody) Read(b []byte) (int, error) {
	if now := time.Now(); now.After(p.until) {
		p.until, p.got = now.Add(p.window), 0
	}
	deadline := p.until
	if p.got >= p.least { // this window is good, so the next one decides
		deadline = deadline.Add(p.window)
	}
	_ = p.t.control.SetReadDeadline(deadline) // not every transport has one
	if err := context.Cause(p.t.ctx); err != nil {
		p.err = err // see extend
		p.t.to.Header().Set("Connection", "close")
		return 0, err
	}
	n, err := p.r.Read(b)
	p.t.liftRead()
	p.got += int64(n)
	late := err == nil && p.got < p.least && time.Now().After(p.until)
	if late || errors.Is(err, os.ErrDeadlineExceeded) && p.t.broken() == nil {
		err = &berth.Error{Code: berth.CodeInvalid, Slug: slugTooSlow, Message: fmt.Sprintf(
			"the body comes too slowly: %d bytes in %s, at least %d are required; nothing was stored", p.got,
			p.window, p.least)}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		p.err = err
		p.t.to.Header().Set("Connection", "close") // the connection stands in the middle of a body
	}
	return n, err
}

// slow returns the error with which the body was cut off for its pace, or nil.
func (p *pacedBody) slow() error {
	if berth.IsSlug(p.err, slugTooSlow) {
		return p.err
	}
	return nil
}
