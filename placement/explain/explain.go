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
	FitNow   int      `json:"fit_now"`  // have room for one member now
	FitEver  int      `json:"fit_ever"` // would have it if nothing ran on them
	Members  *Members `json:"members,omitempty"`
	Clauses  []Clause `json:"clauses,omitempty"` // those that rule out any machine, in order
	Summary  string   `json:"summary"`
	// Candidates are machines that fit now, the best first, at most 20.
	Candidates []berth.MachineID `json:"candidates,omitempty"`
	// SilentEngines are the machines that would have room for a member if nothing
	// ran on them, and get no work because their container engine does not answer.
	SilentEngines []enginesilence.Machine `json:"-"`
	// Lacking says what no machine could ever give; empty if some could.
	Lacking []Shortfall `json:"lacking,omitempty"`
}

// Members is the number of members of a gang that have room at once.
type Members struct {
	Asked int  `json:"asked"`
	Now   int  `json:"now"`
	Ever  int  `json:"ever"`
	apart bool // there are machines enough, but not on one network, or with one value of same_label
}

// Clause is one condition of a request and how many machines it rules out.
type Clause struct {
	Name  string `json:"name"`
	Alone int    `json:"alone"` // machines that fail it
	After int    `json:"after"` // of those that passed every clause before it
	Text  string `json:"text"`  // such as: 2 have no free GPU
}

// Shortfall is a resource that no machine has enough of.
type Shortfall struct {
	Resource string `json:"resource"`
	Asked    string `json:"asked"`
	Largest  string `json:"largest"`
}

// Unsatisfiable reports whether no machine could run the request even if it were empty.
// It is false for a cluster without machines.
func (e Explanation) Unsatisfiable() bool { return len(e.Lacking) > 0 }

// maxCandidates bounds Explanation.Candidates.
const maxCandidates = 20

// condition is a clause as it is checked: on a machine that passed all before.
type condition struct {
	name  string
	lasts bool // would still fail if nothing ran
	fails func(n *cluster.Node) bool
	one   string // 1 ...
	many  string // 2 ...
}

// Class explains a class, clause by clause.
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
			if now {
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

func countText(n int, cond condition) string {
	if n == 1 {
		return "1 " + cond.one
	}
	return strconv.Itoa(n) + " " + cond.many
}

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

// clauses is a class as its explanation reads it.
type clauses struct{ *cluster.Class }

// conditions spells out every clause of the request, in the order in which
// machines are ruled out: state, what the machine is, what it has, what is free.
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

func labelText(labels map[string]string) string {
	var parts []string
	for _, k := range sortedKeys(labels) {
		parts = append(parts, k+"="+labels[k])
	}
	return strings.Join(parts, ", ")
}

// folders names the volumes that the job reads.
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

// totalConditions are about what a machine has when nothing runs on it.
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

// freeConditions are about what is left on a machine now.
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

func fewer(n int, free, noun string) string {
	if n == 1 {
		return "no " + free + noun
	}
	return fmt.Sprintf("fewer than %d %s%ss", n, free, noun)
}

func amounts(c *cluster.Class) (cpus, memory, disk string) {
	r := c.Request
	cpus = spec.MilliCPU(r.CPUMilli).String() + " CPUs"
	if r.CPUMilli == 1000 {
		cpus = "1 CPU"
	}
	return cpus, spec.MiB(r.MemoryMiB).String() + " of memory", spec.MiB(r.DiskMiB).String() + " of disk"
}

// hasDevices reports whether the devices the request needs are free.
func hasDevices(c *cluster.Class, n *cluster.Node) bool {
	count := 0
	for i, d := range n.GPUs {
		if n.FreeMilli[i] >= c.Request.GPUMilli && c.Typed(d) && c.Large(d) && c.Admits(&n.Machine, d) {
			count++
		}
	}
	return count >= c.Request.GPUs && c.Capacity.GPUMilli <= n.Free.GPUMilli
}
