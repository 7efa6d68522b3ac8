package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"berth"
	"berth/placement/cluster"
	"berth/placement/fit"
)

// Demand is machines of one sort that would give waiting jobs a place if their
// pool had more of them.
type Demand struct {
	Pool     string
	Like     berth.MachineID // a machine of that sort, the first by id
	Machines int             // to add
	Members  int             // of jobs that wait, which would have their place there
	Capacity berth.Capacity  // that those ask for
}

// Bounds of what one plan asks for. What is beyond them shows in a later plan,
// once machines have come.
const (
	maxAdded     = 1000
	maxDemanding = 20_000 // jobs looked at
)

// demand is the machines that a plan would have added, as it goes on.
type demand struct {
	run   *run
	sorts []*sort // the smallest first
	added []*added
	from  map[placeFor]int // those added before have no room for one member
}

// sort is machines of one kind that have the same.
type sort struct {
	Demand
	kind  *cluster.Kind
	empty cluster.Node // one of which nothing is used
}

// added is a machine that would be added.
type added struct {
	cluster.Node
	sort *sort
}

type placeFor struct {
	class *cluster.Class
	group string // see fit.GroupOf
}

// demand fills in what the pools lack for jobs that have no place: those that
// wait for their quota, and those that others make room for, aside. Jobs are
// taken in queue order to the machines added so far, and where these have no room
// to one more, of the smallest sort that will do. The sorts are those of which
// there is a machine in any state; one that a provider could make and of which
// there is none yet is brought in as a machine that is not ready.
func (r *run) demand() {
	d := &demand{run: r, sorts: r.sorts(), from: map[placeFor]int{}}
	started := make(map[berth.JobID]bool, len(r.plan.Start))
	for _, s := range r.plan.Start {
		started[s.Job] = true
	}
	list := r.waiting(started)
	for _, e := range list[:min(len(list), maxDemanding)] {
		x := r.shares.Own[r.snapshot.queue.Account(e.Tenant).Index]
		if _, barred := r.shares.Barred(x, e); barred || r.soon[e.ID] || r.shares.Full(e) {
			continue
		}
		if d.place(e.Class) {
			r.shares.Charge(x, e)
		}
	}
	for _, s := range d.sorts {
		if s.Machines > 0 {
			r.plan.Demand = append(r.plan.Demand, s.Demand)
		}
	}
	slices.SortFunc(r.plan.Demand, func(a, b Demand) int {
		return cmp.Or(strings.Compare(a.Pool, b.Pool), strings.Compare(string(a.Like), string(b.Like)))
	})
}

// sorts lists the sorts of machines there are.
func (r *run) sorts() []*sort {
	s := r.snapshot
	s.cluster.Settle(nil)
	seen := map[string]*sort{}
	var list []*sort
	for _, id := range s.cluster.MachineIDs() {
		n := s.cluster.Nodes[id]
		key := fmt.Sprint(n.Kind.Number, n.Total, n.Variants)
		if seen[key] != nil {
			continue
		}
		x := &sort{Demand: Demand{Pool: n.Pool, Like: id}, kind: n.Kind,
			empty: cluster.Node{Machine: n.Machine, Kind: n.Kind, Variants: n.Variants}}
		x.empty.Used, x.empty.GPUs = berth.Capacity{}, slices.Clone(n.GPUs)
		for i := range x.empty.GPUs {
			x.empty.GPUs[i].UsedMilli, x.empty.GPUs[i].Healthy = 0, true
		}
		x.empty.Recount()
		seen[key], list = x, append(list, x)
	}
	slices.SortStableFunc(list, func(a, b *sort) int {
		x, y := a.empty.Total, b.empty.Total
		return cmp.Or(cmp.Compare(x.GPUMilli, y.GPUMilli), cmp.Compare(x.CPUMilli, y.CPUMilli),
			cmp.Compare(x.MemoryMiB, y.MemoryMiB), cmp.Compare(x.DiskMiB, y.DiskMiB))
	})
	return list
}

// place puts all members of a job on machines that would be added; false if
// there is no such machine, or no more may be added.
func (d *demand) place(c *cluster.Class) bool {
	if c.Reads.ID {
		return false // another machine has another id
	}
	d.run.snapshot.cluster.Settle(c)
	for _, group := range d.run.placer.Groups(c) {
		if d.gang(c, group) {
			return true
		}
	}
	return false
}

// gang places all members or none.
func (d *demand) gang(c *cluster.Class, group string) bool {
	at := placeFor{c, group}
	from, before := d.from[at], len(d.added)
	type taken struct {
		machine *added
		grant   berth.Grant
	}
	var ranks []taken
	for range c.Members() {
		var m *added
		var devices []int
		for i := from; i < len(d.added) && m == nil; i++ {
			if list, ok := d.added[i].fit(c, group); ok {
				m, devices = d.added[i], list
			} else {
				from = i + 1
			}
		}
		if m == nil {
			if m, devices = d.add(c, group); m == nil {
				for _, t := range ranks {
					t.machine.Add(t.grant)
				}
				d.added = d.added[:before]
				return false
			}
		}
		g := fit.Grant(c, &m.Node, devices)
		m.Subtract(g)
		ranks = append(ranks, taken{m, g})
	}
	d.from[at] = from
	for _, m := range d.added[before:] {
		m.sort.Machines++
	}
	for _, t := range ranks {
		t.machine.sort.Members++
		t.machine.sort.Capacity = t.machine.sort.Capacity.Add(t.grant.Capacity)
	}
	return true
}

// add adds a machine of the smallest sort that has room for a member.
func (d *demand) add(c *cluster.Class, group string) (*added, []int) {
	if len(d.added) >= maxAdded {
		return nil, nil
	}
	for _, s := range d.sorts {
		m := &added{Node: s.empty, sort: s}
		if devices, ok := m.fit(c, group); ok {
			m.FreeMilli = slices.Clone(s.empty.FreeMilli)
			d.added = append(d.added, m)
			return m, devices
		}
	}
	return nil, nil
}

// fit is fit.Devices, on machines that the class may use.
func (m *added) fit(c *cluster.Class, group string) ([]int, bool) {
	i := slices.IndexFunc(c.Matches, func(x cluster.Match) bool { return x.Kind == m.sort.kind })
	if i < 0 || group != "" && fit.GroupOf(c, &m.Machine) != group {
		return nil, false
	}
	return fit.Devices(c, &m.Node, c.Matches[i].Devices)
}
