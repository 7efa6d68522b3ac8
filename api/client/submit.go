package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"berth"
	"berth/spec"
	"berth/wire"
)

// submitPause is the pause before the second send of a call whose answer was lost. It doubles up to submitPauseLast.
const (
	submitPause     = 250 * time.Millisecond
	submitPauseLast = 2 * time.Second
)

// LostAnswerError is the end of a submission that may have had its effect: the server may have stored the job, and no
// answer said so. The same submission with the same key returns the job, or creates it; it never creates a second one.
type LostAnswerError struct {
	Key string // idempotency key of the submission
	Err error  // of the last try
}

// Error returns the error of the last try.
func (e *LostAnswerError) Error() string {
	return fmt.Sprintf("the job may have been submitted: %v", e.Err)
}

// Unwrap returns the error of the last try.
func (e *LostAnswerError) Unwrap() error { return e.Err }

// Submit submits a job. key is the idempotency key: created is false if the key was used
// for the same job before, and another job with the key is a conflict (slug
// idempotency_mismatch). With a key, a call whose answer was lost is repeated for up to 15 s,
// and the result is still one job. A call without an answer in the end is a LostAnswerError.
// Without a key ("") a lost answer is an error at once, and the job may exist.
func (c *Client) Submit(ctx context.Context, jobSpec spec.Job, key string) (job wire.Job, created bool, err error) {
	return c.submit(ctx, "/v1/jobs", jobSpec, key)
}

// submit submits a job or a pipeline, with repeats if a key makes repeats harmless.
//
// lost is set by the first try that the server may have received without an answer of its own: the connection broke, or
// a proxy answered for the server. From then on a server that cannot be dialled is no reason to give up, since it may
// be restarting with the job stored. Before, such a server has received nothing, and the error is returned at once.
func (c *Client) submit(
	ctx context.Context, path string, body any, key string,
) (job wire.Job, created bool, err error) {
	r := request{method: http.MethodPost, path: path, header: http.Header{}, body: body, once: key == ""}
	if key != "" {
		r.header.Set("Idempotency-Key", key)
	}
	var asked time.Duration // pause that the last answer requested
	r.asked = &asked
	begun := time.Now()
	var until time.Time
	for wait := submitPause; ; wait = min(2*wait, submitPauseLast) {
		asked = 0
		var status int
		var sent bool
		status, sent, err = doTraced(ctx, c, r, &job)
		if err == nil {
			return job, status == http.StatusCreated, nil
		}
		lost := sent && Unreachable(err)
		switch {
		case lost && until.IsZero():
			until = time.Now().Add(patience)
		case berth.CodeOf(err) == berth.CodeUnavailable && until.IsZero():
			until = begun.Add(patience) // repeats that the server requested count
		}
		again := lost || berth.CodeOf(err) == berth.CodeUnavailable || Unreachable(err)
		if key == "" || until.IsZero() || !again {
			return wire.Job{}, false, err
		}
		if ctx.Err() != nil || max(asked, wait) > time.Until(until) {
			return wire.Job{}, false, &LostAnswerError{Key: key, Err: err}
		}
		if pause(ctx, max(asked, wait+rand.N(wait/4))) != nil {
			return wire.Job{}, false, &LostAnswerError{Key: key, Err: err}
		}
	}
}

// doTraced is do, and reports whether the server may have received the call. The transport repeats a call with a key on
// another connection if a reused one breaks, so an error of the dial alone does not mean that nothing was sent.
func doTraced(ctx context.Context, c *Client, r request, out any) (status int, sent bool, err error) {
	var wrote, traced atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:      func(string) { traced.Store(true) },
		WroteHeaders: func() { wrote.Store(true) },
	})
	status, err = c.do(ctx, r, out)
	return status, wrote.Load() || !traced.Load(), err // a transport of Over has no trace
}
