package control

import (
	"context"
	"time"

	"berth"
	"berth/internal/lib/overload"
	"berth/wire"
)

// Store holds the rows of jobs, which decide every state.
type Store interface {
	// Load records that the job's workflow has read the row, and returns the job.
	Load(ctx context.Context, id berth.JobID) (wire.JobView, error)
	// View returns a job that this workflow has loaded before, without that record.
	View(ctx context.Context, id berth.JobID) (wire.JobView, error)
	// Settle closes an attempt once all its members have ended.
	Settle(ctx context.Context, id berth.JobID, attempt int) (wire.SettleResult, error)
	// RequestCancel writes a cancel request to the row; the empty tenant means any.
	RequestCancel(ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string,
		reason *berth.Reason) (berth.State, error)
	// StopAttempt orders the other members to stop if one has ended badly.
	StopAttempt(ctx context.Context, id berth.JobID, attempt int) (stopped bool, err error)
	// Escalate orders the kill of members that have not stopped within their grace.
	Escalate(ctx context.Context, id berth.JobID, attempt int) error
	// Reconcile reconciles a parent with the rows of its children.
	Reconcile(ctx context.Context, id berth.JobID) (wire.ReconcileResult, error)
}

// Pokes delivers pokes to waiting steps, instead of sending signals to their workflows.
type Pokes interface {
	// Expect registers a wait for news of a job. The caller reads the row after each
	// receive from news, and calls done once at the end; done reports whether a poke was
	// delivered since the last receive.
	Expect(id berth.JobID) (news <-chan struct{}, done func() (poked bool))
	// Poke wakes the jobs' workflows, in a waiting step or by a signal.
	Poke(ids ...berth.JobID)
}

// Fires decides the times of schedules.
type Fires interface {
	// Fire submits the schedule's job for that time, once, or records the reason why it
	// does not. The result is empty if the schedule does not exist.
	Fire(ctx context.Context, id berth.ScheduleID, at time.Time) (wire.FireResult, error)
}

// GrantWait bounds the time for which Reserve waits for the leader. On a free cluster the
// grant comes within milliseconds; the rest is for bursts, when a grant returned by Reserve
// saves the workflow a signal, which costs Temporal as much as a fifth of the job. Reserve
// holds up a workflow task for that time, and the task's own limit is 10 s.
const GrantWait = time.Second

// Steps are the activities of the control queue. All methods may be called concurrently.
type Steps struct {
	store  Store
	grants grants // the store, as Reserve reads it
	pokes  Pokes
	fires  Fires
	wait   time.Duration
}

// grants are the reads of a job that waits for its grant.
type grants interface {
	Load(ctx context.Context, id berth.JobID) (wire.JobView, error)
	View(ctx context.Context, id berth.JobID) (wire.JobView, error)
}

// New returns the steps over a store. Their failpoints lie around the calls of the store.
func New(store Store, pokes Pokes, fires Fires) *Steps {
	return withFailpoints(Steps{store: store, grants: store, pokes: pokes, fires: fires, wait: GrantWait})
}

// Reserve returns the job with its grant if the leader places the job within GrantWait,
// else still waiting. It waits only while the job can be placed; in backoff, or held, it
// returns at once.
func (s *Steps) Reserve(ctx context.Context, in wire.StepInput) (wire.JobView, error) {
	id := in.Job
	ctx = overload.As(ctx, overload.Start) // statements of ends go before
	news, done := s.pokes.Expect(id)       // before the read: no poke may fall in between
	registered, heard := true, false
	defer func() {
		// A poke that was delivered to this step, and on which the step did not act, must
		// not be lost with the step: no signal was sent for that poke. So it goes to the
		// workflow now.
		if registered && done() || heard {
			s.pokes.Poke(id)
		}
	}()
	limit := time.NewTimer(s.wait)
	defer limit.Stop()
	for read := s.grants.Load; ; read = s.grants.View {
		view, err := read(ctx, id)
		if err != nil {
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
		// A poke delivered since the last read is this step's to act on, because no signal
		// will reach the workflow: read again.
		registered = false
		if heard = done(); !heard {
			return view, nil
		}
	}
}

// Load returns the present job.
func (s *Steps) Load(ctx context.Context, in wire.StepInput) (wire.JobView, error) {
	return s.store.Load(ctx, in.Job)
}

// Settle closes an attempt. The result says whether the job is retried, or has ended.
func (s *Steps) Settle(ctx context.Context, in wire.AttemptInput) (wire.SettleResult, error) {
	return s.store.Settle(ctx, in.Job, in.Attempt)
}

// RequestCancel writes a cancel that came from Temporal's side to the row, and returns the
// job as changed by the cancel.
func (s *Steps) RequestCancel(ctx context.Context, in wire.StepInput) (wire.JobView, error) {
	if _, err := s.store.RequestCancel(ctx, "", in.Job, "temporal", nil); err != nil {
		return wire.JobView{}, err
	}
	return s.store.Load(ctx, in.Job)
}

// StopAttempt stops the rest of a gang if a member ended badly, and reports whether one
// did.
func (s *Steps) StopAttempt(ctx context.Context, in wire.AttemptInput) (bool, error) {
	return s.store.StopAttempt(ctx, in.Job, in.Attempt)
}

// Escalate kills members that did not stop in time.
func (s *Steps) Escalate(ctx context.Context, in wire.AttemptInput) (wire.None, error) {
	return wire.None{}, s.store.Escalate(ctx, in.Job, in.Attempt)
}
