package scheduler

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"berth"
	"berth/db"
)

// endsEvery is how often the leader looks for ends that no workflow acts on. The
// read costs what has ended and is not settled, a few rows.
const endsEvery = time.Second

// settlers is how many unheard ends the leader settles at once. settleLimit bounds a
// pass, so that a row that is locked for long does not keep it from pokes.
const (
	settlers    = 4
	settleLimit = 10 * time.Second
)

// ends looks after members that ended a while ago and on whose end no workflow has
// acted. Every replica pokes the workflows of the ends that it recorded, earlier than
// the leader looks. The leader pokes those of replicas that died since, and of replicas
// of an older version.
//
// A poke takes effect when a worker takes the workflow's task. If Temporal gave that
// task to a worker that is gone, the next one gets it 10 s later. So the leader also
// settles the attempts from the rows, as the workflow's own step would; the workflow
// finds them settled when it comes.
type ends struct {
	*Scheduler
	pace pace
}

func (e *ends) run(ctx context.Context) error {
	for sleep(ctx, endsEvery) {
		jobs, err := e.DB.UnheardFor(ctx, e.Ages.Unheard, passLimit)
		if err != nil {
			if ctx.Err() == nil {
				e.Logger.Warn("ends not read, will retry", "err", err)
			}
			continue
		}
		e.poke(jobs, time.Now())
		e.settle(ctx, jobs)
	}
	return ctx.Err()
}

// poke pokes each job at once, and again in growing pauses while it stays as it is.
func (e *ends) poke(jobs []db.Aged, now time.Time) {
	poked := 0
	for _, j := range jobs {
		if e.pace.due("unheard", j, now) {
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
	var settled, stopped atomic.Int64
	var g errgroup.Group
	g.SetLimit(settlers)
	for _, j := range jobs {
		g.Go(func() error {
			result, err := e.Settler.Settle(ctx, j.ID, j.Attempt)
			switch {
			case err == nil && !result.NotReady:
				settled.Add(1)
			case err == nil:
				var some bool
				if some, err = e.DB.StopAttempt(ctx, j.ID, j.Attempt); some {
					stopped.Add(1)
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
	e.did("unheard_settled", int(settled.Load()))
	e.did("unheard_stopped", int(stopped.Load()))
}
