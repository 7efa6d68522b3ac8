package explain

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/spec"
)

// membersEver returns the number of members of one gang that the machines could hold if
// they were empty, at most c.Members(). It takes the best group of machines: members of a
// gang need one network and one value of same_label.
func membersEver(c *cluster.Class, machines []*cluster.Node) int {
	groups := map[string]int{}
	for _, n := range machines {
		groups[c.GroupOf(&n.Machine)] += fit.MembersOn(c, n)
	}
	most := 0
	for _, n := range groups {
		most = max(most, n)
	}
	return min(most, c.Members())
}

// membersApart returns the number of members that the machines could hold if they were
// empty and all in one group.
func membersApart(c *cluster.Class, machines []*cluster.Node) int {
	all := 0
	for _, n := range machines {
		all += fit.MembersOn(c, n)
	}
	return all
}

// lacking returns the resources of which no machine has enough, with the largest amount of
// each. It is nil if the cluster could ever run the request, and for a cluster without
// machines, where each resource would be missing.
//
// It names the first reason only: too few machines for the members, a clause that no
// machine passes, amounts, or the combination of amounts on one machine.
func lacking(s *cluster.Cluster, c *cluster.Class, e Explanation) []Shortfall {
	switch {
	case e.Machines == 0:
		return nil
	case e.FitEver > 0 && (e.Members == nil || e.Members.Ever >= e.Members.Asked):
		return nil
	case e.FitEver > 0:
		most := strconv.Itoa(e.Members.Ever)
		if e.Members.apart {
			most += " on one network" // see docs/guide/gang-details.md
			if c.Request.SameLabel != "" {
				most += " with one value of " + c.Request.SameLabel
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
		list = []Shortfall{{"machine", text(c), "no single machine has all of them"}}
	}
	return list
}

// selected returns the machines that pass every clause about fixed properties. If a clause
// leaves no machine, it returns this clause as a shortfall instead.
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

// missing returns the shortfall of a selector that none of the nodes passes. For a region
// or a site, Largest lists the values that the nodes have.
func missing(c *cluster.Class, clause string, nodes []*cluster.Node) *Shortfall {
	r := c.Request
	switch clause {
	case "pool_tenants":
		return &Shortfall{"pool_tenants", "a pool that takes the job's tenant", poolText(c.ClosedPools)}
	case "taints":
		return &Shortfall{"taints", "tolerations of taints", clauses{c}.taintCondition().none + ": " +
			joinedSet(nodes, func(n *cluster.Node) []string { return spec.Untolerated(r.Tolerations, n.Taints) })}
	case "floors":
		return &Shortfall{"floors", "machines that meet the security floors", clauses{c}.floorCondition().none + ": " +
			joinedSet(nodes, func(n *cluster.Node) []string { return []string{n.Unmet} })}
	case "region":
		return &Shortfall{"region", strings.Join(r.Regions, " or "),
			joined(nodes, func(n *cluster.Node) string { return n.Region })}
	case "residency":
		return &Shortfall{"residency", strings.Join(r.Residency, " or "),
			joined(nodes, func(n *cluster.Node) string { return n.Region })}
	case "site":
		return &Shortfall{"site", r.Site, joined(nodes, func(n *cluster.Node) string { return n.PlacedAt() })}
	case "spot":
		return &Shortfall{"spot", string(r.Spot), joined(nodes, func(n *cluster.Node) string { return n.Market })}
	case "max_price":
		return &Shortfall{"max_price_per_hour", fmt.Sprintf("$%g", r.MaxPrice),
			joined(nodes, func(n *cluster.Node) string { return fmt.Sprintf("$%g", n.Price) })}
	case "labels":
		return &Shortfall{"labels", labelText(c.Labels), "no machine has all these labels"}
	case "file_inputs":
		return &Shortfall{"file_inputs", clauses{c}.folders(), "no machine shares it"}
	case "egress":
		return &Shortfall{"egress", "network.egress other than " + string(spec.EgressPublic),
			"no machine can enforce it (older agents, machines without nftables or, for names, without a resolver, " +
				"and for gangs an operator's network)"}
	case "execution":
		return &Shortfall{"execution", string(r.Execution), "no machine can fence it (none runs berth-deadman)"}
	case "same_label":
		return &Shortfall{"same_label", r.SameLabel, "no machine has it"}
	case "constraint":
		return &Shortfall{"constraint", r.Constraint, "no machine matches"}
	}
	panic("placement: no shortfall for selector " + clause)
}

// shortfalls compares the request of one member with the largest amount of each resource
// on any of the nodes. Each amount may come from another node.
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
		switch { // the first lack only: devices of no type have no memory to compare
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

// countDevices returns the number of devices of a machine for which ok returns true.
func countDevices(c *cluster.Class, n *cluster.Node, ok func(cluster.Device) bool) int64 {
	var count int64
	for _, d := range n.GPUs {
		if ok(d) {
			count++
		}
	}
	return count
}

// largestMemory returns the largest memory of such a device, in MiB.
func largestMemory(n *cluster.Node, ok func(cluster.Device) bool) int64 {
	var m int64
	for _, d := range n.GPUs {
		if ok(d) {
			m = max(m, d.MemoryMiB)
		}
	}
	return m
}

// models lists the model of each device of a machine.
func models(n *cluster.Node) []string {
	var list []string
	for _, d := range n.GPUs {
		list = append(list, d.Model)
	}
	return list
}

// text renders all amounts of the request of one member.
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

// joined lists the different values of f on the machines, sorted, or "none".
func joined(nodes []*cluster.Node, f func(*cluster.Node) string) string {
	return orNone(joinedSet(nodes, func(n *cluster.Node) []string { return []string{f(n)} }))
}

// joinedSet lists the different non-empty values of f on the machines, sorted.
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

// orNone replaces an empty list in a text.
func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
