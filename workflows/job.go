package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
)

// Job drives one job from its row to its end. A job's failure is a result, with which the
// workflow completes; the workflow fails only if the row does not exist.
//
// A cancel from Temporal's side, either the signal or Temporal's own request, becomes a
// cancel request on the row and never an abort: the disconnected context lets the steps go
// on.
func Job(root workflow.Context, in wire.JobInput) error {
	ctx, stop := workflow.NewDisconnectedContext(root)
	defer stop()
	j := newJob(ctx, root, in)
	for {
		// A cancel that is not on the row yet would be lost with this run.
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() && !j.cancelPending() {
			return workflow.NewContinueAsNewError(ctx, berth.WorkflowJob, in)
		}
		view, err := j.read(ctx, wire.ActivityReserve)
		if err == nil && view.State.HoldsCapacity() {
			view.State, err = j.attempt(ctx, view)
		}
		switch {
		case isNotFound(err):
			return err
		case err != nil:
			j.pause(ctx, err.Error())
		case view.State.Terminal():
			return j.end(ctx, in, view.State)
		case view.State.Waiting():
			j.pauses = 0
			j.wait(ctx, view)
		}
	}
}

// job is the state of one run of the workflow apart from the row: its channels for news,
// the number of pauses in a row, and the number of versioned decisions.
type job struct {
	id     berth.JobID
	root   workflow.Context // canceled when Temporal is asked to cancel
	poke   workflow.ReceiveChannel
	cancel workflow.ReceiveChannel
	asked  bool // a cancel has come
	told   bool // the cancel is on the row
	pauses int

	leadEnds int // decisions after the end of leading members; see stopFollowers
}

func newJob(ctx, root workflow.Context, in wire.JobInput) *job {
	return &job{
		id:     in.Job,
		root:   root,
		poke:   workflow.GetSignalChannel(ctx, berth.SignalPoke),
		cancel: workflow.GetSignalChannel(ctx, berth.SignalCancel),
	}
}

// read returns the job's row, by one step. A pending cancel is written to the row first, in
// the same step.
func (j *job) read(ctx workflow.Context,
	activity wire.Activity[wire.StepInput, wire.JobView]) (wire.JobView, error) {
	j.drain(j.poke) // the following read covers all of them
	if !j.cancelPending() {
		return step(ctx, activity, wire.StepInput{Job: j.id})
	}
	view, err := step(ctx, wire.ActivityRequestCancel, wire.StepInput{Job: j.id})
	j.told = err == nil
	return view, err
}

// attempt runs the members of a grant and settles the attempt. It returns the job's state
// as far as that is known: the row is read again anyway.
func (j *job) attempt(ctx workflow.Context, view wire.JobView) (berth.State, error) {
	workflow.SetCurrentDetails(ctx, describe(view))
	if ended, err := j.runRanks(ctx, view); err != nil || !ended {
		return view.State, err
	}
	result, err := step(ctx, wire.ActivitySettle, wire.AttemptInput{Job: j.id, Attempt: view.Attempt})
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
	return view.State, nil // the next pass reserves again
}

// wait blocks until a poke or a cancel arrives. No timer is needed: the leader's reconciler
// repeats a lost poke.
func (j *job) wait(ctx workflow.Context, view wire.JobView) {
	workflow.SetCurrentDetails(ctx, string(view.State)+": waits for its grant")
	s := workflow.NewSelector(ctx)
	j.listen(s, func() {})
	s.Select(ctx)
}

// pause waits after an unexpected failure, longer each time in a row. A poke or a cancel
// ends the pause early.
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

// listen adds the channels of pokes and cancels to a selector. A cancel is written to the
// row by the next read.
func (j *job) listen(s workflow.Selector, poked func()) {
	s.AddReceive(j.poke, func(workflow.ReceiveChannel, bool) {
		j.drain(j.poke)
		poked()
	})
	s.AddReceive(j.cancel, func(workflow.ReceiveChannel, bool) {
		j.drain(j.cancel)
		j.asked = true
	})
	if j.root.Err() == nil { // a second time the channel would be ready always
		s.AddReceive(j.root.Done(), func(c workflow.ReceiveChannel, _ bool) {
			c.ReceiveAsync(nil) // else the selector would select the same value again
			j.asked = true
		})
	}
}

// cancelPending reports whether a cancel has come that is not on the row yet.
func (j *job) cancelPending() bool {
	if j.drain(j.cancel) || j.root.Err() != nil {
		j.asked = true
	}
	return j.asked && !j.told
}

// drain empties a channel of signals without content. It reports whether the channel had
// any.
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

// backoff returns the pause after n others in a row: doubled each time, from firstPause to
// maxPause.
func backoff(n int) time.Duration {
	return min(firstPause<<min(n, 10), maxPause)
}
