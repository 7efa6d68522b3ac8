package cluster

import (
	"maps"
	"math"
	"slices"
	"time"

	"berth"
	"berth/spec"
)

// Machine is the row of a machine.
type Machine struct {
	ID      berth.MachineID
	Epoch   int64
	State   berth.MachineState
	Reason  string // why it has this state; only explanations read it
	Blocked string // reason why a ready machine takes no work; "": it takes work
	Pool    string
	Region  string
	Site    string
	Labels  map[string]string
	Taints  []string // stored forms, see spec.ParseTaint
	Total   berth.Capacity
	Used    berth.Capacity
	Fences  bool     // the machine can fence at_most_one work
	Network string   // all members of a gang are on machines of one network
	GPUs    []Device // by index

	// Market and Price come from the launch of a machine of a cloud. An empty market: Berth did not launch it.
	Market string
	Price  float64 // US dollars an hour; 0: unknown

	Unmet string // why the machine does not meet the security floors; "": it meets them
	// Unjudged states that nothing is known about the machine yet; Unmet is set then, too. Only the scaler reads it.
	Unjudged bool

	EngineSilentSince time.Time // since when its container engine is silent; zero: it answers
}

// MarketSpot is the market of machines that a cloud may take back at short notice.
const MarketSpot = "spot"

// PlacedAt returns the site of the machine. A machine that Berth launched is in a cloud, even if its agent reports
// another site.
func (m *Machine) PlacedAt() string {
	if m.Market != "" {
		return spec.SiteCloud
	}
	return m.Site
}

// Device is one GPU of a machine, or one MIG slice.
type Device struct {
	Index     int
	Model     string
	MemoryMiB int64
	Healthy   bool
	UsedMilli int64 // thousandths of the device in use
}

// Placeable reports whether the machine may be given work at all.
func (m *Machine) Placeable() bool { return m.Open() && m.EngineSilentSince.IsZero() }

// Open reports whether the machine may be given work once its container engine
// answers.
func (m *Machine) Open() bool { return m.State == berth.MachineReady && m.Blocked == "" }

