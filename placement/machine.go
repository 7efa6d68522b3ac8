package placement

import (
	"maps"
	"math"
	"slices"
	"time"

	"berth"
)

// Machine is what placement knows of a machine.
type Machine struct {
	ID      berth.MachineID
	Epoch   int64
	State   berth.MachineState
	Blocked string // why nothing may be placed here although it is ready
	Pool    string
	Region  string
	Site    string
	Labels  map[string]string
	Total   berth.Capacity
	Used    berth.Capacity
	Fences  bool     // it can fence at_most_one work
	Network string   // members of a gang are on machines of one
	GPUs    []Device // by index

	EngineSilentSince time.Time // its container engine has not answered since; zero: it answers
}

// Device is one GPU of a machine, or one MIG slice.
type Device struct {
	Index     int
	Model     string
	MemoryMiB int64
	Healthy   bool
	UsedMilli int64
}

// Placeable reports whether the machine may be given work at all.
func (m *Machine) Placeable() bool { return m.open() && m.EngineSilentSince.IsZero() }

// open reports whether the machine may be given work once its container engine
// answers.
func (m *Machine) open() bool { return m.State == berth.MachineReady && m.Blocked == "" }

// hasLabels reports whether the machine has all these labels.
func (m *Machine) hasLabels(labels map[string]string) bool {
	for k, v := range labels {
		if have, ok := m.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// sameKind reports whether nothing has changed that decides the machine's kind.
func (m *Machine) sameKind(o *Machine) bool {
	return m.Pool == o.Pool && m.Region == o.Region && m.Site == o.Site && m.Fences == o.Fences &&
		m.Network == o.Network &&
		m.Total.CPUMilli == o.Total.CPUMilli && m.Total.MemoryMiB == o.Total.MemoryMiB &&
		slices.EqualFunc(m.GPUs, o.GPUs, func(a, b Device) bool {
			return a.Index == b.Index && a.Model == b.Model && a.MemoryMiB == b.MemoryMiB
		}) && maps.Equal(m.Labels, o.Labels)
}

// unhealthy is the free share of a device that is not healthy, below any debt.
const unhealthy = math.MinInt64 / 2

// node is a machine in the cluster: its row, the grants of decisions that are not
// yet committed, and its place in the tree of its kind.
type node struct {
	Machine
	index    int // caches of machines are slices by this; removed machines free theirs
	kind     *kind
	variants []int // of each device: its position in kind.variants

	assumed []berth.Grant // of decisions under way
	free    berth.Capacity
	gpus    []int64 // free milli of each device; unhealthy if it is not healthy
	has     room
	touched int // the latest plan that changed it

	leaf leaf[*node]
	most room // over its subtree

	on      *occupants
	listed  *kind // whose roster lists it, at place
	place   int
	changed uint8 // bit f: it is in the feed of follower f
}

// offered reports whether searches find the machine: it is in the tree of its kind.
func (n *node) offered() bool { return n.leaf.size > 0 }

// room is what a search is pruned by: a subtree whose most room is too little
// holds no machine that fits.
type room struct {
	berth.Capacity
	whole int   // devices of which nothing is used
	part  int64 // the most that is left of a device in use
}

func (r room) max(o room) room {
	return room{
		Capacity: berth.Capacity{
			CPUMilli:  max(r.CPUMilli, o.CPUMilli),
			MemoryMiB: max(r.MemoryMiB, o.MemoryMiB),
			DiskMiB:   max(r.DiskMiB, o.DiskMiB),
			GPUMilli:  max(r.GPUMilli, o.GPUMilli),
		},
		whole: max(r.whole, o.whole),
		part:  max(r.part, o.part),
	}
}

// recount derives what is free from the row and the assumed grants.
func (n *node) recount() {
	n.free = n.Total.Sub(n.Used)
	n.gpus = n.gpus[:0]
	for _, d := range n.GPUs {
		if d.Healthy {
			n.gpus = append(n.gpus, 1000-d.UsedMilli)
		} else {
			n.gpus = append(n.gpus, unhealthy)
		}
	}
	for _, g := range n.assumed {
		n.subtract(g)
	}
	n.sum()
}

// sum derives the room from what is free.
func (n *node) sum() {
	n.has = room{Capacity: n.free}
	for _, milli := range n.gpus {
		switch {
		case milli == 1000:
			n.has.whole++
		case milli > n.has.part:
			n.has.part = milli
		}
	}
}

// subtract takes a grant out of the free capacity, down to zero for each device.
func (n *node) subtract(g berth.Grant) {
	n.free = n.free.Sub(g.Capacity)
	for _, d := range g.GPUs {
		if i := n.device(d.Index); i >= 0 && n.gpus[i] >= 0 {
			n.gpus[i] = max(0, n.gpus[i]-d.Milli)
		}
	}
}

// add returns a grant to the free capacity.
func (n *node) add(g berth.Grant) {
	n.free = n.free.Add(g.Capacity)
	for _, d := range g.GPUs {
		if i := n.device(d.Index); i >= 0 && n.gpus[i] != unhealthy {
			n.gpus[i] += d.Milli
		}
	}
}

// device returns the position of the device with this index, -1 if it is gone.
func (n *node) device(index int) int {
	if index < len(n.GPUs) && n.GPUs[index].Index == index {
		return index
	}
	return slices.IndexFunc(n.GPUs, func(d Device) bool { return d.Index == index })
}

// compareNodes orders the machines of a kind from tight to roomy: first by
// devices free, because those are dearest, then by CPU, then by memory.
func compareNodes(a, b *node) int {
	switch {
	case a.has.whole != b.has.whole:
		return a.has.whole - b.has.whole
	case a.free.CPUMilli != b.free.CPUMilli:
		return sign(a.free.CPUMilli - b.free.CPUMilli)
	case a.free.MemoryMiB != b.free.MemoryMiB:
		return sign(a.free.MemoryMiB - b.free.MemoryMiB)
	case a.ID < b.ID:
		return -1
	case a.ID > b.ID:
		return 1
	}
	return 0
}

// sign returns -1, 0 or 1.
func sign(n int64) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

// owe takes a grant out, into debt where it is not free yet.
func (n *node) owe(g berth.Grant) {
	n.free = n.free.Sub(g.Capacity)
	for _, d := range g.GPUs {
		if i := n.device(d.Index); i >= 0 && n.gpus[i] != unhealthy {
			n.gpus[i] -= d.Milli
		}
	}
}
