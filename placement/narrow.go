package placement

import "time"

// pruner knows the classes of which no job can be decided in this plan, so that a
// plan for a full cluster does not look at every waiting job.
type pruner struct {
	*moment
	policy       *Policy
	snapshot     *Snapshot
	shares       *shares
	turn         *turn
	placer       *placer
	reservations *reservations
	nominations  *nominations
	preemption   *preemption
	explain      func(*class) // nil: explanations are not wanted

	narrowed bool     // see narrow
	probed   classSet // classes that fruitless has probed since their latest start
}

// shortest returns the shortest time limit of the waiting jobs of a class; ok is
// false if none has one.
func (r *pruner) shortest(c *class) (limit time.Duration, ok bool) {
	return r.snapshot.queue.of(c).shortest()
}

// unprobe notes that a job of the class has started.
func (r *pruner) unprobe(c *class) { r.probed.drop(c.number) }

// maxSkipped is after how many lines passed over it is worth a look which classes
// have no place any more.
const maxSkipped = 8192

// narrow ends the look at classes without a place once all reserved starts and
// all claims are given: nothing can be done for their jobs any more in this plan,
// since room only gets less by what starts. The others go on as if those were not
// there; only the first job of a tenant with quotas is looked at whatever its
// class, to see who waits for them. Of 100,000 jobs that wait for a full cluster,
// few are left.
func (r *pruner) narrow() {
	if r.nominations.repairs || r.reservations.heads < r.policy.Backfill || r.preemption.searches > 0 ||
		r.narrowed && r.turn.skipped < maxSkipped {
		return // of gangs without a place each is looked at while room is kept for repairs
	}
	again := r.narrowed
	r.narrowed, r.turn.skipped = true, 0
	var alive []*class
	lines, left := 0, 0
	fitting := map[likeness]*class{} // the one that asks for most, of those looked at
	for i, c := range r.snapshot.cluster.roster {
		if again { // most that are left have a place still
			c = r.snapshot.cluster.roster[len(r.snapshot.cluster.roster)-1-i]
		}
		if r.snapshot.queue.of(c).ready == 0 {
			continue
		}
		lines += len(r.snapshot.queue.of(c).lines)
		if r.turn.bygone.has(c.number) {
			continue
		}
		r.snapshot.cluster.settle(c) // what it is like depends on the kinds there are
		if o := fitting[c.like]; o != nil && !r.placer.closed(c) && o.members() >= c.members() && o.asksForAll(c) {
			alive, left = append(alive, c), left+len(r.snapshot.queue.of(c).lines)
			continue
		}
		if !r.closed(c) && !r.dead(c) {
			if !r.placer.closed(c) {
				fitting[c.like] = c
			}
			alive, left = append(alive, c), left+len(r.snapshot.queue.of(c).lines)
			continue
		}
		if r.explain != nil && !r.placer.closed(c) {
			r.explain(c)
		}
		r.shut(c)
	}
	if left > lines/16 { // passing over the others costs less than beginning all of these
		r.turn.dropClosed()
		return
	}
	r.turn.keepOnly(alive)
}

// dead reports whether no job of the class has a place: not now and, since room
// only gets less by what starts, not later in the plan.
func (r *pruner) dead(c *class) bool {
	if !r.placer.closed(c) && !r.placer.barren(c) {
		return false
	}
	if r.nominations.unmet > 0 && r.nominations.classes[c] {
		return false
	}
	limit, ok := r.shortest(c)
	if !ok || r.tooLong(c, limit) {
		return true
	}
	r.placer.end = r.now.Add(limit)
	_, ok = r.placer.brief(&search{class: c})
	return !ok
}

// shut closes a class of which no job has a place.
func (r *pruner) shut(c *class) {
	var end time.Time
	if limit, ok := r.shortest(c); ok {
		end = r.now.Add(limit)
	}
	r.placer.close(c, end)
}

// useless reports whether a job is of a class that had no place and cannot have
// one in room that is held for others either, at a time when nothing else is
// left to do for it.
func (r *pruner) useless(e *entry) bool {
	c := e.class
	if !r.placer.closed(c) || r.reservations.heads < r.policy.Backfill || r.preemption.searches > 0 ||
		r.nominations.marks[e.ID] != nil {
		return false
	}
	return e.limit <= 0 || r.tooLong(c, e.limit)
}

// closed reports whether no job of the class is worth a look in this plan.
func (r *pruner) closed(c *class) bool {
	if r.turn.bygone.has(c.number) {
		return true
	}
	if !r.placer.closed(c) || r.nominations.unmet > 0 && r.nominations.classes[c] ||
		r.reservations.heads < r.policy.Backfill || r.preemption.searches > 0 {
		return false
	}
	if limit, ok := r.shortest(c); !ok || r.tooLong(c, limit) || r.fruitless(c, limit) {
		r.turn.bygone.put(c.number)
		return true
	}
	return false
}

// fruitless looks whether the shortest job of the class, by its time limit, fits into
// room that is held for others; if not, no job of the class does.
func (r *pruner) fruitless(c *class, limit time.Duration) bool {
	if r.probed.has(c.number) {
		return false
	}
	r.probed.put(c.number)
	r.placer.end = r.now.Add(limit)
	if _, ok := r.placer.brief(&search{class: c}); ok {
		return false
	}
	r.placer.close(c, r.placer.end)
	return true
}

// tooLong reports whether a job of the class that may run for so long cannot be
// over before room that is held for others is needed, or no earlier than one of
// its class that had no place.
func (r *pruner) tooLong(c *class, limit time.Duration) bool {
	end := r.now.Add(limit)
	return end.After(r.reservations.longest) || r.placer.refused(c, end)
}
