package placement

import (
	"slices"
	"time"

	"berth"
)

// kept is what of a machine is spoken for in a plan: reserved starts, and room
// that victims give up for others.
//
//	free now ─┬─ held: reservations need it at their time; only what ends before may have it
//	          └─ the rest: for everyone (node.free)
type kept struct {
	node     *node
	reserved []reservation // by time
	held     berth.Grant   // taken out of node.free
}

// reservation is room that a job is to have from a time on.
type reservation struct {
	at    time.Time
	grant berth.Grant
	until time.Time // when the job gives it back; zero: not known
	firm  bool      // a start that nothing delays: not an earmark
}

// keep reserves room of a machine, and holds of what is free now as much
// as those that end before do not bring.
func (r *run) keep(n *node, x reservation) {
	k := n.kept
	if k == nil {
		k = &kept{node: n, held: berth.Grant{Machine: n.ID}}
		n.kept = k
		r.keeps = append(r.keeps, k)
	}
	i, _ := slices.BinarySearchFunc(k.reserved, x.at, func(y reservation, t time.Time) int {
		if y.at.After(t) {
			return 1
		}
		return -1
	})
	k.reserved = slices.Insert(k.reserved, i, x)
	if x.at.After(r.longest) {
		r.longest = x.at
	}
	r.rehold(k)
}

// until is when the first reservation begins.
func (k *kept) until() time.Time { return k.reserved[0].at }

// firm reports whether a reserved start counts on who holds room of the machine:
// then nobody else makes them go.
func (k *kept) firm() bool {
	return k != nil && slices.ContainsFunc(k.reserved, func(x reservation) bool { return x.firm })
}

// rehold works out anew what must be held.
func (r *run) rehold(k *kept) {
	n, was := k.node, k.held
	needed := r.needed(k)
	r.move(n, func() {
		n.add(was)
		k.held = needed.within(n)
		n.subtract(k.held)
	})
	if !covers(n, k.held, was) {
		r.widen()
	}
}

// needed is what reservations need of what is free now: the most that is lacking
// at any of their times after those that end before have given back theirs.
func (r *run) needed(k *kept) (out amount) {
	n := k.node
	releases := r.agenda(n)
	for i := 0; i < len(k.reserved); i++ {
		if i+1 < len(k.reserved) && k.reserved[i+1].at.Equal(k.reserved[i].at) {
			continue
		}
		var left amount
		for _, x := range k.reserved[:i+1] {
			if x.until.IsZero() || x.until.After(k.reserved[i].at) {
				left = left.plus(n, x.grant, 1)
			}
		}
		for _, x := range releases {
			if r.from(x.at).After(k.reserved[i].at) {
				break
			}
			left = left.plus(n, *x.grant, -1)
		}
		out = out.most(left)
	}
	return out
}

// covers reports whether a grant has all that another one has.
func covers(n *node, g, o berth.Grant) bool {
	rest := amount{}.plus(n, o, 1).plus(n, g, -1)
	return rest.Capacity.Fits(berth.Capacity{}) && !slices.ContainsFunc(rest.gpus, func(milli int64) bool { return milli > 0 })
}

// widen begins an epoch: somewhere there is more room than before.
func (r *run) widen() {
	r.snapshot.plans++
	r.epoch = r.snapshot.plans
	clear(r.barrens)
}

// move changes what is free of a machine. It is taken out of the tree and put
// back only if it belongs elsewhere then.
func (r *run) move(n *node, change func()) {
	r.touch(n)
	was := n.has
	r.gpus = append(r.gpus[:0], n.gpus...)
	change()
	n.sum()
	if n.leaf.size == 0 || n.has == was && slices.Equal(n.gpus, r.gpus) {
		return
	}
	if now := n.has; now != was {
		n.has, n.free = was, was.Capacity
		n.kind.tree.remove(&n.leaf)
		n.has, n.free = now, now.Capacity
		n.kind.tree.insert(&n.leaf)
	}
	r.snapshot.regroup(n)
}

// touch notes that a machine is other than what was noted of it for the plan.
func (r *run) touch(n *node) {
	if n.touched == r.number {
		return
	}
	n.touched = r.number
	if n.prey != nil {
		n.prey.plan = r.number
	}
	if n.view != nil {
		n.view.plan = r.number
	}
	r.touched = append(r.touched, n)
	if n.kind != nil {
		n.kind.touches(n, r.number)
	}
}

// amount is room of one machine, device by device.
type amount struct {
	berth.Capacity
	gpus []int64
}

