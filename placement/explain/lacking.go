package explain

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/spec"
)

// membersEver is how many members the machines could hold if they were empty.
func membersEver(c *cluster.Class, machines []*cluster.Node) int {
	groups := map[string]int{}
	for _, n := range machines {
		groups[fit.GroupOf(c, &n.Machine)] += fit.MembersOn(c, n)
	}
	most := 0
	for _, n := range groups {
		most = max(most, n)
	}
	return min(most, c.Members())
}

// membersApart is how many members the machines could hold if all of them
// reached each other.
func membersApart(c *cluster.Class, machines []*cluster.Node) int {
	all := 0
	for _, n := range machines {
		all += fit.MembersOn(c, n)
	}
	return all
}

// lacking names what no machine has enough of, largest amount included, when
// none could ever run the request.
func lacking(s *cluster.Cluster, c *cluster.Class, e Explanation) []Shortfall {
	switch {
	case e.Machines == 0:
		return nil
	case e.FitEver > 0 && (e.Members == nil || e.Members.Ever >= e.Members.Asked):
		return nil
	case e.FitEver > 0:
		most := strconv.Itoa(e.Members.Ever)
		if e.Members.apart {
			most += " on machines of one network" // see docs/guide/gang-details.md
			if c.Request.SameLabel != "" {
				most += " and one " + c.Request.SameLabel
			}
		}
		return []Shortfall{{"members", strconv.Itoa(e.Members.Asked), most}}
	}
	nodes, miss := selected(s, c)
	if miss != nil {
		return []Shortfall{*miss}
	}
	list := shortfalls(c, nodes)
	if len(list) == 0 { // enough of each, but never on one machine
		list = []Shortfall{{"machine", text(c), "no single machine has all of it"}}
	}
	return list
}

// selected returns the machines that pass every clause about what they are, or
// the first clause that none of them passes.
func selected(s *cluster.Cluster, c *cluster.Class) ([]*cluster.Node, *Shortfall) {
	var nodes []*cluster.Node
	for _, id := range s.MachineIDs() {
		nodes = append(nodes, s.Nodes[id])
	}
	for _, sel := range cluster.Selectors {
		was := nodes
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n *cluster.Node) bool { return !sel.Holds(c, &n.Machine) })
		if len(nodes) == 0 {
			return nil, missing(c, sel.Name, was)
		}
	}
	was := nodes
	nodes = slices.DeleteFunc(slices.Clone(nodes),
		func(n *cluster.Node) bool { return slices.Contains(c.Request.Avoid, n.ID) })
	if len(nodes) == 0 {
		return nil, &Shortfall{"avoid_machines", joined(was, func(n *cluster.Node) string { return string(n.ID) }),
			"no other machine"}
	}
	return nodes, nil
}

func missing(c *cluster.Class, clause string, nodes []*cluster.Node) *Shortfall {
	r := c.Request
	switch clause {
	case "region":
		return &Shortfall{"region", strings.Join(r.Regions, " or "),
			joined(nodes, func(n *cluster.Node) string { return n.Region })}
	case "site":
		return &Shortfall{"site", r.Site, joined(nodes, func(n *cluster.Node) string { return n.Site })}
	case "labels":
		return &Shortfall{"labels", labelText(c.Labels), "no machine has them all"}
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
func shortfalls(c *cluster.Class, nodes []*cluster.Node) []Shortfall {
	r := c.Request
	var list []Shortfall
	most := func(f func(*cluster.Node) int64) int64 {
		var m int64
		for _, n := range nodes {
			m = max(m, f(n))
		}
		return m
	}
	if r.GPUs > 0 {
		typed := most(func(n *cluster.Node) int64 { return countDevices(c, n, c.Typed) })
		large := most(func(n *cluster.Node) int64 {
			return countDevices(c, n, func(d cluster.Device) bool { return c.Typed(d) && c.Large(d) })
		})
		switch {
		case len(r.GPUTypes) > 0 && typed == 0:
			list = append(list, Shortfall{"gpu_type", strings.Join(r.GPUTypes, " or "),
				orNone(joinedSet(nodes, func(n *cluster.Node) []string { return models(n) }))})
		case typed > 0 && large == 0:
			biggest := most(func(n *cluster.Node) int64 { return largestMemory(n, c.Typed) })
			list = append(list, Shortfall{"gpu_memory", spec.MiB(r.GPUMemoryMiB).String(),
				spec.MiB(biggest).String()})
		default:
			usable := most(func(n *cluster.Node) int64 { return int64(fit.UsableDevices(c, n)) })
			if usable < int64(r.GPUs) {
				list = append(list, Shortfall{"gpus", spec.MilliGPU(int64(r.GPUs) * r.GPUMilli).String(),
					strconv.FormatInt(usable, 10)})
			}
		}
	}
	if m := most(func(n *cluster.Node) int64 { return n.Total.CPUMilli }); r.CPUMilli > m {
		list = append(list, Shortfall{"cpus", spec.MilliCPU(r.CPUMilli).String(), spec.MilliCPU(m).String()})
	}
	if m := most(func(n *cluster.Node) int64 { return n.Total.MemoryMiB }); r.MemoryMiB > m {
		list = append(list, Shortfall{"memory", spec.MiB(r.MemoryMiB).String(), spec.MiB(m).String()})
	}
	if m := most(func(n *cluster.Node) int64 { return n.Total.DiskMiB }); r.DiskMiB > m {
		list = append(list, Shortfall{"disk", spec.MiB(r.DiskMiB).String(), spec.MiB(m).String()})
	}
	return list
}

func countDevices(c *cluster.Class, n *cluster.Node, ok func(cluster.Device) bool) int64 {
	var count int64
	for _, d := range n.GPUs {
		if ok(d) {
			count++
		}
	}
	return count
}

func largestMemory(n *cluster.Node, ok func(cluster.Device) bool) int64 {
	var m int64
	for _, d := range n.GPUs {
		if ok(d) {
			m = max(m, d.MemoryMiB)
		}
	}
	return m
}

func models(n *cluster.Node) []string {
	var list []string
	for _, d := range n.GPUs {
		list = append(list, d.Model)
	}
	return list
}

// text is the request's amounts, for people.
func text(c *cluster.Class) string {
	r := c.Request
	cpus, memory, disk := amounts(c)
	parts := []string{cpus, memory}
	if r.DiskMiB > 0 {
		parts = append(parts, disk)
	}
	if r.GPUs > 0 {
		parts = append(parts, spec.MilliGPU(int64(r.GPUs)*r.GPUMilli).String()+" GPUs")
	}
	return strings.Join(parts, ", ")
}

func joined(nodes []*cluster.Node, f func(*cluster.Node) string) string {
	return orNone(joinedSet(nodes, func(n *cluster.Node) []string { return []string{f(n)} }))
}

func joinedSet(nodes []*cluster.Node, f func(*cluster.Node) []string) string {
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
