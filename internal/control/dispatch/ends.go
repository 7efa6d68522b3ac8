package dispatch

import (
	"context"
	"time"

	"berth"
	"berth/db"
)

// This process looks again at the ends that it recorded. By then the activity that waited for the
// member has reported the end to the workflow, if such an activity exists. A workflow that has
// not acted on the end is poked:
//
//	age of the end  Temporal         unheard ends  action
//	endLook         answers quickly  a few         pokes: their waiters are lost
//	endLook         otherwise                      nothing yet: Temporal is behind, and a
//	                                               poke would only add to its work
//	endPatience     answers quickly  any           pokes
//	endPatience     otherwise                      nothing: the leader settles, and pokes later
//
// The leader finds the ends of a process that died, and settles attempts that no workflow has
// settled at that age.
const (
	endLook     = time.Second            // age of an end at the first look
	endPatience = 3 * time.Second        // age of an end at the second look
	endPause    = 500 * time.Millisecond // least time between two looks
	maxEnds     = 100_000                // ends that are remembered; more are left to the leader

	// A workflow acts on an end after some three calls to Temporal and one look at the
	// database. With calls as quick as this, few ends are unheard at endLook.
	quickCall  = 200 * time.Millisecond
	fewUnheard = 16
)

// recorded is an end that this process recorded.
type recorded struct {
	alloc berth.AllocationID
	at    time.Time
}

// endQueue holds recorded ends, the oldest first.
type endQueue struct {
	fresh []recorded // not looked at yet
	late  []recorded // unheard at the first look, perhaps
}

// takeOlder removes the ends of at least that age from a queue and returns the removed ends.
func takeOlder(queue *[]recorded, age time.Duration) []recorded {
	n := 0
	for n < len(*queue) && time.Since((*queue)[n].at) >= age {
		n++
	}
	old := (*queue)[:n:n]
	*queue = (*queue)[n:]
	return old
}

// watchEnds pokes workflows that have not acted on ends which this process recorded.
func (d *Dispatcher) watchEnds(ctx context.Context) {
	hints := d.db.Hub().EndHints(db.Here)
	defer hints.Close()
	var queue endQueue
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hints.News():
			allocs, _ := hints.Take() // the leader finds missed hints
			if len(queue.fresh)+len(queue.late) == 0 && len(allocs) > 0 {
				timer.Reset(d.opts.EndLook)
			}
			now := time.Now()
			for _, id := range allocs[:min(len(allocs), maxEnds-len(queue.fresh)-len(queue.late))] {
				queue.fresh = append(queue.fresh, recorded{id, now})
			}
		case <-timer.C:
			d.pokeUnheard(ctx, &queue)
			if at, ok := d.nextLook(queue); ok {
				timer.Reset(max(endPause, time.Until(at)))
			}
		}
	}
}

// nextLook returns when the next end is old enough for a look, and false without ends.
func (d *Dispatcher) nextLook(q endQueue) (at time.Time, ok bool) {
	if len(q.fresh) > 0 {
		at, ok = q.fresh[0].at.Add(d.opts.EndLook), true
	}
	if len(q.late) > 0 {
		if late := q.late[0].at.Add(d.opts.EndPatience); !ok || late.Before(at) {
			at, ok = late, true
		}
	}
	return at, ok
}

// pokeUnheard takes the ends that are old enough off the queue, and pokes workflows that
// have not acted on their end.
func (d *Dispatcher) pokeUnheard(ctx context.Context, queue *endQueue) {
	first := takeOlder(&queue.fresh, d.opts.EndLook)
	stats := d.limiter.Stats()
	quick := stats.Typical <= quickCall && !stats.Binding()
	if quick {
		jobs, ok := d.unheard(ctx, first)
		if ok && len(jobs) <= fewUnheard {
			d.Poke(jobs...)
			first = nil
		}
	}
	queue.late = append(queue.late, first...)
	late := takeOlder(&queue.late, d.opts.EndPatience)
	if !quick {
		return
	}
	jobs, _ := d.unheard(ctx, late)
	d.Poke(jobs...)
}

// unheard returns the jobs of ends on which no workflow has acted yet. It returns false if
// the database cannot be read; then the leader looks later.
func (d *Dispatcher) unheard(ctx context.Context, ends []recorded) ([]berth.JobID, bool) {
	if len(ends) == 0 {
		return nil, true
	}
	allocs := make([]berth.AllocationID, 0, len(ends))
	for _, e := range ends {
		allocs = append(allocs, e.alloc)
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	jobs, err := d.db.Unheard(ctx, allocs)
	if err != nil {
		if ctx.Err() == nil {
			d.log.Warn("cannot read ended jobs, the leader will reconcile them", "ends", len(ends), "err", err)
		}
		return nil, false
	}
	if len(jobs) > 0 {
		d.log.Debug("workflows late in settling ended jobs", "jobs", len(jobs))
	}
	return jobs, true
}