func (a amount) plus(n *node, g berth.Grant, times int64) amount {
	if a.gpus == nil {
		a.gpus = make([]int64, len(n.GPUs))
	} else {
		a.gpus = slices.Clone(a.gpus)
	}
	c := g.Capacity
	if times < 0 {
		a.Capacity = a.Capacity.Sub(c)
	} else {
		a.Capacity = a.Capacity.Add(c)
	}
	for _, d := range g.GPUs {
		if i := n.device(d.Index); i >= 0 {
			a.gpus[i] += times * d.Milli
		}
	}
	return a
}

func (a amount) most(b amount) amount {
	a.Capacity = berth.Capacity{
		CPUMilli: max(a.CPUMilli, b.CPUMilli), MemoryMiB: max(a.MemoryMiB, b.MemoryMiB),
		DiskMiB: max(a.DiskMiB, b.DiskMiB), GPUMilli: max(a.GPUMilli, b.GPUMilli),
	}
	if a.gpus == nil {
		a.gpus = make([]int64, len(b.gpus))
	}
	for i, x := range b.gpus {
		a.gpus[i] = max(a.gpus[i], x)
	}
	return a
}

// within is the amount as a grant, no more than is free of the machine.
func (a amount) within(n *node) berth.Grant {
	part := func(x, free int64) int64 { return max(0, min(x, free)) }
	g := berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: berth.Capacity{
		CPUMilli: part(a.CPUMilli, n.free.CPUMilli), MemoryMiB: part(a.MemoryMiB, n.free.MemoryMiB),
		DiskMiB: part(a.DiskMiB, n.free.DiskMiB), GPUMilli: part(a.GPUMilli, n.free.GPUMilli),
	}}
	for i, x := range a.gpus {
		if x = part(x, n.gpus[i]); x > 0 {
			g.GPUs = append(g.GPUs, berth.DeviceShare{Index: n.GPUs[i].Index, Milli: x})
		}
	}
	return g
}

// clamp is the part of a grant that is free.
func clamp(n *node, g berth.Grant) berth.Grant { return amount{}.plus(n, g, 1).within(n) }

// brief looks for a place in held room for one member of a job that ends at
// r.end, before the room is needed.
func (r *run) brief(s *search) (choice, bool) {
	if r.end.IsZero() {
		return choice{}, false
	}
	for _, k := range r.keeps {
		n := k.node
		if r.end.After(k.until()) || n.leaf.size == 0 || !s.allows(n) {
			continue
		}
		i := slices.IndexFunc(s.class.matches, func(m match) bool { return m.kind == n.kind })
		if i < 0 {
			continue
		}
		allowed := s.class.matches[i].devices
		x := r.sketch(n)
		x.add(k.held)
		if devices, ok := s.class.fit(x, allowed); ok {
			return choice{node: n, allowed: allowed, grant: s.class.grant(n, devices), brief: true}, true
		}
	}
	return choice{}, false
}

// sketch is a copy of a machine to try things on, of what is free of it and what
// that needs; it lasts until the next one.
func (r *run) sketch(n *node) *node {
	x := &r.draft
	x.ID, x.GPUs, x.kind, x.variants, x.free = n.ID, n.GPUs, n.kind, n.variants, n.free
	x.gpus = append(x.gpus[:0], n.gpus...)
	return x
}

// release is room that is given back on a machine.
type release struct {
	at    time.Time
	grant *berth.Grant
	by    *holder
}

// agenda lists when those that hold room of a machine give it back, the first
// first; times that are past mean now. Those of whom nothing is known or assumed
// are not in it. It outlasts the plan unless the plan changes who holds room.
func (r *run) agenda(n *node) []release {
	if n.agendaOK && n.agendaFor == r.policy.AssumeRun {
		return n.agenda
	}
	n.agendaOK, n.agendaFor = true, r.policy.AssumeRun
	n.agenda, n.devicesFree = slices.Grow(n.agenda[:0], len(n.on.list)), n.devicesFree[:0]
	add := func(h *holder) {
		at, ok := r.ends(h)
		if !ok {
			return
		}
		for i := range h.Ranks {
			if g := &h.Ranks[i]; g.Machine == n.ID {
				n.agenda = append(n.agenda, release{at, g, h})
			}
		}
	}
	for i := range n.on.list {
		add(n.on.list[i].holder)
	}
	for _, h := range r.fresh[n] {
		add(h)
	}
	slices.SortFunc(n.agenda, func(a, b release) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return compareIDs(a.by.Job, b.by.Job)
	})
	for _, x := range n.agenda {
		for range x.grant.GPUs {
			n.devicesFree = append(n.devicesFree, x.at)
		}
	}
	return n.agenda
}

// ends is when a holder's room is free: at once if this plan tells it to stop.
func (r *run) ends(h *holder) (time.Time, bool) {
	if h.told == r.number {
		return r.now, true
	}
	return h.ends(r.policy.AssumeRun)
}

func compareIDs(a, b berth.JobID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
