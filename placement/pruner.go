package placement

import (
	"time"

	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/placement/preempt"
	"berth/placement/queue"
)

// pruner knows the classes of which no job can be decided in this plan, so that a
// plan for a full cluster does not look at every waiting job.
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
	explain      func(*cluster.Class) // nil: explanations are not wanted

	narrowed bool           // see narrow
	probed   queue.ClassSet // classes that fruitless has probed since their latest start
}

// shortest returns the shortest time limit of the waiting jobs of a class; ok is
// false if none has one.
func (r *pruner) shortest(c *cluster.Class) (limit time.Duration, ok bool) {
	return r.snapshot.queue.Of(c).Shortest()
}

// unprobe notes that a job of the class has started.
func (r *pruner) unprobe(c *cluster.Class) { r.probed.Drop(c.Number) }

// maxSkipped is after how many lines passed over it is worth a look which classes
// have no place any more.
const maxSkipped = 8192

// narrow ends the look at classes without a place once all reserved starts and all
// preemptions of the plan are spent: nothing more can be done for their jobs in this
// plan, since each start only reduces the room. The others go on as if those were not
// there; only the first job of a tenant with quotas is looked at whatever its
// class, to see who waits for them. Of 100,000 jobs that wait for a full cluster,
// few are left.
func (r *pruner) narrow() {
	if r.nominations.Repairs || r.reservations.Heads < r.policy.Backfill || r.preemption.Searches > 0 ||
		r.narrowed && r.turn.Skipped < maxSkipped {
		return // of gangs without a place each is looked at while room is kept for repairs
	}
	again := r.narrowed
	r.narrowed, r.turn.Skipped = true, 0
	var alive []*cluster.Class
	lines, left := 0, 0
	fitting := map[cluster.Likeness]*cluster.Class{} // the one that asks for most, of those looked at
	for i, c := range r.snapshot.cluster.BySize {
		if again { // most that are left have a place still
			c = r.snapshot.cluster.BySize[len(r.snapshot.cluster.BySize)-1-i]
		}
		if r.snapshot.queue.Of(c).Ready == 0 {
			continue
		}
		lines += len(r.snapshot.queue.Of(c).Lines)
		if r.turn.Bygone.Has(c.Number) {
			continue
		}
		r.snapshot.cluster.Settle(c) // what it is like depends on the kinds there are
		if o := fitting[c.Like]; o != nil && !r.placer.Closed(c) && o.Members() >= c.Members() && fit.AsksForAll(o, c) {
			alive, left = append(alive, c), left+len(r.snapshot.queue.Of(c).Lines)
			continue
		}
		if !r.Closed(c) && !r.dead(c) {
			if !r.placer.Closed(c) {
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
	if left > lines/16 { // passing over the others costs less than beginning all of these
		r.turn.DropClosed()
		return
	}
	r.turn.KeepOnly(alive)
}

// dead reports whether no job of the class has a place: not now and, since room
// only gets less by what starts, not later in the plan.
func (r *pruner) dead(c *cluster.Class) bool {
	if !r.placer.Closed(c) && !r.placer.Barren(c) {
		return false
	}
	if r.nominations.Unmet > 0 && r.nominations.Classes[c] {
		return false
	}
	limit, ok := r.shortest(c)
	if !ok || r.tooLong(c, limit) {
		return true
	}
	r.placer.End = r.Now.Add(limit)
	_, ok = r.placer.Brief(&fit.Search{Class: c})
	return !ok
}

// shut closes a class of which no job has a place.
func (r *pruner) shut(c *cluster.Class) {
	var end time.Time
	if limit, ok := r.shortest(c); ok {
		end = r.Now.Add(limit)
	}
	r.placer.Close(c, end)
}

// Useless reports whether a job is of a class that had no place and cannot have
// one in room that is held for others either, at a time when nothing else is
// left to do for it.
func (r *pruner) Useless(e *queue.Entry) bool {
	c := e.Class
	if !r.placer.Closed(c) || r.reservations.Heads < r.policy.Backfill || r.preemption.Searches > 0 ||
		r.nominations.Marks[e.ID] != nil {
		return false
	}
	return e.Limit <= 0 || r.tooLong(c, e.Limit)
}

// Closed reports whether no job of the class is worth a look in this plan.
func (r *pruner) Closed(c *cluster.Class) bool {
	if r.turn.Bygone.Has(c.Number) {
		return true
	}
	if !r.placer.Closed(c) || r.nominations.Unmet > 0 && r.nominations.Classes[c] ||
		r.reservations.Heads < r.policy.Backfill || r.preemption.Searches > 0 {
		return false
	}
	if limit, ok := r.shortest(c); !ok || r.tooLong(c, limit) || r.fruitless(c, limit) {
		r.turn.Bygone.Put(c.Number)
		return true
	}
	return false
}

// fruitless looks whether the shortest job of the class, by its time limit, fits into
// room that is held for others; if not, no job of the class does.
func (r *pruner) fruitless(c *cluster.Class, limit time.Duration) bool {
	if r.probed.Has(c.Number) {
		return false
	}
	r.probed.Put(c.Number)
	r.placer.End = r.Now.Add(limit)
	if _, ok := r.placer.Brief(&fit.Search{Class: c}); ok {
		return false
	}
	r.placer.Close(c, r.placer.End)
	return true
}

// tooLong reports whether a job of the class that may run for so long cannot be
// over before room that is held for others is needed, or no earlier than one of
// its class that had no place.
func (r *pruner) tooLong(c *cluster.Class, limit time.Duration) bool {
	end := r.Now.Add(limit)
	return end.After(r.reservations.Longest) || r.placer.Refused(c, end)
}
