package cluster

import (
	"slices"
	"time"

	"berth"
)

// Moment identifies a plan: its time and its number.
type Moment struct {
	Now    time.Time
	Clock  time.Duration // now, since origin
	Number int
}

// From returns the later of t and now.
func (m *Moment) From(t time.Time) time.Time {
	if t.Before(m.Now) {
		return m.Now
	}
	return t
}

// Ledger is the capacity of a cluster while one plan proceeds. It changes the nodes in
// place, so that every search sees the capacity that the plan has taken. Undo reverts
// a suffix of the entries, and Finish restores the nodes.
//
//	free now ─┬─ held: a reserved start needs it later; only a job that ends before may have it
//	          └─ the rest: for everyone (Node.Free)
type Ledger struct {
	*Moment
	Cluster *Cluster
	taken   []taken
	Touched []*Node // nodes that may differ from their rows
	Holds   []*Hold
	held    []*Hold // by Node.Index; nil: nothing is held there
	draft   Node
	buffer  []int64
	trial   bool // every entry is undone at once, so that nothing is touched
}

// NewLedger returns the ledger of a plan, without entries.
func NewLedger(at *Moment, c *Cluster) *Ledger { return &Ledger{Moment: at, Cluster: c} }

// NewTrial returns a ledger whose entries are all undone at once, outside of any
// plan.
func NewTrial(at *Moment, c *Cluster) *Ledger { return &Ledger{Moment: at, Cluster: c, trial: true} }

// taken is one entry: a grant taken from a machine, or given to it.
type taken struct {
	node  *Node
	grant berth.Grant
	back  bool         // given
	held  *berth.Grant // Hold.Grant before, if the entry took from there
}

// Hold is capacity of a machine that is free now and needed later.
type Hold struct {
	Node  *Node
	Index int         // in Ledger.Holds
	Grant berth.Grant // taken out of Node.Free
	Until time.Time   // the first time at which it is needed
	Firm  bool        // a reserved start depends on the machine
}

// Choice is a machine and a grant there for one member.
type Choice struct {
	Node    *Node
	Allowed uint64 // devices of its kind that the class may use
	Grant   berth.Grant
	Brief   bool // in held capacity, until that is needed
}

// HoldOn returns the hold on a machine; nil if there is none.
func (l *Ledger) HoldOn(n *Node) *Hold {
	if n.Index >= len(l.held) {
		return nil
	}
	return l.held[n.Index]
}

// OpenHold returns the hold on a machine, and creates an empty one if there is none.
func (l *Ledger) OpenHold(n *Node) *Hold {
	if len(l.held) == 0 {
		l.held = make([]*Hold, l.Cluster.Extent)
	}
	h := l.held[n.Index]
	if h == nil {
		h = &Hold{Node: n, Index: len(l.Holds), Grant: berth.Grant{Machine: n.ID}}
		l.held[n.Index], l.Holds = h, append(l.Holds, h)
	}
	return h
}

// Resize sets a hold to the needed amount, bounded by the free capacity.
func (l *Ledger) Resize(h *Hold, needed Amount) {
	n := h.Node
	l.Move(n, func() {
		n.Add(h.Grant)
		h.Grant = needed.within(n)
		n.Subtract(h.Grant)
	})
}

// IsFirm reports whether a reserved start depends on the occupants of a machine:
// then no job may displace them.
func (l *Ledger) IsFirm(n *Node) bool {
	h := l.HoldOn(n)
	return h != nil && h.Firm
}

// WithHeld is the capacity of a machine that is free or held.
func (l *Ledger) WithHeld(n *Node) berth.Capacity {
	if h := l.HoldOn(n); h != nil {
		return n.Free.Add(h.Grant.Capacity)
	}
	return n.Free
}

// Take subtracts a choice from the free capacity for the rest of the plan.
func (l *Ledger) Take(c Choice) {
	n := c.Node
	t := taken{node: n, grant: c.Grant}
	l.Move(n, func() {
		if c.Brief {
			h := l.HoldOn(n)
			was := h.Grant
			t.held = &was
			n.Add(was)
			n.Subtract(c.Grant)
			h.Grant = Amount{}.Plus(n, was, 1).Plus(n, c.Grant, -1).within(n)
			n.Subtract(h.Grant)
			return
		}
		n.Subtract(c.Grant)
	})
	l.taken = append(l.taken, t)
}

// Give adds capacity to a machine as if it were free.
func (l *Ledger) Give(n *Node, list ...berth.Grant) {
	l.Move(n, func() { n.AddAll(list) })
	for _, g := range list {
		l.taken = append(l.taken, taken{node: n, grant: g, back: true})
	}
}

// Mark returns the position of the next entry, for undo.
func (l *Ledger) Mark() int { return len(l.taken) }

// Undo reverts the entries since a mark.
func (l *Ledger) Undo(mark int) {
	for i := len(l.taken) - 1; i >= mark; {
		n := l.taken[i].node
		l.Move(n, func() {
			for ; i >= mark && l.taken[i].node == n; i-- {
				l.revert(&l.taken[i])
			}
		})
	}
	l.taken = l.taken[:mark]
}

