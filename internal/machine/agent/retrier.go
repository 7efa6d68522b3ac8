package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"berth/internal/machine/fetch"
)

// errGivenUp ends an upload that the server will not take, or has refused for too
// long.
var errGivenUp = errors.New("the server does not take it")

// retrier repeats a member's calls to the control plane and to its store. All
// methods may be called concurrently.
type retrier struct {
	ctx    context.Context // the member's
	log    *slog.Logger
	timing Timing
	stage  *stager     // shows the tries of patiently
	counts *Metrics    // nil: none
	ended  atomic.Bool // the container has ended; patience counts from then on
}

// insist calls f until f succeeds. It returns errGivenUp if the server no longer assigns the work
// to this machine, or if the server has answered with errors for longer than the patience since
// the container's end. An absent server is waited for: without it no other report could be
// delivered either.
func (r *retrier) insist(what string, f func(ctx context.Context) error) error {
	var since time.Time
	for wait := r.timing.backoff(); ; {
		err := f(r.ctx)
		if err == nil {
			return nil
		}
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		if local, ok := errors.AsType[localError](err); ok {
			return local.err
		}
		if overQuota(err) || objectMissing(err) {
			return err
		}
		if refused(err) {
			return fmt.Errorf("%w: %s: %w", errGivenUp, what, err)
		}
		if !answered(err) || !r.ended.Load() {
			since = time.Time{}
		} else if since.IsZero() {
			since = time.Now()
		}
		if !since.IsZero() && time.Since(since) > r.timing.UploadPatience {
			return fmt.Errorf("%w: %s: %w", errGivenUp, what, err)
		}
		r.log.Warn("call failed, will retry", "what", what, "err", err)
		r.counts.repeated(directionStore)
		if err := wait.wait(r.ctx); err != nil {
			return err
		}
	}
}

// patiently calls f until f succeeds or a store without an answer has used up the patience.
// Damage and the server's refusals are final. The patience with a host that does not exist is
// shorter: another machine may know better.
func (r *retrier) patiently(ctx context.Context, f func() error) error {
	return r.patientlySince(ctx, new(atomic.Int64), f)
}

// patientlySince is patiently for a transfer that may last longer than the patience: the patience counts from the last
// progress, which f notes in nanoseconds since 1970.
func (r *retrier) patientlySince(ctx context.Context, progress *atomic.Int64, f func() error) error {
	began := time.Now()
	shown := tries{stage: r.stage}
	for wait := r.timing.backoff(); ; {
		err := f()
		shown.note(err)
		if fetch.IsNotFound(err) && time.Since(began) > r.timing.NamePatience {
			return err
		}
		_, damaged := errors.AsType[damage](err)
		until := began.Add(r.timing.RestorePatience)
		if at := progress.Load(); at != 0 {
			until = time.Unix(0, at).Add(r.timing.RestorePatience)
		}
		if err == nil || damaged || refused(err) || fetch.Final(err) || ctx.Err() != nil || time.Now().After(until) {
			return err
		}
		r.log.Warn("object store call failed, will retry", "err", err)
		r.counts.repeated(directionFetch)
		if err := wait.wait(ctx); err != nil {
			return err
		}
	}
}

// localError is an error of this machine's files. Waiting for the server cannot cure such an error.
type localError struct{ err error }

// Error returns the text of the local failure.
func (e localError) Error() string { return e.err.Error() }

// Unwrap returns the local failure.
func (e localError) Unwrap() error { return e.err }
