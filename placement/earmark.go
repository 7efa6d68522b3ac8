package placement

import (
	"slices"
	"strings"

	"berth"
)

// mark is an earmark in a plan.
type mark struct {
	Earmark
	node   *node
	grant  berth.Grant // what was free of it and is kept; none while victim holds it
	victim *holder
}

// mark keeps what is earmarked from all others, and lists the earmarks that
// nobody needs any more.
func (r *run) mark() {
	s := r.snapshot
	if len(s.earmarks) == 0 {
		return
	}
	r.marks = map[berth.JobID][]mark{}
	for _, m := range s.earmarks {
		e, n := s.jobs[m.For], s.nodes[m.Machine]
		switch {
		case e == nil && n != nil && m.Repair && s.running[m.For] != nil:
			r.withhold(n, m) // the rest of its gang stops
			continue
		case e == nil, n == nil, !m.ExpiresAt.IsZero() && !m.ExpiresAt.After(r.now):
			r.plan.Release = append(r.plan.Release, m)
			continue
		case e.assumed:
			continue // it has its room
		}
		x := mark{Earmark: m, node: n, grant: berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: m.Capacity, GPUs: m.GPUs}}
		if h := s.running[m.Victim]; h != nil && slices.Contains(h.machines, m.Machine) {
			x.victim = h
			if at, ok := r.ends(h); ok && n.Placeable() {
				r.keep(n, reservation{at: r.from(at), grant: x.grant, until: r.leaves(r.from(at), e)})
			}
		} else {
			x.grant = clamp(n, x.grant)
			r.move(n, func() { n.subtract(x.grant) })
			r.hold(n, &holder{Running: Running{Job: e.ID, Ranks: []berth.Grant{x.grant}, StartedAt: r.now, TimeLimit: e.TimeLimit, Remaining: e.Remaining}})
		}
		e.class.marked = r.number
		r.repairs = r.repairs || m.Repair
		r.marks[m.For] = append(r.marks[m.For], x)
		r.promises[m.Victim] = append(r.promises[m.Victim], m)
	}
	r.unmet = len(r.marks)
}

// lift gives a job the room that is kept for it.
func (r *run) lift(marks []mark) {
	for _, m := range marks {
		if m.victim == nil {
			r.move(m.node, func() { m.node.add(m.grant) })
		}
	}
}

// restore keeps it for the job again.
func (r *run) restore(marks []mark) {
	for _, m := range marks {
		if m.victim == nil {
			r.move(m.node, func() { m.node.subtract(m.grant) })
		}
	}
}

// awaits reports whether the job has room as soon as its victims have stopped.
func (r *run) awaits(e *entry) bool {
	marks := r.marks[e.ID]
	if len(marks) == 0 {
		return false
	}
	c, start := e.class, len(r.taken)
	defer c.open()()
	r.lift(marks)
	for _, m := range marks {
		if m.victim != nil {
			r.give(m.node, m.grant)
		}
	}
	fits := false
	for _, group := range r.groups(c) {
		if _, fits = r.gang(c, nil, group); fits {
			break
		}
	}
	r.undo(start)
	r.restore(marks)
	return fits
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

// grant is the amount as a grant, as far as the machine ever has it.
func (a amount) grant(n *node) berth.Grant {
	return a.within(&node{Machine: n.Machine, free: n.Total, gpus: slices.Repeat([]int64{whole}, len(n.GPUs))})
}

// draw takes from what is left as much as a grant can give.
func (n *node) draw(left *amount, from berth.Grant) berth.Grant {
	take := func(x *int64, y int64) int64 {
		d := max(0, min(*x, y))
		*x -= d
		return d
	}
	got := berth.Grant{Machine: n.ID, Capacity: berth.Capacity{
		CPUMilli: take(&left.CPUMilli, from.Capacity.CPUMilli), MemoryMiB: take(&left.MemoryMiB, from.Capacity.MemoryMiB),
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
