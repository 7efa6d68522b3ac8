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
//	free now ─┬─ held: a reserved start needs it later; only a job that ends before may use it
//	          └─ the rest: for every job (Node.Free)
type Ledger struct {
	*Moment
	Cluster *Cluster
	taken   []taken
	Touched []*Node // nodes that may differ from their rows
	Holds   []*Hold
	held    []*Hold // by Node.Index; nil: the machine has no hold
	draft   Node    // see Sketch
	uses    []use   // of draft
	buffer  []int64 // see Move
	before  []use   // see Move
	trial   bool    // the caller undoes each entry, so Touch records nothing
}

// NewLedger returns the ledger of a plan, without entries.
func NewLedger(at *Moment, c *Cluster) *Ledger { return &Ledger{Moment: at, Cluster: c} }

// NewTrial returns a ledger for trials outside of any plan. The caller undoes its entries
// itself, before any plan reads the machines: Finish restores nothing.
func NewTrial(at *Moment, c *Cluster) *Ledger { return &Ledger{Moment: at, Cluster: c, trial: true} }

// taken is one entry: a grant subtracted from a machine's free capacity, or added to it.
type taken struct {
	node  *Node
	grant berth.Grant
	back  bool         // added, by Give
	held  *berth.Grant // Hold.Grant before the entry, if it took held capacity
}

// Hold is capacity of a machine that is free now and needed later.
type Hold struct {
	Node  *Node
	Index int            // in Ledger.Holds
	Grant berth.Grant    // taken out of Node.Free
	Until time.Time      // the first time at which the capacity is needed
	Firm  bool           // a reserved start depends on the machine
	claim berth.TenantID // see Ledger.Claim
}

// Choice is the machine and the grant that a search has chosen for one member.
type Choice struct {
	Node    *Node
	Allowed uint64 // variants of devices that the class may use, as Match.Devices
	Grant   berth.Grant
	Brief   bool // the grant takes held capacity; the job ends before Hold.Until
}

// HoldOn returns the hold on a machine, or nil.
func (l *Ledger) HoldOn(n *Node) *Hold {
	if n.Index >= len(l.held) {
		return nil
	}
	return l.held[n.Index]
}

// OpenHold returns the hold on a machine. If needed, it creates an empty hold.
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

// Resize sets a hold to the needed amount, bounded by the machine's free and held
// capacity.
func (l *Ledger) Resize(h *Hold, needed Amount) {
	n := h.Node
	l.Move(n, func() {
		n.Add(h.Grant)
		h.Grant = needed.within(n)
		n.Subtract(h.Grant)
	})
}

// IsFirm reports whether a reserved start depends on the occupants of a machine. No job
// may preempt these occupants, except jobs that give way to every other job.
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
			h := l.HoldOn(n) // shrinks by the grant, so that two brief jobs do not share it
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

// Give adds grants to the free capacity of a machine, such as the grants of a victim in
// a trial of preemption.
func (l *Ledger) Give(n *Node, list ...berth.Grant) {
	l.Move(n, func() { n.AddAll(list) })
	for _, g := range list {
		l.taken = append(l.taken, taken{node: n, grant: g, back: true})
	}
}

// Mark returns the position of the next entry, for Undo.
func (l *Ledger) Mark() int { return len(l.taken) }

// Undo reverts the entries since a mark, the latest first. Consecutive entries of one
// machine move it in its tree only once.
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

// revert undoes one entry inside a Move of its machine.
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

