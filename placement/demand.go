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

// Demand asks for more machines of one sort in a pool: waiting jobs would have room on
// the added machines.
type Demand struct {
	Pool     string
	Like     berth.MachineID // an existing machine of that sort, the first by id
	Machines int             // number of machines to add
	Members  int             // number of members of waiting jobs with room on the added machines
	Capacity berth.Capacity  // sum of the requests of these members
}

// Bounds on the demand of one plan. Demand beyond the bounds appears in a later plan,
// after some of the machines have joined.
const (
	maxAdded     = 1000
	maxDemanding = 20_000 // waiting jobs examined
)

// demand simulates the addition of machines, one waiting job after the other.
type demand struct {
	run   *run
	sorts []*sort // the smallest first
	added []*added
	from  map[placeFor]int // index into added: no earlier machine has room for a member
}

// sort is a group of machines of one kind with equal capacity, devices included.
type sort struct {
	Demand
	kind  *cluster.Kind
	empty cluster.Node // a machine of the sort with all its capacity free
}

// added is a simulated machine; its free capacity shrinks as members are placed.
type added struct {
	cluster.Node
	sort *sort
}

// placeFor identifies a search for room: equal searches share their progress.
type placeFor struct {
	class *cluster.Class
	group string // see fit.GroupOf
}

// demand fills Plan.Demand with the machines that the pools lack for waiting jobs. It
// leaves out jobs that wait for their quota and jobs with preempted victims, which get
// room without more machines. The jobs are placed in queue order on the machines added
// so far or, where these have no room, on one more machine of the smallest suitable
// sort. A sort is known from any machine of it, in any state: a sort that a provider
// could create, but of which no machine exists yet, enters the snapshot as a machine
// that is not ready.
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
			r.shares.Charge(x, e) // so that the demand of a tenant ends at its quota
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

// sorts lists the sorts of machines in the snapshot, the smallest first.
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
		x := &sort{Demand: Demand{Pool: n.Pool, Like: id}, kind: n.Kind, empty: *fit.Emptied(n)}
		seen[key], list = x, append(list, x)
	}
	slices.SortStableFunc(list, func(a, b *sort) int {
		x, y := a.empty.Total, b.empty.Total
		return cmp.Or(cmp.Compare(x.GPUMilli, y.GPUMilli), cmp.Compare(x.CPUMilli, y.CPUMilli),
			cmp.Compare(x.MemoryMiB, y.MemoryMiB), cmp.Compare(x.DiskMiB, y.DiskMiB))
	})
	return list
}

// place puts all members of a job of the class on simulated machines. It returns false
// if no sort of machine fits, or if maxAdded is reached.
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

// taken is the place of a member on a simulated machine.
type taken struct {
	machine *added
	grant   berth.Grant
}

// gang places all members on machines of the group, or none. The members of a part are equal, so a
// machine without room for one member has no room for the next one either: the search
// goes on from the machine that took the last member.
func (d *demand) gang(c *cluster.Class, group string) bool {
	before := len(d.added)
	from := make([]int, len(c.Parts)) // as in d.from, by part
	var ranks []taken
	for i, p := range c.Parts {
		from[i] = d.from[placeFor{p.Class, group}]
		for range p.Members {
			t, ok := d.member(p.Class, group, &from[i])
			if !ok {
				for _, t := range ranks {
					t.machine.Add(t.grant)
				}
				d.added = d.added[:before]
				return false
			}
			ranks = append(ranks, t)
		}
	}
	for i, p := range c.Parts {
		d.from[placeFor{p.Class, group}] = from[i]
	}
	for _, m := range d.added[before:] {
		m.sort.Machines++
	}
	for _, t := range ranks {
		t.machine.sort.Members++
		t.machine.sort.Capacity = t.machine.sort.Capacity.Add(t.grant.Capacity)
	}
	return true
}

// member places one member on a simulated machine, the machines before from left out. It advances from to the first
// machine that may have room for the next member.
func (d *demand) member(c *cluster.Class, group string, from *int) (taken, bool) {
	var m *added
	var devices []int
	for i := *from; i < len(d.added) && m == nil; i++ {
		if list, ok := d.added[i].fit(c, group); ok {
			m, devices = d.added[i], list
		} else {
			*from = i + 1
		}
	}
	if m == nil {
		if m, devices = d.add(c, group); m == nil {
			return taken{}, false
		}
	}
	g := fit.Grant(c, &m.Node, devices)
	m.Subtract(g)
	return taken{m, g}, true
}

// add simulates one more machine, of the smallest sort with room for a member. It
// returns nil if no sort has room or maxAdded is reached.
func (d *demand) add(c *cluster.Class, group string) (*added, []int) {
	if len(d.added) >= maxAdded {
		return nil, nil
	}
	for _, s := range d.sorts {
		m := &added{Node: s.empty, sort: s}
		if devices, ok := m.fit(c, group); ok {
			m.Unshare() // Subtract writes to it
			d.added = append(d.added, m)
			return m, devices
		}
	}
	return nil, nil
}

// fit returns the devices for one member, as fit.Devices does; ok is false as well if
// the class or the group rules the machine out.
func (m *added) fit(c *cluster.Class, group string) ([]int, bool) {
	x, ok := c.MatchOf(m.sort.kind)
	if !ok || group != "" && !c.InGroup(&m.Machine, group) {
		return nil, false
	}
	return fit.Devices(c, &m.Node, x.Devices)
}
