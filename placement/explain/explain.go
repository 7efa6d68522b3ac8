package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth"
	"berth/internal/lib/enginesilence"
	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/spec"
)

// Explanation compares a request with the machines, clause by clause.
type Explanation struct {
	Machines int      `json:"machines"`
	FitNow   int      `json:"fit_now"`  // machines with room for one member now
	FitEver  int      `json:"fit_ever"` // machines with room for one member if nothing ran on them
	Members  *Members `json:"members,omitempty"`
	Clauses  []Clause `json:"clauses,omitempty"` // the clauses that rule out any machine, in order
	Summary  string   `json:"summary"`
	// Candidates lists machines that fit now, the best first, at most 20.
	Candidates []berth.MachineID `json:"candidates,omitempty"`
	// SilentEngines lists the machines that would have room for a member if nothing
	// ran on them, but get no work because their container engine does not answer.
	SilentEngines []enginesilence.Machine `json:"-"`
	// Lacking lists the resources that no machine could ever provide. It is empty if an
	// empty machine, or enough empty machines for a gang, could run the request.
	Lacking []Shortfall `json:"lacking,omitempty"`
}

// Members is the number of members of a gang that have room at once.
type Members struct {
	Asked int  `json:"asked"`
	Now   int  `json:"now"`  // on the machines as they are
	Ever  int  `json:"ever"` // on the machines if nothing ran on them
	apart bool // enough machines exist, but not on one network or with one value of same_label
}

// Clause is one condition of a request, with the number of machines that it rules out.
type Clause struct {
	Name  string `json:"name"`
	Alone int    `json:"alone"` // machines that fail this clause
	After int    `json:"after"` // machines that fail it and pass all clauses before it
	Text  string `json:"text"`  // After in words, such as: 2 have no free GPU
}

// Shortfall is a resource of which no machine has enough.
type Shortfall struct {
	Resource string `json:"resource"`
	Asked    string `json:"asked"`
	Largest  string `json:"largest"` // the largest amount on any machine
}

// Unsatisfiable reports whether the request fits on no machine, even on an empty one. It
// is false for a cluster without machines.
func (e Explanation) Unsatisfiable() bool { return len(e.Lacking) > 0 }

// maxCandidates bounds Explanation.Candidates.
const maxCandidates = 20

// condition is a clause with its check and its texts.
type condition struct {
	name  string
	lasts bool // a machine that fails it would fail it without running jobs, too
	fails func(n *cluster.Node) bool
	one   string // text after "1", such as "is not ready"
	many  string // text after a number above 1, such as "are not ready"
}

// Class explains a class, clause by clause. It checks each clause on every machine, so it
// costs O(clauses × machines).
func Class(s *fit.State, c *cluster.Class) Explanation {
	s.Cluster.Settle(c)
	conditions := clauses{c}.conditions()
	e := Explanation{Machines: len(s.Cluster.Nodes)}
	alone, after := make([]int, len(conditions)), make([]int, len(conditions))
	var ever []*cluster.Node
	for _, id := range s.Cluster.MachineIDs() {
		n := s.Cluster.Nodes[id]
		now, always := true, true
		for i, cond := range conditions {
			if !cond.fails(n) {
				continue
			}
			alone[i]++
			if now { // the first clause that the machine fails
				after[i]++
			}
			now = false
			always = always && !cond.lasts
		}
		if now {
			e.FitNow++
		}
		if always {
			e.FitEver++
			ever = append(ever, n)
			if n.Open() && !n.EngineSilentSince.IsZero() {
				e.SilentEngines = append(e.SilentEngines, enginesilence.Machine{ID: n.ID, Since: n.EngineSilentSince})
			}
		}
	}
	for i, cond := range conditions {
		if alone[i] > 0 {
			e.Clauses = append(e.Clauses, Clause{cond.name, alone[i], after[i], countText(after[i], cond)})
		}
	}
	e.Candidates = fit.BestMachines(c, maxCandidates)
	if c.Members() > 1 {
		e.Members = &Members{Asked: c.Members(), Now: fit.MembersNow(s, c), Ever: membersEver(c, ever),
			apart: membersApart(c, ever) >= c.Members()}
	}
	e.Lacking = lacking(s.Cluster, c, e)
	e.Summary = summaryText(e)
	return e
}

