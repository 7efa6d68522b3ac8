package placement

import (
	"time"

	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/placement/preempt"
	"berth/placement/queue"
)

// pruner finds the classes of which no job can be decided in this plan, so that a plan
// for a full cluster skips most waiting jobs.
type pruner struct {
	*cluster.Moment
	policy       *queue.Policy
	snapshot     *Snapshot
	shares       *queue.Shares
	turn         *queue.Turn
	placer       *fit.Placer
	reservations *backfill.Reservations
	nominations  *preempt.Nominations
	preemption   *preempt.Search
	explain      func(*cluster.Class) // nil: no explanations

	narrowed bool           // narrow has closed classes in this plan
	probed   queue.ClassSet // classes that fruitless has probed since their latest start
}

// shortest returns the shortest time limit of the waiting jobs of a class; ok is
// false if none has one.
func (r *pruner) shortest(c *cluster.Class) (limit time.Duration, ok bool) {
	return r.snapshot.queue.Of(c).Shortest()
}

// searchesFor reports whether the plan may still search victims for some job of the class. Once false, the answer stays
// false for the plan.
func (r *pruner) searchesFor(c *cluster.Class) bool {
	limit, _ := r.shortest(c)
	return r.preemption.Searches > 0 || r.preemption.MayYield(c, limit)
}

// unprobe lets fruitless probe the class again, after a start of one of its jobs.
func (r *pruner) unprobe(c *cluster.Class) { r.probed.Drop(c.Number) }

// maxSkipped is the number of skipped lines after which narrow checks again for classes
// that have run out of room.
const maxSkipped = 8192

// narrow drops the lines of classes without room, once all reserved starts and all
// preemptions of the plan are spent. Nothing more can be done for their jobs in this
// plan, since each start only reduces the room. The first job of a tenant with quotas
// is still examined, even if its class is closed, to find the tenants that wait for
// their quota. Of 100,000 jobs that wait for a full cluster, few remain.
func (r *pruner) narrow() {
	if r.nominations.Repairs || r.reservations.Heads < r.policy.Backfill || r.preemption.Searches > 0 ||
		r.narrowed && r.turn.Skipped < maxSkipped {
		return // while capacity is kept for repairs, Yield needs to see each blocked gang
	}
	again := r.narrowed
	r.narrowed, r.turn.Skipped = true, 0
	var alive []*cluster.Class
	lines, left := 0, 0
	fitting := map[cluster.Likeness]*cluster.Class{} // the largest class found to fit, by likeness
	for i, c := range r.snapshot.cluster.BySize {
		if again { // most remaining classes still fit: a large one spares the search for smaller ones
			c = r.snapshot.cluster.BySize[len(r.snapshot.cluster.BySize)-1-i]
		}
		if r.snapshot.queue.Of(c).Ready == 0 {
			continue
		}
		lines += len(r.snapshot.queue.Of(c).Lines)
		if r.turn.Bygone.Has(c.Number) {
			continue
		}
		if r.searchesFor(c) {
			alive, left = append(alive, c), left+len(r.snapshot.queue.Of(c).Lines)
			continue
		}
		r.snapshot.cluster.Settle(c) // updates c.Like, which depends on the existing kinds
		if o := fitting[c.Like]; o != nil && !r.placer.Closed(c) && c.Unlike() == nil && o.Members() >= c.Members() &&
			fit.AsksForAll(o, c) {
			alive, left = append(alive, c), left+len(r.snapshot.queue.Of(c).Lines)
			continue
		}
		if !r.Closed(c) && !r.dead(c) {
			if !r.placer.Closed(c) && c.Unlike() == nil {
				fitting[c.Like] = c
			}
			alive, left = append(alive, c), left+len(r.snapshot.queue.Of(c).Lines)
			continue
		}
		if r.explain != nil && !r.placer.Closed(c) {
			r.explain(c)
		}
		r.shut(c)
	}
	if left > lines/16 { // skipping the other lines costs less than starting a walk of all these
		r.turn.DropClosed()
		return
	}
	r.turn.KeepOnly(alive)
}

