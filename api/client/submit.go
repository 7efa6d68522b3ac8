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

// LostAnswerError is the end of a submission that may have had its effect: one of its tries may have stored the job,
// and no answer said so. The last try may have been refused, since the server checks rates, tokens and whether a
// machine could run the job before it looks for the key. The same submission with the same key returns the job, or
// creates it; it never creates a second one.
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
// idempotency_mismatch). With a key, a call whose answer was lost, or was 5xx, is repeated for
// up to 15 s, and the result is still one job. If a try may have stored the job and no later
// one returned it, the error is a LostAnswerError.
// Without a key ("") a lost answer is an error at once, and the job may exist.
func (c *Client) Submit(ctx context.Context, jobSpec spec.Job, key string) (job wire.Job, created bool, err error) {
	return c.submit(ctx, "/v1/jobs", jobSpec, key)
}

// submit submits a job or a pipeline, with repeats if a key makes repeats harmless.
//
// unknown is set by the first try that may have stored the job without an answer that said so: the connection broke, a
// proxy answered for the server, or the server failed, which may be after its commit. From then on a server that cannot
// be dialled is no reason to give up, since it may be restarting with the job stored, and a refusal says nothing about
// the earlier try. Before, such a server has received nothing, and each refusal is returned at once.
func (c *Client) submit(
	ctx context.Context, path string, body any, key string,
) (job wire.Job, created bool, err error) {
	var a answers
	r := request{method: http.MethodPost, path: path, header: http.Header{}, body: body, once: key == "", answers: &a}
	if key != "" {
		r.header.Set("Idempotency-Key", key)
	}
	begun := time.Now()
	var until time.Time
	unknown := false
	for wait := submitPause; ; wait = min(2*wait, submitPauseLast) {
		var status int
		var sent bool
		a.status, a.asked = 0, 0
		status, sent, err = doTraced(ctx, c, r, &job)
		if err == nil {
			return job, status == http.StatusCreated, nil
		}
		// A success that is not readable has no job in it: a proxy may have answered for the server.
		lost := sent && Unreachable(err) || a.status >= 200 && a.status < 300
		unknown = unknown || lost || a.failed
		switch {
		case !unknown || !until.IsZero():
		case lost:
			until = time.Now().Add(patience)
		default:
			until = begun.Add(patience) // repeats that the server requested count
		}
		if key == "" || !unknown || berth.IsSlug(err, berth.SlugIdempotencyMismatch) {
			return wire.Job{}, false, err
		}
		again := Unreachable(err) || a.status >= 500 || a.status == http.StatusTooManyRequests
		rest := max(a.asked, wait+rand.N(wait/4))
		if !again || ctx.Err() != nil || rest > time.Until(until) {
			return wire.Job{}, false, &LostAnswerError{Key: key, Err: err}
		}
		if pause(ctx, rest) != nil {
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