func (l *Ledger) revert(t *taken) {
	n := t.node
	switch {
	case t.back:
		n.Subtract(t.grant)
	case t.held != nil:
		h := l.HoldOn(n)
		n.Add(h.Grant)
		n.Add(t.grant)
		h.Grant = *t.held
		n.Subtract(*t.held)
	default:
		n.Add(t.grant)
	}
}

// Move changes the free capacity of a machine and keeps its place in the tree.
func (l *Ledger) Move(n *Node, change func()) {
	l.Touch(n)
	was := n.Room
	l.buffer = append(l.buffer[:0], n.FreeMilli...)
	change()
	n.sum()
	if !n.Offered() || n.Room == was && slices.Equal(n.FreeMilli, l.buffer) {
		return
	}
	if now := n.Room; now != was {
		n.Room, n.Free = was, was.Capacity
		n.Kind.tree.Remove(&n.Leaf)
		n.Room, n.Free = now, now.Capacity
		n.Kind.tree.Insert(&n.Leaf)
	}
	if o := l.Cluster.Observer; o != nil {
		o.Enter(n)
	}
}

// AddAll adds each grant of a list to the free capacity.
func (n *Node) AddAll(list []berth.Grant) {
	for _, g := range list {
		n.Add(g)
	}
}

// Touch notes that the plan has changed a machine or its occupants, so that
// entries about it in lists of its kind are void for the plan.
func (l *Ledger) Touch(n *Node) {
	if l.trial || n.Touched == l.Number {
		return
	}
	n.Touched = l.Number
	l.Touched = append(l.Touched, n)
	if n.Kind != nil {
		n.Kind.touch(n, l.Number)
	}
}

// Finish restores every machine.
func (l *Ledger) Finish() {
	for _, n := range l.Touched {
		l.Move(n, n.Recount)
	}
}

// Sketch copies the free capacity of a machine, to try changes on. The copy lasts
// until the next call.
func (l *Ledger) Sketch(n *Node) *Node {
	x := &l.draft
	x.ID, x.GPUs, x.Kind, x.Variants, x.Free = n.ID, n.GPUs, n.Kind, n.Variants, n.Free
	x.FreeMilli = append(x.FreeMilli[:0], n.FreeMilli...)
	return x
}

// Amount is capacity of one machine, device by device.
type Amount struct {
	berth.Capacity
	GPUs []int64
}

// Plus adds a grant the given number of times, which may be negative.
func (a Amount) Plus(n *Node, g berth.Grant, times int64) Amount {
	if a.GPUs == nil {
		a.GPUs = make([]int64, len(n.GPUs))
	} else {
		a.GPUs = slices.Clone(a.GPUs)
	}
	c := g.Capacity
	if times < 0 {
		a.Capacity = a.Capacity.Sub(c)
	} else {
		a.Capacity = a.Capacity.Add(c)
	}
	for _, d := range g.GPUs {
		if i := n.Device(d.Index); i >= 0 {
			a.GPUs[i] += times * d.Milli
		}
	}
	return a
}

// Most is the larger of two amounts in each resource.
func (a Amount) Most(b Amount) Amount {
	a.Capacity = berth.Capacity{
		CPUMilli: max(a.CPUMilli, b.CPUMilli), MemoryMiB: max(a.MemoryMiB, b.MemoryMiB),
		DiskMiB: max(a.DiskMiB, b.DiskMiB), GPUMilli: max(a.GPUMilli, b.GPUMilli),
	}
	if a.GPUs == nil {
		a.GPUs = make([]int64, len(b.GPUs))
	}
	for i, x := range b.GPUs {
		a.GPUs[i] = max(a.GPUs[i], x)
	}
	return a
}

// within is the amount as a grant, no more than is free of the machine.
func (a Amount) within(n *Node) berth.Grant {
	part := func(x, free int64) int64 { return max(0, min(x, free)) }
	g := berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: berth.Capacity{
		CPUMilli: part(a.CPUMilli, n.Free.CPUMilli), MemoryMiB: part(a.MemoryMiB, n.Free.MemoryMiB),
		DiskMiB: part(a.DiskMiB, n.Free.DiskMiB), GPUMilli: part(a.GPUMilli, n.Free.GPUMilli),
	}}
	for i, x := range a.GPUs {
		if x = part(x, n.FreeMilli[i]); x > 0 {
			g.GPUs = append(g.GPUs, berth.DeviceShare{Index: n.GPUs[i].Index, Milli: x})
		}
	}
	return g
}

// Clamp returns the part of a grant that is free.
func Clamp(n *Node, g berth.Grant) berth.Grant { return Amount{}.Plus(n, g, 1).within(n) }

// Covers reports whether a grant includes another one.
func Covers(n *Node, g, o berth.Grant) bool {
	rest := Amount{}.Plus(n, o, 1).Plus(n, g, -1)
	return rest.Capacity.Fits(berth.Capacity{}) &&
		!slices.ContainsFunc(rest.GPUs, func(milli int64) bool { return milli > 0 })
}

// Grant returns the amount as a grant, bounded by the total of the machine.
func (a Amount) Grant(n *Node) berth.Grant {
	return a.within(&Node{Machine: n.Machine, Free: n.Total, FreeMilli: slices.Repeat([]int64{Whole}, len(n.GPUs))})
}
