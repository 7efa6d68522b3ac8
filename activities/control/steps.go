package control

import (
	"context"
	"time"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/internal/lib/overload"
	"berth/wire"
)

// Store is the truth about jobs.
type Store interface {
	// Load tells that the job's workflow looks, and returns the job as it stands.
	Load(ctx context.Context, id berth.JobID) (wire.JobView, error)
	// View returns a job that was loaded before as it stands now.
	View(ctx context.Context, id berth.JobID) (wire.JobView, error)
	Settle(ctx context.Context, id berth.JobID, attempt int) (wire.SettleResult, error)
	RequestCancel(ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string,
		reason *berth.Reason) (berth.State, error)
	StopAttempt(ctx context.Context, id berth.JobID, attempt int) (stopped bool, err error)
	Escalate(ctx context.Context, id berth.JobID, attempt int) error
	// Tend reconciles a parent with the rows of its children.
	Tend(ctx context.Context, id berth.JobID) (wire.ReconcileResult, error)
}

// Pokes hands pokes to steps that wait, instead of sending them to workflows.
type Pokes interface {
	// Expect registers a wait for news of a job. The caller reads the row after
	// each receive from news, and calls done once at the end; done reports
	// whether a poke was handed over since the last receive.
	Expect(id berth.JobID) (news <-chan struct{}, done func() (poked bool))
	// Poke wakes the job's workflow, wherever its step is.
	Poke(ids ...berth.JobID)
}

// Fires decides what becomes of the times of schedules.
type Fires interface {
	// Fire submits what a schedule is to submit at that time, once, or records why
	// not. The result is empty if there is no such schedule any more.
	Fire(ctx context.Context, id berth.ScheduleID, at time.Time) (wire.FireResult, error)
}

// GrantWait is how long Reserve waits for the leader. On a free cluster the
// grant comes within milliseconds; the rest is for bursts, when a grant that is
// handed over spares the workflow a signal, which costs Temporal as much as a
// fifth of the job. It holds up a workflow task for that time, whose own limit
// is 10 s.
const GrantWait = time.Second

// Steps are the activities of the control queue. They may be called
// concurrently.
type Steps struct {
	store Store
	pokes Pokes
	fires Fires
	wait  time.Duration
}

// New returns the steps over a store.
func New(store Store, pokes Pokes, fires Fires) *Steps {
	return &Steps{store: store, pokes: pokes, fires: fires, wait: GrantWait}
}

// Reserve asks for capacity and returns the job as it stands: with its grant if
// the leader placed it within a moment, else still waiting. It is the job's
// turn to wait only while it can be placed; in backoff, or held, it returns at
// once.
func (s *Steps) Reserve(ctx context.Context, id berth.JobID) (wire.JobView, error) {
	ctx = overload.As(ctx, overload.Start) // statements of ends go before
	news, done := s.pokes.Expect(id)       // before the read: no poke may fall in between
	registered, heard := true, false
	defer func() {
		// A poke that came to a step that ends without having looked since must
		// not be lost with it: nobody else was told.
		if registered && done() || heard {
			s.pokes.Poke(id)
		}
	}()
	limit := time.NewTimer(s.wait)
	defer limit.Stop()
	for read := s.store.Load; ; read = s.store.View {
		if err := failpoint.Hit("worker.reserve.before"); err != nil {
			return wire.JobView{}, err
		}
		view, err := read(ctx, id)
		if err != nil {
			return view, err
		}
		if err := failpoint.Hit("worker.reserve.after"); err != nil {
			return view, err
		}
		heard = false
		if !registered {
			return view, nil
		}
		if view.State.Waiting() && view.Placeable {
			select {
			case <-news:
				heard = true
				continue
			case <-ctx.Done():
				return view, ctx.Err()
			case <-limit.C:
			}
		}
		// A poke that was handed over since the read is ours to act on, because
		// nobody will signal it to the workflow.
		registered = false
		if heard = done(); !heard {
			return view, nil
		}
	}
}

// Load returns the job as it stands.
func (s *Steps) Load(ctx context.Context, id berth.JobID) (wire.JobView, error) {
	return s.store.Load(ctx, id)
}

// Settle closes an attempt.
func (s *Steps) Settle(ctx context.Context, id berth.JobID, attempt int) (wire.SettleResult, error) {
	if err := failpoint.Hit("worker.settle.before"); err != nil {
		return wire.SettleResult{}, err
	}
	result, err := s.store.Settle(ctx, id, attempt)
	if err != nil {
		return result, err
	}
	return result, failpoint.Hit("worker.settle.after")
}

// RequestCancel puts a cancel that came from Temporal's side on the row, and
// returns the job as it stands then.
func (s *Steps) RequestCancel(ctx context.Context, id berth.JobID) (wire.JobView, error) {
	if err := failpoint.Hit("worker.cancel.before"); err != nil {
		return wire.JobView{}, err
	}
	if _, err := s.store.RequestCancel(ctx, "", id, "temporal", nil); err != nil {
		return wire.JobView{}, err
	}
	if err := failpoint.Hit("worker.cancel.after"); err != nil {
		return wire.JobView{}, err
	}
	return s.store.Load(ctx, id)
}

// StopAttempt stops the rest of a gang if a member of it ended badly, and reports
// whether one did.
func (s *Steps) StopAttempt(ctx context.Context, id berth.JobID, attempt int) (bool, error) {
	if err := failpoint.Hit("worker.stop.before"); err != nil {
		return false, err
	}
	stopped, err := s.store.StopAttempt(ctx, id, attempt)
	if err != nil {
		return stopped, err
	}
	return stopped, failpoint.Hit("worker.stop.after")
}

// Escalate kills what did not stop in time.
func (s *Steps) Escalate(ctx context.Context, id berth.JobID, attempt int) error {
	if err := failpoint.Hit("worker.escalate.before"); err != nil {
		return err
	}
	if err := s.store.Escalate(ctx, id, attempt); err != nil {
		return err
	}
	return failpoint.Hit("worker.escalate.after")
}