// countText renders a number of machines that fail a condition.
func countText(n int, cond condition) string {
	if n == 1 {
		return "1 " + cond.one
	}
	return strconv.Itoa(n) + " " + cond.many
}

// summaryText renders the explanation as one line: the machines that each clause rules
// out, each machine counted once, and the machines that fit.
func summaryText(e Explanation) string {
	machines := "1 machine"
	if e.Machines != 1 {
		machines = strconv.Itoa(e.Machines) + " machines"
	}
	var parts []string
	for _, c := range e.Clauses {
		if c.After > 0 {
			parts = append(parts, c.Text)
		}
	}
	switch {
	case e.Machines == 0:
		return "there are no machines"
	case e.FitNow > 0 && e.FitNow == 1:
		parts = append(parts, "1 fits now")
	case e.FitNow > 0:
		parts = append(parts, strconv.Itoa(e.FitNow)+" fit now")
	}
	if e.Members != nil && e.Members.Now < e.Members.Asked {
		parts = append(parts, fmt.Sprintf("room for %d of %d members", e.Members.Now, e.Members.Asked))
	}
	return machines + ": " + strings.Join(parts, ", ")
}

// clauses adds the conditions and texts of explanations to a class.
type clauses struct{ *cluster.Class }

// conditions lists every clause of the request in the order in which clauses rule out
// machines: state, fixed properties, total capacity, free capacity. State and free
// capacity do not last: they change without a change to the request or the machine.
func (c clauses) conditions() []condition {
	r := c.Request
	list := []condition{
		{"state", false, func(n *cluster.Node) bool { return !n.Open() }, "is not ready", "are not ready"},
		{"engine", false, func(n *cluster.Node) bool { return !n.EngineSilentSince.IsZero() },
			"has a container engine that does not answer", "have container engines that do not answer"},
	}
	for _, s := range cluster.Selectors {
		one, many := c.selectorText(s.Name)
		list = append(list, condition{s.Name, true, func(n *cluster.Node) bool { return !s.Holds(c.Class, &n.Machine) },
			one, many})
	}
	list = append(list,
		condition{"avoid_machines", true, func(n *cluster.Node) bool { return slices.Contains(r.Avoid, n.ID) },
			"is to be avoided", "are to be avoided"})
	list = append(list, c.totalConditions()...)
	return append(list, c.freeConditions()...)
}

// selectorText returns the texts of a selector's condition, as condition.one and
// condition.many. It panics on a selector without a text, so that a new selector gets one.
func (c clauses) selectorText(name string) (one, many string) {
	r := c.Request
	switch name {
	case "region":
		where := "in region " + strings.Join(r.Regions, " or ")
		return "is not " + where, "are not " + where
	case "site":
		return "is not at site " + r.Site, "are not at site " + r.Site
	case "labels":
		return "lacks label " + labelText(c.Labels), "lack label " + labelText(c.Labels)
	case "file_inputs":
		return "does not share " + c.folders(), "do not share " + c.folders()
	case "execution":
		return "cannot fence at_most_one work", "cannot fence at_most_one work"
	case "same_label":
		return "has no label " + r.SameLabel, "have no label " + r.SameLabel
	case "constraint":
		if c.Broken != nil {
			return "cannot be judged: the constraint is wrong", "cannot be judged: the constraint is wrong"
		}
		return "does not match the constraint", "do not match the constraint"
	}
	panic("placement: no text for selector " + name)
}

// labelText renders labels in the order of their keys.
func labelText(labels map[string]string) string {
	var parts []string
	for _, k := range sortedKeys(labels) {
		parts = append(parts, k+"="+labels[k])
	}
	return strings.Join(parts, ", ")
}