// Move calls change, which alters the free capacity of a machine, and then moves the
// machine to its new place in the tree of its kind.
func (l *Ledger) Move(n *Node, change func()) {
	l.Touch(n)
	was := n.Room
	l.buffer, l.before = append(l.buffer[:0], n.FreeMilli...), append(l.before[:0], n.uses...)
	change()
	n.sum()
	if !n.Offered() || n.Room == was && slices.Equal(n.FreeMilli, l.buffer) && slices.Equal(n.uses, l.before) {
		return
	}
	if now := n.Room; now != was {
		n.Room, n.Free = was, was.Capacity // Remove finds the leaf by its former order
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

// Touch records that the plan has changed a machine or its occupants. For the rest of the
// plan, cached entries about the machine in the rankings of its kind are invalid.
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

// Sketch copies the free capacity of a machine, for trial changes outside of the tree.
// The copy is valid until the next call.
func (l *Ledger) Sketch(n *Node) *Node {
	x := &l.draft
	x.ID, x.GPUs, x.Kind, x.Variants, x.Free = n.ID, n.GPUs, n.Kind, n.Variants, n.Free
	x.FreeMilli = append(x.FreeMilli[:0], n.FreeMilli...)
	x.oneTenant, x.tenants = n.oneTenant, append(x.tenants[:0], n.tenants...)
	x.tenancy, x.uses = n.tenancy, nil
	if n.uses != nil {
		l.uses = append(l.uses[:0], n.uses...)
		x.uses = l.uses
	}
	return x
}

// Amount is capacity of one machine, device by device.
type Amount struct {
	berth.Capacity
	GPUs    []int64
	tenants []berth.TenantID // of the shares of each device; nil: none has a tenant
}

// severalTenants stands in an Amount for the tenants of a device with more than one. No tenant has
// this id.
const severalTenants berth.TenantID = "\x00several"

// owns records that a share of the device is the tenant's.
func (a *Amount) owns(device int, t berth.TenantID) {
	if t == "" {
		return
	}
	if a.tenants == nil {
		a.tenants = make([]berth.TenantID, len(a.GPUs))
	}
	switch a.tenants[device] {
	case "":
		a.tenants[device] = t
	case t:
	default:
		a.tenants[device] = severalTenants
	}
}

// Plus adds a grant the given number of times, which may be negative.
func (a Amount) Plus(n *Node, g berth.Grant, times int64) Amount {
	if a.GPUs == nil {
		a.GPUs = make([]int64, len(n.GPUs))
	} else {
		a.GPUs, a.tenants = slices.Clone(a.GPUs), slices.Clone(a.tenants)
	}
	c := g.Capacity
	if times < 0 {
		a.Capacity = a.Capacity.Sub(c)
	} else {
		a.Capacity = a.Capacity.Add(c)
	}
	for _, d := range g.GPUs {
		if i := n.Device(d.Index); i >= 0 {
			if a.GPUs[i] += times * d.Milli; times > 0 {
				a.owns(i, d.Tenant)
			}
		}
	}
	return a
}

// Most returns the larger of two amounts in each resource.
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
		if b.tenants != nil && x > 0 {
			a.owns(i, b.tenants[i])
		}
	}
	return a
}

// within returns the amount as a grant, bounded by the machine's free capacity.
func (a Amount) within(n *Node) berth.Grant {
	part := func(x, free int64) int64 { return max(0, min(x, free)) }
	g := berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: berth.Capacity{
		CPUMilli: part(a.CPUMilli, n.Free.CPUMilli), MemoryMiB: part(a.MemoryMiB, n.Free.MemoryMiB),
		DiskMiB: part(a.DiskMiB, n.Free.DiskMiB), GPUMilli: part(a.GPUMilli, n.Free.GPUMilli),
	}}
	for i, x := range a.GPUs {
		if x = part(x, n.FreeMilli[i]); x > 0 {
			d := berth.DeviceShare{Index: n.GPUs[i].Index, Milli: x}
			if a.tenants != nil {
				d.Tenant = a.tenants[i]
			}
			g.GPUs = append(g.GPUs, d)
		}
	}
	return g
}

// Clamp returns the part of a grant that is free.
func Clamp(n *Node, g berth.Grant) berth.Grant {
	part := Amount{}.Plus(n, g, 1).within(n)
	part.Tenant = g.Tenant
	return part
}

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
