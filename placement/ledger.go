package placement

import (
	"slices"
	"time"

	"berth"
)

// moment is the plan under way: its time and its number.
type moment struct {
	now    time.Time
	clock  time.Duration // now, since origin
	number int
}

// from returns t, or now if t is past.
func (m *moment) from(t time.Time) time.Time {
	if t.Before(m.now) {
		return m.now
	}
	return t
}

// ledger is the capacity of a cluster as one plan goes on. It changes the nodes in
// place, so that every search sees what the plan has taken, and finish restores
// them. undo takes back a suffix of the entries.
//
//	free now ─┬─ held: a reserved start needs it later; only a job that ends before may have it
//	          └─ the rest: for everyone (node.free)
type ledger struct {
	*moment
	cluster *cluster
	taken   []taken
	touched []*node // nodes that may differ from their rows
	holds   []*hold
	held    []*hold // by node.index; nil: nothing is held there
	draft   node
	buffer  []int64
	trial   bool // every entry is undone at once, so that nothing is touched
}

// newLedger returns the ledger of a plan, without entries.
func newLedger(at *moment, c *cluster) *ledger { return &ledger{moment: at, cluster: c} }

// newTrial returns a ledger whose entries are all undone at once, outside of any
// plan.
func newTrial(at *moment, c *cluster) *ledger { return &ledger{moment: at, cluster: c, trial: true} }

// taken is one entry: a grant taken from a machine, or given to it.
type taken struct {
	node  *node
	grant berth.Grant
	back  bool         // given
	held  *berth.Grant // hold.grant before, if the entry took from there
}

// hold is capacity of a machine that is free now and needed later.
type hold struct {
	node  *node
	index int         // in ledger.holds
	grant berth.Grant // taken out of node.free
	until time.Time   // the first time at which it is needed
	firm  bool        // a reserved start depends on the machine
}

// choice is a place for one member.
type choice struct {
	node    *node
	allowed uint64 // devices of its kind that the class may use
	grant   berth.Grant
	brief   bool // in held capacity, until that is needed
}

// holdOn returns the hold on a machine; nil if there is none.
func (l *ledger) holdOn(n *node) *hold {
	if n.index >= len(l.held) {
		return nil
	}
	return l.held[n.index]
}

// openHold returns the hold on a machine, and creates an empty one if there is none.
func (l *ledger) openHold(n *node) *hold {
	if len(l.held) == 0 {
		l.held = make([]*hold, l.cluster.extent)
	}
	h := l.held[n.index]
	if h == nil {
		h = &hold{node: n, index: len(l.holds), grant: berth.Grant{Machine: n.ID}}
		l.held[n.index], l.holds = h, append(l.holds, h)
	}
	return h
}

// resize makes a hold as large as needed, as far as that is free.
func (l *ledger) resize(h *hold, needed amount) {
	n := h.node
	l.move(n, func() {
		n.add(h.grant)
		h.grant = needed.within(n)
		n.subtract(h.grant)
	})
}

// isFirm reports whether a reserved start depends on the occupants of a machine:
// then no job may displace them.
func (l *ledger) isFirm(n *node) bool {
	h := l.holdOn(n)
	return h != nil && h.firm
}

// withHeld is the capacity of a machine that is free or held.
func (l *ledger) withHeld(n *node) berth.Capacity {
	if h := l.holdOn(n); h != nil {
		return n.free.Add(h.grant.Capacity)
	}
	return n.free
}

// take takes a choice for the rest of the plan.
func (l *ledger) take(c choice) {
	n := c.node
	t := taken{node: n, grant: c.grant}
	l.move(n, func() {
		if c.brief {
			h := l.holdOn(n)
			was := h.grant
			t.held = &was
			n.add(was)
			n.subtract(c.grant)
			h.grant = amount{}.plus(n, was, 1).plus(n, c.grant, -1).within(n)
			n.subtract(h.grant)
			return
		}
		n.subtract(c.grant)
	})
	l.taken = append(l.taken, t)
}

// give adds capacity to a machine as if it were free.
func (l *ledger) give(n *node, list ...berth.Grant) {
	l.move(n, func() { n.addAll(list) })
	for _, g := range list {
		l.taken = append(l.taken, taken{node: n, grant: g, back: true})
	}
}

// mark returns the position of the next entry, for undo.
func (l *ledger) mark() int { return len(l.taken) }

// undo reverts the entries since a mark.
func (l *ledger) undo(mark int) {
	for i := len(l.taken) - 1; i >= mark; {
		n := l.taken[i].node
		l.move(n, func() {
			for ; i >= mark && l.taken[i].node == n; i-- {
				l.revert(&l.taken[i])
			}
		})
	}
	l.taken = l.taken[:mark]
}

func (l *ledger) revert(t *taken) {
	n := t.node
	switch {
	case t.back:
		n.subtract(t.grant)
	case t.held != nil:
		h := l.holdOn(n)
		n.add(h.grant)
		n.add(t.grant)
		h.grant = *t.held
		n.subtract(*t.held)
	default:
		n.add(t.grant)
	}
}

// move changes the free capacity of a machine and keeps its place in the tree.
func (l *ledger) move(n *node, change func()) {
	l.touch(n)
	was := n.has
	l.buffer = append(l.buffer[:0], n.gpus...)
	change()
	n.sum()
	if !n.offered() || n.has == was && slices.Equal(n.gpus, l.buffer) {
		return
	}
	if now := n.has; now != was {
		n.has, n.free = was, was.Capacity
		n.kind.tree.remove(&n.leaf)
		n.has, n.free = now, now.Capacity
		n.kind.tree.insert(&n.leaf)
	}
	if o := l.cluster.observer; o != nil {
		o.enter(n)
	}
}

// addAll adds each grant of a list to the free capacity.
func (n *node) addAll(list []berth.Grant) {
	for _, g := range list {
		n.add(g)
	}
}

// touch notes that the plan has changed a machine or its occupants, so that
// entries about it in lists of its kind are void for the plan.
func (l *ledger) touch(n *node) {
	if l.trial || n.touched == l.number {
		return
	}
	n.touched = l.number
	l.touched = append(l.touched, n)
	if n.kind != nil {
		n.kind.touch(n, l.number)
	}
}

// finish restores every machine.
func (l *ledger) finish() {
	for _, n := range l.touched {
		l.move(n, n.recount)
	}
}

// sketch copies the free capacity of a machine, to try changes on. The copy lasts
// until the next call.
func (l *ledger) sketch(n *node) *node {
	x := &l.draft
	x.ID, x.GPUs, x.kind, x.variants, x.free = n.ID, n.GPUs, n.kind, n.variants, n.free
	x.gpus = append(x.gpus[:0], n.gpus...)
	return x
}

// amount is capacity of one machine, device by device.
type amount struct {
	berth.Capacity
	gpus []int64
}

// plus adds a grant the given number of times, which may be negative.
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

// most is the larger of two amounts in each resource.
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

// covers reports whether a grant includes another one.
func covers(n *node, g, o berth.Grant) bool {
	rest := amount{}.plus(n, o, 1).plus(n, g, -1)
	return rest.Capacity.Fits(berth.Capacity{}) &&
		!slices.ContainsFunc(rest.gpus, func(milli int64) bool { return milli > 0 })
}

// grant is the amount as a grant, as far as the machine ever has it.
func (a amount) grant(n *node) berth.Grant {
	return a.within(&node{Machine: n.Machine, free: n.Total, gpus: slices.Repeat([]int64{whole}, len(n.GPUs))})
}
