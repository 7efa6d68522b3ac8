package placement

import (
	"slices"
	"strings"

	"berth"
)

// nominations is the capacity nominated for single jobs: it was free, or victims
// release it. The engine keeps it for those jobs alone.
type nominations struct {
	*moment
	policy       *Policy
	cluster      *cluster
	ledger       *ledger
	placer       *placer
	reservations *reservations

	marks    map[berth.JobID][]mark
	classes  map[*class]bool           // of the jobs with nominations
	unmet    int                       // jobs with nominations that are still to be decided
	repairs  bool                      // some nominations keep a gang's own capacity
	promises map[berth.JobID][]Earmark // by victim
	released []Earmark                 // no job needs them any longer
	written  []Earmark                 // of this plan
}

// newNominations returns the nominations of a plan, none so far.
func newNominations(at *moment, policy *Policy, l *ledger, p *placer, r *reservations) *nominations {
	return &nominations{
		moment: at, policy: policy, cluster: l.cluster, ledger: l, placer: p, reservations: r,
		promises: map[berth.JobID][]Earmark{},
	}
}

// mark is a nomination in a plan.
type mark struct {
	Earmark
	node   *node
	grant  berth.Grant // the part that was free and is kept; none while victim holds it
	victim *holder
}

// load keeps the nominated capacity from all other jobs, and lists the nominations
// that no job needs any longer.
func (r *nominations) load(list []Earmark, q *queue) {
	if len(list) == 0 {
		return
	}
	r.marks, r.classes = map[berth.JobID][]mark{}, map[*class]bool{}
	for _, m := range list {
		e, n := q.jobs[m.For], r.cluster.nodes[m.Machine]
		switch {
		case e == nil && n != nil && m.Repair && r.cluster.running[m.For] != nil:
			r.withhold(n, m) // the rest of its gang stops
			continue
		case e == nil, n == nil, !m.ExpiresAt.IsZero() && !m.ExpiresAt.After(r.now):
			r.released = append(r.released, m)
			continue
		case e.assumed:
			continue // it has its room
		}
		r.add(e, n, m)
	}
	r.unmet = len(r.marks)
}

// add keeps one nomination for a job that waits.
func (r *nominations) add(e *entry, n *node, m Earmark) {
	x := mark{Earmark: m, node: n,
		grant: berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: m.Capacity, GPUs: m.GPUs}}
	if h := r.cluster.running[m.Victim]; h != nil && slices.Contains(h.machines, m.Machine) {
		x.victim = h
		if at, ok := r.reservations.ends(h); ok && n.Placeable() {
			at = r.from(at)
			r.reservations.keep(n, reservation{at: at, grant: x.grant, until: r.reservations.leaves(at, e)})
		}
	} else {
		x.grant = clamp(n, x.grant)
		r.ledger.move(n, func() { n.subtract(x.grant) })
		r.reservations.occupy(n, &holder{Running: Running{
			Job: e.ID, Ranks: []berth.Grant{x.grant}, StartedAt: r.now, TimeLimit: e.TimeLimit, Remaining: e.Remaining,
		}})
	}
	r.classes[e.class] = true
	r.repairs = r.repairs || m.Repair
	r.marks[m.For] = append(r.marks[m.For], x)
	r.promises[m.Victim] = append(r.promises[m.Victim], m)
}

// lift returns the kept capacity of nominations to the ledger.
func (r *nominations) lift(marks []mark) {
	for _, m := range marks {
		if m.victim == nil {
			r.ledger.move(m.node, func() { m.node.add(m.grant) })
		}
	}
}

// restore ends the effect of lift.
func (r *nominations) restore(marks []mark) {
	for _, m := range marks {
		if m.victim == nil {
			r.ledger.move(m.node, func() { m.node.subtract(m.grant) })
		}
	}
}

// awaits reports whether the job has room as soon as its victims have stopped.
func (r *nominations) awaits(e *entry) bool {
	marks := r.marks[e.ID]
	if len(marks) == 0 {
		return false
	}
	c, start := e.class, r.ledger.mark()
	defer r.placer.reopen(c)()
	r.lift(marks)
	for _, m := range marks {
		if m.victim != nil {
			r.ledger.give(m.node, m.grant)
		}
	}
	fits := r.placer.fitsAnywhere(c)
	r.ledger.undo(start)
	r.restore(marks)
	return fits
}

