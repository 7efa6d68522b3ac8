package scheduler

import (
	"context"
	"time"

	"berth"
)

// After the loss of a replica thousands of members have no waiter. Their ends reach
// their workflows by pokes, so there is time.
const (
	rewaitLimit   = 200  // jobs whose waiters one pass starts again
	unwaitedLimit = 5000 // jobs that one pass reads, including repeated ones that are not yet shared
)

// rewaiter starts waiters again that no replica has. Temporal marks the task of an
// activity as started before a worker has it, and loses tasks between the two: its
// call to do so has a deadline of one second, and a worker's poll may have ended
// meanwhile. Without a repair the activity would be repeated when its heartbeat is
// missed, after wire.WaiterTimeout.
//
// It also pokes workflows that have no waiter because the poke about their grant was lost: a
// leader that dies after its commit sends none, and once the members are claimed, nothing else
// repeats it. A gang that then loses a machine would wait for its barrier.
type rewaiter struct {
	*Scheduler
	pace pace
}

// run makes a pass every ReconcileEvery, but none while Temporal does not answer.
func (w *rewaiter) run(ctx context.Context) error {
	for sleep(ctx, w.ReconcileEvery) {
		if !w.Poker.Healthy() {
			continue
		}
		within, cancel := context.WithTimeout(ctx, w.Ages.Compare)
		err := w.pass(within)
		cancel()
		if err != nil && ctx.Err() == nil {
			w.Logger.Warn("cannot restart lost waiters, will retry", "err", err)
		}
	}
	return ctx.Err()
}

// pass starts lost waiters again, for at most rewaitLimit jobs.
func (w *rewaiter) pass(ctx context.Context) error {
	jobs, err := w.DB.Attempts.Unwaited(ctx, w.Ages.Unwaited, unwaitedLimit)
	if err != nil {
		return err
	}
	w.pace.forget("unwaited", jobs)
	asked, again := 0, 0
	var idle []berth.JobID
	defer func() {
		w.did("waiter_repeated", again)
		w.did("grant_poked", len(idle))
		w.Poker.Poke(idle...)
	}()
	for _, j := range jobs {
		if asked == rewaitLimit {
			break
		}
		if !w.pace.due("unwaited", j, time.Now()) {
			continue
		}
		asked++
		n, unaware, err := w.Workflows.Rewait(ctx, j.ID, w.Ages.Unwaited)
		again += n
		if err != nil {
			return err
		}
		if unaware {
			idle = append(idle, j.ID)
		}
	}
	return nil
}
