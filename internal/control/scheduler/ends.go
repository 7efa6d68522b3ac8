package scheduler

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"berth"
	"berth/db"
)

// endsEvery is the interval at which the leader looks for ends that no workflow acts
// on. The read costs a few rows: members that have ended and are not settled.
const endsEvery = time.Second

// settlers is the number of unheard ends that the leader settles at once. settleLimit bounds a
// pass, so that a row locked for a long time does not delay the pokes.
const (
	settlers    = 4
	settleLimit = 10 * time.Second
)

// unheardPokes times the age Unheard is the age of an end at which its workflow is poked.
const unheardPokes = 3

// ends handles members that ended a while ago without an act of their workflow. Every
// replica pokes the workflows of the ends that it recorded, earlier than the leader looks.
// The leader settles their attempts from the rows at the age Unheard, as the workflow's own
// step would: so a job that has ended is not shown as running while Temporal is behind, or
// while it waits for a worker that is gone. The workflow finds the attempt settled when it
// comes.
//
// At three times that age the leader pokes the workflow too, whether or not it settled the
// attempt: the waiter that reports the end may be lost. By then most workflows that were
// only behind have ended, and a poke to one that has ended costs Temporal little.
type ends struct {
	*Scheduler
	pace    pace
	settled []lateEnd // jobs with a workflow to poke, the oldest first
}

// lateEnd is a job with an attempt that the leader settled.
type lateEnd struct {
	job berth.JobID
	due time.Time // when its workflow is poked
}

// run makes a pass every endsEvery until the term ends.
func (e *ends) run(ctx context.Context) error {
	for sleep(ctx, endsEvery) {
		jobs, err := e.DB.Attempts.UnheardFor(ctx, e.Ages.Unheard, passLimit)
		if err != nil {
			if ctx.Err() == nil {
				e.Logger.Warn("cannot read ended attempts, will retry", "err", err)
			}
			continue
		}
		e.poke(jobs, time.Now())
		e.settle(ctx, jobs)
	}
	return ctx.Err()
}

// poke pokes the jobs that are late enough, and again in growing pauses while they
// stay as they are. It pokes each settled job once.
func (e *ends) poke(jobs []db.Aged, now time.Time) {
	poked := 0
	for ; len(e.settled) > 0 && !e.settled[0].due.After(now); e.settled = e.settled[1:] {
		e.Poker.Poke(e.settled[0].job)
		poked++
	}
	for _, j := range jobs {
		if j.Age >= unheardPokes*e.Ages.Unheard && e.pace.due("unheard", j, now) {
			e.Poker.Poke(j.ID)
			poked++
		}
	}
	e.pace.forget("unheard", jobs)
	e.did("unheard_poked", poked)
}

// settle closes the attempts of ended jobs, and stops the other members of gangs
// of which one ended badly. Both are steps of the workflow too, in either order.
func (e *ends) settle(ctx context.Context, jobs []db.Aged) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	var mu sync.Mutex
	settled, stopped := 0, 0
	note := func(what *int, j db.Aged) {
		mu.Lock()
		defer mu.Unlock()
		*what++
		if what == &settled {
			e.settled = append(e.settled, lateEnd{j.ID, time.Now().Add((unheardPokes - 1) * e.Ages.Unheard)})
		}
	}
	var g errgroup.Group
	g.SetLimit(settlers)
	for _, j := range jobs {
		g.Go(func() error {
			result, err := e.Settler.Settle(ctx, j.ID, j.Attempt)
			switch {
			case err == nil && !result.NotReady:
				note(&settled, j)
			case err == nil:
				var some bool
				if some, err = e.DB.Attempts.Stop(ctx, j.ID, j.Attempt); some {
					note(&stopped, j)
				}
			}
			// CodeInvalid: the job has gone on.
			if err != nil && ctx.Err() == nil && berth.CodeOf(err) != berth.CodeInvalid {
				e.Logger.Error("cannot settle attempt", "job_id", j.ID, "attempt", j.Attempt, "err", err)
			}
			return nil
		})
	}
	_ = g.Wait() // errors were logged
	e.did("unheard_settled", settled)
	e.did("unheard_stopped", stopped)
}