// hasLabels reports whether the machine has all these labels.
func (m *Machine) hasLabels(labels map[string]string) bool {
	for k, v := range labels {
		if have, ok := m.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// sameKind reports whether m and o agree in every attribute that may decide a kind.
func (m *Machine) sameKind(o *Machine) bool {
	return m.Pool == o.Pool && m.Region == o.Region && m.Site == o.Site && m.Fences == o.Fences &&
		m.Network == o.Network && slices.Equal(m.Taints, o.Taints) && (m.Unmet == "") == (o.Unmet == "") &&
		m.Market == o.Market && m.Price == o.Price &&
		m.Total.CPUMilli == o.Total.CPUMilli && m.Total.MemoryMiB == o.Total.MemoryMiB &&
		slices.EqualFunc(m.GPUs, o.GPUs, func(a, b Device) bool {
			return a.Index == b.Index && a.Model == b.Model && a.MemoryMiB == b.MemoryMiB
		}) && maps.Equal(m.Labels, o.Labels)
}

// Unhealthy is the free share of an unhealthy device. It is lower than any negative share
// that Owe leaves.
const Unhealthy = math.MinInt64 / 2

// Node is a machine in the cluster: its row, the grants of decisions that are not
// yet committed, and its place in the tree of its kind.
type Node struct {
	Machine
	Window   *Window // its next maintenance window; nil: none
	Near     bool    // Window was near in the latest plan
	Index    int     // the machine's index in caches; reused after the machine is removed
	Kind     *Kind
	Variants []int // of each device: its position in Kind.Variants

	assumed   []berth.Grant // decisions with a commit under way
	Free      berth.Capacity
	FreeMilli []int64 // free thousandths of each device, or Unhealthy
	tenancy   *Tenancy
	uses      []use // of each device; nil without a tenancy
	oneTenant bool  // a rule of the pool gives the machine to one tenant at a time
	tenants   []occupancy
	Room      Room
	Touched   int // the latest plan that changed the machine

	Leaf Leaf[*Node] // in Kind.tree; of size 0 outside of it
	most Room        // the largest Room in the subtree of Leaf

	On      *Occupants
	Listed  *Kind // the kind with the machine in its roster, at Place; nil: none
	Place   int
	changed uint8 // bit f: the feed of follower f contains the machine
}

// Offered reports whether the machine is in the tree of its kind, where searches find it.
func (n *Node) Offered() bool { return n.Leaf.size > 0 }

// Room summarizes the free capacity of a machine or, as an upper bound, of a subtree. A
// request beyond the bound fits no machine of the subtree; a request within the bound
// need not fit.
type Room struct {
	berth.Capacity
	Whole  int    // number of unused devices
	part   int64  // the largest free share of a partly used device, in thousandths
	owners uint64 // with a tenancy: the owners of partly used devices, see ownerBit
}

// max returns the larger of two rooms in each field.
func (r Room) max(o Room) Room {
	return Room{
		Capacity: berth.Capacity{
			CPUMilli:  max(r.CPUMilli, o.CPUMilli),
			MemoryMiB: max(r.MemoryMiB, o.MemoryMiB),
			DiskMiB:   max(r.DiskMiB, o.DiskMiB),
			GPUMilli:  max(r.GPUMilli, o.GPUMilli),
		},
		Whole:  max(r.Whole, o.Whole),
		part:   max(r.part, o.part),
		owners: r.owners | o.owners,
	}
}

// Recount derives the free capacity from the row and the assumed grants.
func (n *Node) Recount() {
	n.Free = n.Total.Sub(n.Used)
	n.FreeMilli = n.FreeMilli[:0]
	for _, d := range n.GPUs {
		if d.Healthy {
			n.FreeMilli = append(n.FreeMilli, 1000-d.UsedMilli)
		} else {
			n.FreeMilli = append(n.FreeMilli, Unhealthy)
		}
	}
	n.countUses()
	n.countTenants()
	for _, g := range n.assumed {
		n.Subtract(g)
	}
	n.sum()
}

// sum derives Room from Free and FreeMilli.
func (n *Node) sum() {
	n.Room = Room{Capacity: n.Free}
	for i, milli := range n.FreeMilli {
		if milli == Whole {
			n.Room.Whole++
			continue
		}
		n.Room.part = max(n.Room.part, milli)
		if n.uses != nil && milli > 0 {
			n.Room.owners |= ownerBit(n.uses[i].owner())
		}
	}
}

// Blank returns the machine without a place in a tree and without occupants. The caller sets the
// row and calls Recount.
func (n *Node) Blank() Node {
	return Node{Machine: n.Machine, Kind: n.Kind, Variants: n.Variants, tenancy: n.tenancy, oneTenant: n.oneTenant}
}

// Unshare gives a copied node free shares and tenants of its own, which Subtract and Add may change.
func (n *Node) Unshare() {
	n.FreeMilli, n.uses, n.tenants = slices.Clone(n.FreeMilli), slices.Clone(n.uses), slices.Clone(n.tenants)
}

// Subtract takes a grant out of the free capacity, down to zero for each device.
func (n *Node) Subtract(g berth.Grant) {
	n.Free = n.Free.Sub(g.Capacity)
	n.occupy(g.Tenant, weightOf(g.Capacity))
	for _, d := range g.GPUs {
		if i := n.Device(d.Index); i >= 0 && n.FreeMilli[i] >= 0 {
			n.FreeMilli[i] = max(0, n.FreeMilli[i]-d.Milli)
		}
		n.count(d, 1)
	}
}

// Add returns a grant to the free capacity.
func (n *Node) Add(g berth.Grant) {
	n.Free = n.Free.Add(g.Capacity)
	n.occupy(g.Tenant, -weightOf(g.Capacity))
	for _, d := range g.GPUs {
		if i := n.Device(d.Index); i >= 0 && n.FreeMilli[i] != Unhealthy {
			n.FreeMilli[i] += d.Milli
		}
		n.count(d, -1)
	}
}

// Device returns the position in GPUs of the device with this index, or -1 for a device
// that the row no longer lists.
func (n *Node) Device(index int) int {
	if index < len(n.GPUs) && n.GPUs[index].Index == index {
		return index
	}
	return slices.IndexFunc(n.GPUs, func(d Device) bool { return d.Index == index })
}

// compareNodes orders the machines of a kind from tight to roomy: by free devices, which
// are the most expensive resource, then by CPU, by memory and by id.
func compareNodes(a, b *Node) int {
	switch {
	case a.Room.Whole != b.Room.Whole:
		return a.Room.Whole - b.Room.Whole
	case a.Free.CPUMilli != b.Free.CPUMilli:
		return Sign(a.Free.CPUMilli - b.Free.CPUMilli)
	case a.Free.MemoryMiB != b.Free.MemoryMiB:
		return Sign(a.Free.MemoryMiB - b.Free.MemoryMiB)
	case a.ID < b.ID:
		return -1
	case a.ID > b.ID:
		return 1
	}
	return 0
}

// Sign returns -1, 0 or 1.
func Sign(n int64) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

// Owe takes a grant out of the free capacity, which may become negative.
func (n *Node) Owe(g berth.Grant) {
	n.Free = n.Free.Sub(g.Capacity)
	n.occupy(g.Tenant, weightOf(g.Capacity))
	for _, d := range g.GPUs {
		if i := n.Device(d.Index); i >= 0 && n.FreeMilli[i] != Unhealthy {
			n.FreeMilli[i] -= d.Milli
		}
		n.count(d, 1)
	}
}

// Whole is the free share of an unused device, in thousandths.
const Whole = 1000