// dead reports whether no job of the class fits, now or later in the plan: starts only
// reduce the room. A job with a short time limit may still fit into held capacity, so
// dead tries the shortest one. A job with alternatives fits if any open one does.
func (r *pruner) dead(c *cluster.Class) bool {
	if r.nominations.Unmet > 0 && r.nominations.Classes[c] {
		return false
	}
	for _, o := range searches(c) {
		r.snapshot.cluster.Settle(o)
		if !r.deadAs(o, c) {
			return false
		}
	}
	return true
}

// deadAs reports whether no job of the class fits with the request of o, see dead.
func (r *pruner) deadAs(o, c *cluster.Class) bool {
	if !r.placer.Closed(o) && !r.placer.Barren(o) {
		return false
	}
	limit, ok := r.shortest(c)
	if !ok || r.tooLong(o, limit) {
		return true
	}
	r.placer.End = r.Now.Add(limit)
	return !r.placer.BriefAny(o)
}

// searches lists the classes under which jobs of a class are placed: the class itself, which has the
// request in force, and its other open alternatives.
func searches(c *cluster.Class) []*cluster.Class {
	list := make([]*cluster.Class, 1, 1+len(c.Choices))
	list[0] = c
	for i, o := range c.Choices {
		if i != c.InForce {
			list = append(list, o)
		}
	}
	return list
}

// shut closes a class for the rest of the plan, since dead has found no room for its jobs.
func (r *pruner) shut(c *cluster.Class) {
	var end time.Time
	if limit, ok := r.shortest(c); ok {
		end = r.Now.Add(limit)
	}
	r.placer.Close(c, end)
}

// Useless reports whether the plan can do nothing for a job. This is so if the job's class
// had no room, the job runs too long for capacity that is held for other jobs, the plan
// has no reserved starts and preemptions left, and the job has no nomination.
func (r *pruner) Useless(e *queue.Entry) bool {
	c := e.Class
	stuck := e.Limit > 0 && r.placer.Stuck(c, r.Now.Add(e.Limit))
	if !r.placer.Closed(c) && !stuck || r.reservations.Heads < r.policy.Backfill || r.preemption.Searches > 0 ||
		r.preemption.MayYield(c, e.TimeLimit) || r.nominations.Marks[e.ID] != nil {
		return false
	}
	return stuck || e.Limit <= 0 || r.tooLong(c, e.Limit)
}

// Closed reports whether this plan can do nothing more for any job of the class. Once
// true, the answer stays true for the plan and is cached in turn.Bygone.
func (r *pruner) Closed(c *cluster.Class) bool {
	if r.turn.Bygone.Has(c.Number) {
		return true
	}
	if !r.placer.Closed(c) || r.nominations.Unmet > 0 && r.nominations.Classes[c] ||
		r.reservations.Heads < r.policy.Backfill || r.searchesFor(c) {
		return false
	}
	if limit, ok := r.shortest(c); !ok || r.tooLong(c, limit) || r.fruitless(c, limit) {
		r.turn.Bygone.Put(c.Number)
		return true
	}
	return false
}

// fruitless reports whether not even the job of the class with the shortest time limit
// fits into capacity that is held for other jobs. It answers false for a class that it
// has probed since the class's latest start, to bound the searches.
func (r *pruner) fruitless(c *cluster.Class, limit time.Duration) bool {
	if r.probed.Has(c.Number) {
		return false
	}
	r.probed.Put(c.Number)
	r.placer.End = r.Now.Add(limit)
	for _, o := range searches(c) {
		if r.placer.BriefAny(o) {
			return false
		}
	}
	r.placer.Close(c, r.placer.End)
	return true
}

// tooLong reports whether a job of the class with that time limit cannot use capacity
// that is held for other jobs. The job would end after the latest time at which such
// capacity is needed, or no earlier than a job of the class that had no room.
func (r *pruner) tooLong(c *cluster.Class, limit time.Duration) bool {
	end := r.Now.Add(limit)
	return end.After(r.reservations.Longest) || r.placer.Refused(c, end)
}