// started drops the nominations of a job that starts: it occupies the capacity
// itself now.
func (r *nominations) started(e *entry) []mark {
	marks := r.marks[e.ID]
	if len(marks) == 0 {
		return nil
	}
	for _, m := range marks {
		r.released = append(r.released, m.Earmark)
		r.reservations.forget(m.node, e.ID)
	}
	delete(r.marks, e.ID)
	return marks
}

// rehold recomputes the holds on the machines of nominations: the job may have
// taken other devices than were kept for it.
func (r *nominations) rehold(marks []mark) {
	for _, m := range marks {
		if h := r.ledger.holdOn(m.node); h != nil {
			r.reservations.rehold(h)
		}
	}
}

// nominate keeps a place of a job for it: the free part from now on, the rest from
// when the victims have stopped.
func (r *nominations) nominate(e *entry, c choice, victims []*holder) {
	for _, m := range earmarks(e, c.grant, c.node, victims) {
		if r.policy.EarmarkFor > 0 {
			m.ExpiresAt = r.now.Add(r.policy.EarmarkFor)
		}
		r.written = append(r.written, m)
		r.promises[m.Victim] = append(r.promises[m.Victim], m)
		g := berth.Grant{Machine: m.Machine, Epoch: c.node.Epoch, Capacity: m.Capacity, GPUs: m.GPUs}
		if m.Victim == "" {
			r.ledger.take(choice{node: c.node, grant: clamp(c.node, g)})
		} else {
			r.reservations.keep(c.node, reservation{at: r.now, grant: g, until: r.reservations.leaves(r.now, e)})
		}
	}
}

// unpromised is the capacity that a stopping holder releases on a machine, less
// the nominations of it.
func (r *nominations) unpromised(n *node, h *holder) berth.Grant {
	var a amount
	for _, g := range h.Ranks {
		if g.Machine == n.ID {
			a = a.plus(n, g, 1)
		}
	}
	for _, m := range r.promises[h.Job] {
		if m.Machine == n.ID {
			a = a.plus(n, berth.Grant{Capacity: m.Capacity, GPUs: m.GPUs}, -1)
		}
	}
	return a.grant(n)
}

// earmarks splits a grant by who gives it: what is free first, then each victim
// in turn.
func earmarks(e *entry, g berth.Grant, n *node, victims []*holder) []Earmark {
	var list []Earmark
	left := amount{}.plus(n, g, 1)
	part := func(from berth.Grant, victim berth.JobID) {
		x := n.draw(&left, from)
		if x.Capacity != (berth.Capacity{}) || len(x.GPUs) > 0 {
			list = append(list, Earmark{For: e.ID, Machine: n.ID, Capacity: x.Capacity, GPUs: x.GPUs, Victim: victim})
		}
	}
	for _, h := range victims {
		for _, v := range h.Ranks {
			if v.Machine == n.ID {
				part(v, h.Job)
			}
		}
	}
	part(left.grant(n), "")
	slices.SortStableFunc(list, func(a, b Earmark) int { return strings.Compare(string(a.Victim), string(b.Victim)) })
	return list
}

// draw takes from what is left as much as a grant can give.
func (n *node) draw(left *amount, from berth.Grant) berth.Grant {
	take := func(x *int64, y int64) int64 {
		d := max(0, min(*x, y))
		*x -= d
		return d
	}
	got := berth.Grant{Machine: n.ID, Capacity: berth.Capacity{
		CPUMilli: take(&left.CPUMilli, from.Capacity.CPUMilli), MemoryMiB: take(&left.MemoryMiB,
			from.Capacity.MemoryMiB),
		DiskMiB: take(&left.DiskMiB, from.Capacity.DiskMiB),
	}}
	for _, d := range from.GPUs {
		i := n.device(d.Index)
		if i < 0 {
			continue
		}
		if milli := take(&left.gpus[i], d.Milli); milli > 0 {
			got.GPUs = append(got.GPUs, berth.DeviceShare{Index: d.Index, Milli: milli})
			got.Capacity.GPUMilli += milli
		}
	}
	return got
}