// folders lists the shared folders that the job reads.
func (c clauses) folders() string {
	var names []string
	for _, k := range sortedKeys(c.Volumes) {
		v, _ := spec.VolumeOf(k)
		names = append(names, v.String())
	}
	if len(names) == 1 {
		return "the folder " + names[0]
	}
	return "the folders " + strings.Join(names, " and ")
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// totalConditions lists the conditions on a machine's total capacity. Only a condition on
// devices depends on more than an amount: on type, memory and count, in this order, so
// that the first one that fails names the most specific reason.
func (c clauses) totalConditions() []condition {
	r := c.Request
	var list []condition
	if r.GPUs > 0 {
		if len(r.GPUTypes) > 0 {
			types := strings.Join(r.GPUTypes, " or ")
			list = append(list, condition{"gpu_type", true, func(n *cluster.Node) bool {
				return !slices.ContainsFunc(n.GPUs, c.Typed)
			}, "lacks GPU type " + types, "lack GPU type " + types})
		}
		if r.GPUMemoryMiB > 0 {
			text := "no GPU with " + spec.MiB(r.GPUMemoryMiB).String()
			list = append(list, condition{"gpu_memory", true, func(n *cluster.Node) bool {
				return !slices.ContainsFunc(n.GPUs, func(d cluster.Device) bool { return c.Typed(d) && c.Large(d) })
			}, "has " + text, "have " + text})
		}
		lacks := fewer(r.GPUs, "", "GPU")
		list = append(list, condition{"gpus", true,
			func(n *cluster.Node) bool {
				return fit.UsableDevices(c.Class, n) < r.GPUs || c.Capacity.GPUMilli > n.Total.GPUMilli
			}, "has " +
				lacks, "have " + lacks})
	}
	cpus, memory, disk := amounts(c.Class)
	return append(list,
		condition{"cpus", true, func(n *cluster.Node) bool { return r.CPUMilli > n.Total.CPUMilli },
			"has fewer than " + cpus, "have fewer than " + cpus},
		condition{"memory", true, func(n *cluster.Node) bool { return r.MemoryMiB > n.Total.MemoryMiB },
			"has less than " + memory, "have less than " + memory},
		condition{"disk", true, func(n *cluster.Node) bool { return r.DiskMiB > n.Total.DiskMiB },
			"has less than " + disk, "have less than " + disk},
	)
}

// freeConditions lists the conditions on a machine's free capacity.
func (c clauses) freeConditions() []condition {
	r := c.Request
	var list []condition
	if r.GPUs > 0 {
		lacks := fewer(r.GPUs, "free ", "GPU")
		if r.GPUMilli < 1000 {
			lacks = "no GPU with a share of " + spec.MilliGPU(r.GPUMilli).String() + " free"
		}
		list = append(list, condition{"free_gpus", false, func(n *cluster.Node) bool { return !hasDevices(c.Class, n) },
			"has " + lacks, "have " + lacks})
	}
	cpus, memory, disk := amounts(c.Class)
	return append(list,
		condition{"free_cpus", false, func(n *cluster.Node) bool { return r.CPUMilli > n.Free.CPUMilli },
			"has fewer than " + cpus + " free", "have fewer than " + cpus + " free"},
		condition{"free_memory", false, func(n *cluster.Node) bool { return r.MemoryMiB > n.Free.MemoryMiB },
			"has less than " + memory + " free", "have less than " + memory + " free"},
		condition{"free_disk", false, func(n *cluster.Node) bool { return r.DiskMiB > n.Free.DiskMiB },
			"has less than " + disk + " free", "have less than " + disk + " free"},
	)
}

// fewer renders a lack of n devices: "no GPU" for 1, "fewer than 4 GPUs" for 4.
func fewer(n int, free, noun string) string {
	if n == 1 {
		return "no " + free + noun
	}
	return fmt.Sprintf("fewer than %d %s%ss", n, free, noun)
}

// amounts renders the request of one member with units.
func amounts(c *cluster.Class) (cpus, memory, disk string) {
	r := c.Request
	cpus = spec.MilliCPU(r.CPUMilli).String() + " CPUs"
	if r.CPUMilli == 1000 {
		cpus = "1 CPU"
	}
	return cpus, spec.MiB(r.MemoryMiB).String() + " of memory", spec.MiB(r.DiskMiB).String() + " of disk"
}

// hasDevices reports whether the devices of one member are free, and their GPU share within
// the machine's free GPU capacity.
func hasDevices(c *cluster.Class, n *cluster.Node) bool {
	count := 0
	for i, d := range n.GPUs {
		if n.FreeMilli[i] >= c.Request.GPUMilli && c.Typed(d) && c.Large(d) && c.Admits(&n.Machine, d) {
			count++
		}
	}
	return count >= c.Request.GPUs && c.Capacity.GPUMilli <= n.Free.GPUMilli
}
