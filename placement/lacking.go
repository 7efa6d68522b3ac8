package placement

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth"
)

// membersEver is how many members the machines could hold if they were empty.
func (c *class) membersEver(machines []*node) int {
	groups := map[string]int{}
	for _, n := range machines {
		groups[c.groupOf(&n.Machine)] += c.membersOn(n)
	}
	most := 0
	for _, n := range groups {
		most = max(most, n)
	}
	return min(most, c.members())
}

// membersApart is how many members the machines could hold if all of them
// reached each other.
func (c *class) membersApart(machines []*node) int {
	all := 0
	for _, n := range machines {
		all += c.membersOn(n)
	}
	return all
}

// membersOn returns the number of members that fit on a machine if it is empty.
func (c *class) membersOn(n *node) int {
	r, count := c.request, int64(c.members())
	for _, x := range [][2]int64{{n.Total.CPUMilli, r.CPUMilli}, {n.Total.MemoryMiB, r.MemoryMiB},
		{n.Total.DiskMiB, r.DiskMiB}} {
		if x[1] > 0 {
			count = min(count, x[0]/x[1])
		}
	}
	switch {
	case r.GPUs == 0:
	case r.GPUMilli < 1000:
		count = min(count, int64(c.devices(n))*(1000/r.GPUMilli))
	default:
		count = min(count, int64(c.devices(n)/r.GPUs))
	}
	return int(count)
}

// lacking names what no machine has enough of, largest amount included, when
// none could ever run the request.
func lacking(s *cluster, c *class, e Explanation) []Shortfall {
	switch {
	case e.Machines == 0:
		return nil
	case e.FitEver > 0 && (e.Members == nil || e.Members.Ever >= e.Members.Asked):
		return nil
	case e.FitEver > 0:
		most := strconv.Itoa(e.Members.Ever)
		if e.Members.apart {
			most += " on machines of one network" // see docs/guide/gang-details.md
			if c.request.SameLabel != "" {
				most += " and one " + c.request.SameLabel
			}
		}
		return []Shortfall{{"members", strconv.Itoa(e.Members.Asked), most}}
	}
	nodes, miss := selected(s, c)
	if miss != nil {
		return []Shortfall{*miss}
	}
	list := c.shortfalls(nodes)
	if len(list) == 0 { // enough of each, but never on one machine
		list = []Shortfall{{"machine", c.String(), "no single machine has all of it"}}
	}
	return list
}

// selected returns the machines that pass every clause about what they are, or
// the first clause that none of them passes.
func selected(s *cluster, c *class) ([]*node, *Shortfall) {
	var nodes []*node
	for _, id := range s.machineIDs() {
		nodes = append(nodes, s.nodes[id])
	}
	for _, sel := range selectors {
		was := nodes
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return !sel.holds(c, &n.Machine) })
		if len(nodes) == 0 {
			return nil, c.missing(sel.name, was)
		}
	}
	was := nodes
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return slices.Contains(c.request.Avoid, n.ID) })
	if len(nodes) == 0 {
		return nil, &Shortfall{"avoid_machines", joined(was, func(n *node) string { return string(n.ID) }),
			"no other machine"}
	}
	return nodes, nil
}

func (c *class) missing(clause string, nodes []*node) *Shortfall {
	r := c.request
	switch clause {
	case "region":
		return &Shortfall{"region", strings.Join(r.Regions, " or "),
			joined(nodes, func(n *node) string { return n.Region })}
	case "site":
		return &Shortfall{"site", r.Site, joined(nodes, func(n *node) string { return n.Site })}
	case "labels":
		return &Shortfall{"labels", labelText(c.labels), "no machine has them all"}
	case "file_inputs":
		return &Shortfall{"file_inputs", clauses{c}.folders(), "no machine shares that"}
	case "execution":
		return &Shortfall{"execution", string(r.Execution), "no machine can fence it: none has a berth-deadman"}
	case "same_label":
		return &Shortfall{"same_label", r.SameLabel, "no machine has it"}
	case "constraint":
		return &Shortfall{"constraint", r.Constraint, "no machine matches"}
	}
	panic("placement: no shortfall for selector " + clause)
}

// shortfalls compares the request with the largest amount of each resource.
func (c *class) shortfalls(nodes []*node) []Shortfall {
	r := c.request
	var list []Shortfall
	most := func(f func(*node) int64) int64 {
		var m int64
		for _, n := range nodes {
			m = max(m, f(n))
		}
		return m
	}
	if r.GPUs > 0 {
		typed := most(func(n *node) int64 { return c.countDevices(n, c.typed) })
		large := most(func(n *node) int64 {
			return c.countDevices(n, func(d Device) bool { return c.typed(d) && c.large(d) })
		})
		switch {
		case len(r.GPUTypes) > 0 && typed == 0:
			list = append(list, Shortfall{"gpu_type", strings.Join(r.GPUTypes, " or "),
				orNone(joinedSet(nodes, func(n *node) []string { return models(n) }))})
		case typed > 0 && large == 0:
			biggest := most(func(n *node) int64 { return largestMemory(n, c.typed) })
			list = append(list, Shortfall{"gpu_memory", berth.MiB(r.GPUMemoryMiB).String(),
				berth.MiB(biggest).String()})
		default:
			usable := most(func(n *node) int64 { return int64(c.devices(n)) })
			if usable < int64(r.GPUs) {
				list = append(list, Shortfall{"gpus", berth.MilliGPU(int64(r.GPUs) * r.GPUMilli).String(),
					strconv.FormatInt(usable, 10)})
			}
		}
	}
	if m := most(func(n *node) int64 { return n.Total.CPUMilli }); r.CPUMilli > m {
		list = append(list, Shortfall{"cpus", berth.MilliCPU(r.CPUMilli).String(), berth.MilliCPU(m).String()})
	}
	if m := most(func(n *node) int64 { return n.Total.MemoryMiB }); r.MemoryMiB > m {
		list = append(list, Shortfall{"memory", berth.MiB(r.MemoryMiB).String(), berth.MiB(m).String()})
	}
	if m := most(func(n *node) int64 { return n.Total.DiskMiB }); r.DiskMiB > m {
		list = append(list, Shortfall{"disk", berth.MiB(r.DiskMiB).String(), berth.MiB(m).String()})
	}
	return list
}

func (c *class) countDevices(n *node, ok func(Device) bool) int64 {
	var count int64
	for _, d := range n.GPUs {
		if ok(d) {
			count++
		}
	}
	return count
}

func largestMemory(n *node, ok func(Device) bool) int64 {
	var m int64
	for _, d := range n.GPUs {
		if ok(d) {
			m = max(m, d.MemoryMiB)
		}
	}
	return m
}

func models(n *node) []string {
	var list []string
	for _, d := range n.GPUs {
		list = append(list, d.Model)
	}
	return list
}

// String is the request's amounts, for people.
func (c *class) String() string {
	r := c.request
	cpus, memory, disk := c.amounts()
	parts := []string{cpus, memory}
	if r.DiskMiB > 0 {
		parts = append(parts, disk)
	}
	if r.GPUs > 0 {
		parts = append(parts, berth.MilliGPU(int64(r.GPUs)*r.GPUMilli).String()+" GPUs")
	}
	return strings.Join(parts, ", ")
}

func joined(nodes []*node, f func(*node) string) string {
	return orNone(joinedSet(nodes, func(n *node) []string { return []string{f(n)} }))
}

func joinedSet(nodes []*node, f func(*node) []string) string {
	set := map[string]bool{}
	for _, n := range nodes {
		for _, v := range f(n) {
			if v != "" {
				set[v] = true
			}
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(set)), ", ")
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
