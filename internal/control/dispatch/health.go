package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.temporal.io/api/serviceerror"
)

const (
	// patience is the time for which Temporal may fail before the leader should stop placing: a
	// later placement would hold capacity without a workflow to run the job. For the same time a
	// crowded server may be too slow before that counts as no answer.
	patience = 15 * time.Second

	lookEvery  = time.Second     // between two checks of the known results
	probeEvery = 5 * time.Second // while nothing else shows that Temporal answers
)

// health is the result of the last calls to Temporal. The zero value is down.
type health struct {
	mu   sync.Mutex
	ok   bool
	okAt time.Time
	up   chan struct{} // gets a value when Temporal answers again
}

// note takes the outcome of a call. It returns whether Temporal answered.
func (h *health) note(err error) bool {
	answered := answered(err)
	h.mu.Lock()
	defer h.mu.Unlock()
	if isSlow(err) && h.ok && time.Since(h.okAt) < patience {
		return false
	}
	if answered && !h.ok {
		select {
		case h.up <- struct{}{}:
		default:
		}
	}
	h.ok = answered
	if answered {
		h.okAt = time.Now()
	}
	return answered
}

// answered reports whether an error is an answer of Temporal's, and not the
// want of one.
func answered(err error) bool {
	var unavailable *serviceerror.Unavailable
	var deadline *serviceerror.DeadlineExceeded
	var namespace *serviceerror.NamespaceNotFound
	var exhausted *serviceerror.ResourceExhausted
	var answer serviceerror.ServiceError
	switch {
	case err == nil:
		return true
	case errors.As(err, &unavailable), errors.As(err, &deadline), errors.As(err, &namespace),
		errors.As(err, &exhausted):
		return false
	}
	return errors.As(err, &answer)
}

// isSlow reports whether a call ran out of time, or was turned away by a server
// that has too much to do.
func isSlow(err error) bool {
	var deadline *serviceerror.DeadlineExceeded
	var exhausted *serviceerror.ResourceExhausted
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &deadline) || errors.As(err, &exhausted)
}

// isOverload reports whether an error says that Temporal has too much to do, or is unreachable.
// Such an error lowers the limit of calls.
func isOverload(err error) bool {
	var unavailable *serviceerror.Unavailable
	return isSlow(err) || errors.As(err, &unavailable)
}

// isUp reports whether Temporal answers.
func (h *health) isUp() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ok
}

// since returns the time since Temporal's last answer.
func (h *health) since() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.okAt)
}

// probe calls Temporal when no other call shows whether Temporal answers. It resumes the
// pokes after an outage.
func (d *Dispatcher) probe(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	was := true
	for {
		var err error
		if !d.health.isUp() || d.health.since() >= probeEvery {
			err = d.Check(ctx)
		}
		up := d.health.isUp()
		switch {
		case ctx.Err() != nil:
			return
		case up && !was:
			d.log.Info("Temporal reachable")
		case !up && was:
			d.log.Warn("Temporal unreachable; running jobs continue, starts and notifications wait", "err", err)
		}
		was = up
		if up {
			d.pokes.resume()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
