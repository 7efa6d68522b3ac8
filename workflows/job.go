package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
)

// Job drives one job from its row to its end. A failed job is a value and the
// workflow completes; it fails itself only where there is no such row.
//
// A cancel from Temporal's side, be it the signal or Temporal's own request,
// becomes a cancel request on the row and never an abort.
func Job(root workflow.Context, in wire.JobInput) error {
	ctx, stop := workflow.NewDisconnectedContext(root)
	defer stop()
	j := newJob(ctx, root, in)
	for {
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() && !j.cancelPending() {
			return workflow.NewContinueAsNewError(ctx, berth.WorkflowJob, in)
		}
		view, err := j.read(ctx, berth.ActivityReserve)
		if err == nil && view.State.HoldsCapacity() {
			view.State, err = j.attempt(ctx, view)
		}
		switch {
		case isNotFound(err):
			return err
		case err != nil:
			j.pause(ctx, err.Error())
		case view.State.Terminal():
			j.drain(j.poke)
			j.drain(j.cancel)
			return nil
		case view.State.Waiting():
			j.pauses = 0
			j.wait(ctx, view)
		}
	}
}

// job is what one run of the workflow knows beside the row: how news reach it,
// and how often in a row it had to pause.
type job struct {
	id     berth.JobID
	root   workflow.Context // canceled when Temporal is asked to cancel
	poke   workflow.ReceiveChannel
	cancel workflow.ReceiveChannel
	asked  bool // to cancel
	told   bool // the row was
	pauses int
}

func newJob(ctx, root workflow.Context, in wire.JobInput) *job {
	return &job{
		id:     in.Job,
		root:   root,
		poke:   workflow.GetSignalChannel(ctx, berth.SignalPoke),
		cancel: workflow.GetSignalChannel(ctx, berth.SignalCancel),
	}
}

// read returns the job as the row has it, by one step. A cancel that has come
// is put on the row first, in the same step.
func (j *job) read(ctx workflow.Context, activity string) (wire.JobView, error) {
	j.drain(j.poke) // what they tell of is about to be read
	if !j.cancelPending() {
		return step[wire.JobView](ctx, activity, j.id)
	}
	view, err := step[wire.JobView](ctx, berth.ActivityRequestCancel, j.id)
	j.told = err == nil
	return view, err
}

// attempt runs the members of a grant and settles it. It returns where the job
// stands then, as far as that is known: the row is read again anyway.
func (j *job) attempt(ctx workflow.Context, view wire.JobView) (berth.State, error) {
	workflow.SetCurrentDetails(ctx, describe(view))
	if ended, err := j.runRanks(ctx, view); err != nil || !ended {
		return view.State, err
	}
	result, err := step[wire.SettleResult](ctx, berth.ActivitySettle, j.id, view.Attempt)
	switch {
	case err != nil:
		return view.State, err
	case result.NotReady:
		j.pause(ctx, fmt.Sprintf("attempt %d has not ended in the row yet", view.Attempt))
		return view.State, nil
	case result.Next.Terminal():
		return result.Next, nil
	}
	j.pauses = 0
	return view.State, nil // reserve anew
}

// wait blocks until something is said about the job. No timer stands beside it:
// the leader's reconciler repeats a poke that was lost.
func (j *job) wait(ctx workflow.Context, view wire.JobView) {
	workflow.SetCurrentDetails(ctx, string(view.State)+": waits for its grant")
	s := workflow.NewSelector(ctx)
	j.listen(s, func() {})
	s.Select(ctx)
}

// pause waits after something that should not have been, longer each time that
// it happens in a row. News end it early.
func (j *job) pause(ctx workflow.Context, why string) {
	workflow.GetLogger(ctx).Warn("workflow pauses", "job_id", j.id, "pauses", j.pauses, "reason", why)
	workflow.SetCurrentDetails(ctx, "pauses: "+why)
	ctx, stop := workflow.WithCancel(ctx)
	defer stop()
	s := workflow.NewSelector(ctx)
	j.listen(s, func() {})
	s.AddFuture(workflow.NewTimer(ctx, backoff(j.pauses)), func(workflow.Future) {})
	j.pauses++
	s.Select(ctx)
}

// listen adds to a selector what may be said about the job: a poke, and a
// cancel, which the next read puts on the row.
func (j *job) listen(s workflow.Selector, poked func()) {
	s.AddReceive(j.poke, func(workflow.ReceiveChannel, bool) {
		j.drain(j.poke)
		poked()
	})
	s.AddReceive(j.cancel, func(workflow.ReceiveChannel, bool) {
		j.drain(j.cancel)
		j.asked = true
	})
	if j.root.Err() == nil { // else it stays ready for ever
		s.AddReceive(j.root.Done(), func(c workflow.ReceiveChannel, _ bool) {
			c.ReceiveAsync(nil) // a selector offers what is not taken again and again
			j.asked = true
		})
	}
}

// cancelPending reports whether a cancel has come that the row does not know of.
func (j *job) cancelPending() bool {
	if j.drain(j.cancel) || j.root.Err() != nil {
		j.asked = true
	}
	return j.asked && !j.told
}

// drain empties a channel of signals that say nothing but that they came.
func (j *job) drain(c workflow.ReceiveChannel) (some bool) {
	for c.ReceiveAsync(nil) {
		some = true
	}
	return some
}

const (
	firstPause = time.Second
	maxPause   = 30 * time.Second
)

// backoff is the pause after n others, doubling.
func backoff(n int) time.Duration {
	return min(firstPause<<min(n, 10), maxPause)
}
