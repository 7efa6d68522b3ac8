package explain

import (
	"fmt"
	"maps"
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
	// Short is the reason for which no machine has room, in a few words; "" if one has. Shut
	// reports that the reason is the state of the machines, and no other job. Closed lists the
	// first of these machines, if the request would fit on each when idle.
	Short  string            `json:"-"`
	Shut   bool              `json:"-"`
	Closed []berth.MachineID `json:"-"`
	// Pools lists the pools with a machine that would have room for a member if nothing
	// ran on it, sorted.
	Pools []string `json:"-"`
	// Candidates lists machines that fit now, the best first, at most 20.
	Candidates []berth.MachineID `json:"candidates,omitempty"`
	// SilentEngines lists the machines that would have room for a member if nothing
	// ran on them, but get no work because their container engine does not answer.
	SilentEngines []enginesilence.Machine `json:"-"`
	// Lacking lists the resources that no machine could ever provide. It is empty if an
	// empty machine, or enough empty machines for a gang, could run the request.
	Draining bool `json:"-"`
	// Group is the group of unlike members that the explanation is about; "": all members are alike.
	Group string `json:"-"`
	// Scarce lists GPUs with room that the request could use, but that new jobs with a choice
	// are kept off; nil: none.
	Scarce *fit.Scarce `json:"-"`
	// ScarceBlocks describes machines with room that the request could use, but that new jobs for
	// so few GPUs are kept off; nil: none.
	ScarceBlocks *fit.ScarceBlocks `json:"-"`
	Lacking      []Shortfall       `json:"lacking,omitempty"`
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
	needs string // the requested free amount, such as "2 CPUs"; "": no condition on free amounts
	one   string // text after "1", such as "is not ready"
	many  string // text after a number above 1, such as "are not ready"
	none  string // if it rules out all machines
	most  amount // the amount that is compared; unset: none

	detail func(n *cluster.Node) string // why a machine fails it, such as "m1 tainted maintenance"; nil: nothing to add
}
type amount struct {
	of   func(n *cluster.Node) int64
	text func(int64) string
}
type ruledOut struct {
	count int
	some  []*cluster.Node // the first shownMachines
	best  *cluster.Node   // with the largest amount; nil: there is none
}

const shownMachines = 3

func (r *ruledOut) add(c condition, n *cluster.Node) {
	if r.count++; r.count <= shownMachines {
		r.some = append(r.some, n)
	}
	if c.most.of != nil && (r.best == nil || c.most.of(n) > c.most.of(r.best)) {
		r.best = n
	}
}

// Class explains a class, clause by clause. It checks each clause on every machine, so it
// costs O(clauses × machines). Of a gang with unlike members it explains the group that lacks room.
func Class(s *fit.State, c *cluster.Class) Explanation {
	s.Cluster.Settle(c)
	if c.Unlike() != nil {
		return unlike(s, c)
	}
	return alike(s, c)
}

// alike explains a class of equal members.
func alike(s *fit.State, c *cluster.Class) Explanation {
	conditions := clauses{c}.conditions()
	e := Explanation{Machines: len(s.Cluster.Nodes)}
	alone, after := make([]int, len(conditions)), make([]ruledOut, len(conditions))
	var ever []*cluster.Node
	var closed ruledOut // of the machines in ever, those that accept no jobs
	for _, id := range s.Cluster.MachineIDs() {
		n := s.Cluster.Nodes[id]
		now, always := true, true
		for i, cond := range conditions {
			if !cond.fails(n) {
				continue
			}
			alone[i]++
			if now { // the first clause that the machine fails
				after[i].add(cond, n)
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
			if !n.Open() {
				closed.add(condition{}, n)
			}
			if n.Open() && !n.EngineSilentSince.IsZero() {
				e.SilentEngines = append(e.SilentEngines, enginesilence.Machine{ID: n.ID, Since: n.EngineSilentSince})
			}
		}
	}
	for i, cond := range conditions {
		if alone[i] > 0 {
			e.Clauses = append(e.Clauses, Clause{cond.name, alone[i], after[i].count, countText(after[i], cond)})
		}
	}
	e.Candidates = fit.BestMachines(c, maxCandidates)
	if c.Members() > 1 {
		e.Members = &Members{Asked: c.Members(), Now: fit.MembersNow(s, c), Ever: membersEver(c, ever),
			apart: membersApart(c, ever) >= c.Members()}
	}
	e.Lacking, e.Pools = lacking(s.Cluster, c, e), poolsOf(ever)
	if e.FitNow > 0 {
		e.Scarce, e.ScarceBlocks = s.Packer.Scarce(c), s.Packer.ScarceBlocks(c)
	}
	return described(e, conditions, after, closed)
}

// poolsOf lists the pools of the machines, each once, sorted.
func poolsOf(machines []*cluster.Node) []string {
	set := map[string]bool{}
	for _, n := range machines {
		set[n.Pool] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// clauses adds the conditions and texts of explanations to a class.
type clauses struct{ *cluster.Class }

// conditions lists every clause of the request in the order in which clauses rule out
// machines: state, fixed properties, total capacity, maintenance, other tenants, free capacity. State,
// maintenance, tenants and free capacity do not last: they change without a change to the request or the machine.
func (c clauses) conditions() []condition {
	r := c.Request
	list := []condition{
		{name: "state", fails: func(n *cluster.Node) bool { return !n.Open() },
			one: "is not ready", many: "are not ready", none: "no machine is ready"},
		{name: "engine", fails: func(n *cluster.Node) bool { return !n.EngineSilentSince.IsZero() },
			one: "has a container engine that does not answer", many: "have container engines that do not answer",
			none: "no machine has a container engine that answers"},
	}
	for _, s := range cluster.Selectors {
		cond := c.selectorText(s.Name)
		cond.name = s.Name
		cond.lasts = s.Name != "taints" && s.Name != "floors" // operators remove taints and upgrade engines
		cond.fails = func(n *cluster.Node) bool { return !s.Holds(c.Class, &n.Machine) }
		list = append(list, cond)
	}
	list = append(list,
		condition{name: "avoid_machines", lasts: true,
			fails: func(n *cluster.Node) bool { return slices.Contains(r.Avoid, n.ID) },
			one:   "is avoided by the job", many: "are avoided by the job", none: "the job avoids every machine"})
	list = append(list, c.totalConditions()...)
	list = append(list, windowCondition())
	if c.OfTenant != "" {
		list = append(list, c.otherTenantCondition())
	}
	return append(list, c.freeConditions()...)
}

// selectorText returns the texts of a selector's condition, as condition.one and
// condition.many. It panics on a selector without a text, so that a new selector gets one.
func (c clauses) selectorText(name string) condition {
	r := c.Request
	is := func(what string) condition {
		return condition{one: "is not " + what, many: "are not " + what, none: "no machine is " + what}
	}
	has := func(what string) condition {
		return condition{one: "lacks " + what, many: "lack " + what, none: "no machine has " + what}
	}
	switch name {
	case "pool_tenants":
		return c.poolCondition()
	case "taints":
		return c.taintCondition()
	case "floors":
		return c.floorCondition()
	case "region":
		return is("in region " + strings.Join(r.Regions, " or "))
	case "residency":
		return is("in a region that begins with " + strings.Join(r.Residency, " or ") + ", as an input demands")
	case "site":
		return is("at site " + r.Site)
	case "spot":
		if r.Spot == spec.SpotNever {
			const text = "a machine of the spot market, which placement.spot forbids"
			return condition{one: "is " + text, many: "are machines of the spot market, which placement.spot forbids",
				none: "each machine is " + text}
		}
		return is("of the spot market, as placement.spot demands")
	case "max_price":
		text := fmt.Sprintf("more than the $%g an hour of placement.max_price_per_hour, or a price that is not known",
			r.MaxPrice)
		return condition{one: "costs " + text, many: "cost " + text, none: "each machine costs " + text}
	case "labels":
		return has("label " + labelText(c.Labels))
	case "file_inputs":
		return condition{one: "does not share " + c.folders(), many: "do not share " + c.folders(),
			none: "no machine shares " + c.folders()}
	case "egress":
		const text = "cannot enforce the job's network.egress"
		return condition{one: text, many: text, none: "no machine can enforce the job's network.egress"}
	case "execution":
		return condition{one: "cannot fence at_most_one jobs", many: "cannot fence at_most_one jobs",
			none: "no machine can fence at_most_one jobs"}
	case "same_label":
		return has("label " + r.SameLabel)
	case "constraint":
		if c.Broken != nil {
			const text = "cannot be checked, since the constraint is invalid"
			return condition{one: text, many: text, none: "the constraint is invalid"}
		}
		return condition{one: "does not match the constraint", many: "do not match the constraint",
			none: "no machine matches the constraint"}
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
		if v, ok := spec.MountOf(k); ok {
			names = append(names, v.String()+" for mounts")
			continue
		}
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
			types := "GPU type " + strings.Join(r.GPUTypes, " or ")
			list = append(list, condition{name: "gpu_type", lasts: true, fails: func(n *cluster.Node) bool {
				return !slices.ContainsFunc(n.GPUs, c.Typed)
			}, one: "lacks " + types, many: "lack " + types, none: "no machine has " + types})
		}
		if r.GPUMemoryMiB > 0 {
			memory := "GPU with " + spec.MiB(r.GPUMemoryMiB).String()
			list = append(list, condition{name: "gpu_memory", lasts: true, fails: func(n *cluster.Node) bool {
				return !slices.ContainsFunc(n.GPUs, func(d cluster.Device) bool { return c.Typed(d) && c.Large(d) })
			}, one: "has no " + memory, many: "have no " + memory, none: "no machine has a " + memory})
		}
		cond := gpuCondition("gpus", r.GPUs, "")
		cond.lasts = true
		cond.fails = func(n *cluster.Node) bool {
			return fit.UsableDevices(c.Class, n) < r.GPUs || c.Capacity.GPUMilli > n.Total.GPUMilli
		}
		cond.most = amount{func(n *cluster.Node) int64 { return int64(fit.UsableDevices(c.Class, n)) }, count}
		list = append(list, cond)
	}
	of := func(n *cluster.Node) berth.Capacity { return n.Total }
	return append(list, c.capacityConditions("", "", true, of)...)
}

// freeConditions lists the conditions on a machine's free capacity.
func (c clauses) freeConditions() []condition {
	r := c.Request
	var list []condition
	if r.GPUs > 0 {
		cond := gpuCondition("free_gpus", r.GPUs, "free ")
		if r.GPUMilli < 1000 {
			lacks := "GPU with a share of " + spec.MilliGPU(r.GPUMilli).String() + " free"
			cond = condition{name: "free_gpus", one: "has no " + lacks, many: "have no " + lacks,
				none: "no machine has a " + lacks}
			cond.needs = spec.MilliGPU(r.GPUMilli).String() + " of a GPU"
		} else {
			cond.most = amount{func(n *cluster.Node) int64 { return int64(freeDevices(c.Class, n)) }, count}
			cond.needs = fmt.Sprintf("%d GPUs", r.GPUs)
			if r.GPUs == 1 {
				cond.needs = "1 GPU"
			}
		}
		cond.fails = func(n *cluster.Node) bool { return !hasDevices(c.Class, n) }
		list = append(list, cond)
		if c.Sharer != cluster.NoSharer {
			list = append(list, c.tenantCondition())
		}
	}
	of := func(n *cluster.Node) berth.Capacity { return n.Free }
	return append(list, c.capacityConditions("free_", " free", false, of)...)
}

// tenantCondition is the clause that no other tenant shares the device.
func (c clauses) tenantCondition() condition {
	const has = "free shares only on GPUs that another tenant shares"
	return condition{name: "gpu_tenant", one: "has " + has, many: "have " + has,
		none: fmt.Sprintf("no machine has a GPU with a share of %s free that no other tenant shares",
			spec.MilliGPU(c.Request.GPUMilli)),
		fails: func(n *cluster.Node) bool {
			return hasDevices(c.Class, n) && !slices.ContainsFunc(usable(c.Class, n),
				func(i int) bool { return c.MayUse(n, i) })
		}}
}

// fewer renders a lack of n devices: "no GPU" for 1, "fewer than 4 GPUs" for 4.
func gpuCondition(name string, n int, free string) condition {
	if n == 1 {
		return condition{name: name, one: "has no " + free + "GPU", many: "have no " + free + "GPU",
			none: "no machine has a " + free + "GPU"}
	}
	lacks := fmt.Sprintf("%d %sGPUs", n, free)
	return condition{name: name, one: "has fewer than " + lacks, many: "have fewer than " + lacks,
		none: "no machine has " + lacks}
}

// amounts renders the request of one member with units.
func (c clauses) capacityConditions(
	prefix, free string, lasts bool, of func(*cluster.Node) berth.Capacity,
) []condition {
	cpus, memory, disk := amounts(c.Class)
	var list []condition
	for _, x := range []struct {
		name, than, asked string
		want              int64
		of                func(berth.Capacity) int64
		text              func(int64) string
	}{
		{"cpus", "fewer than ", cpus, c.Request.CPUMilli, func(a berth.Capacity) int64 { return a.CPUMilli },
			func(n int64) string { return spec.MilliCPU(n).String() }},
		{"memory", "less than ", memory, c.Request.MemoryMiB, func(a berth.Capacity) int64 { return a.MemoryMiB },
			func(n int64) string { return spec.MiB(n).String() }},
		{"disk", "less than ", disk, c.Request.DiskMiB, func(a berth.Capacity) int64 { return a.DiskMiB },
			func(n int64) string { return spec.MiB(n).String() }},
	} {
		needs := x.asked
		if lasts {
			needs = "" // a machine's total is not free room
		}
		list = append(list, condition{
			name: prefix + x.name, lasts: lasts, needs: needs,
			fails: func(n *cluster.Node) bool { return x.want > x.of(of(n)) },
			one:   "has " + x.than + x.asked + free, many: "have " + x.than + x.asked + free,
			none: "no machine has " + x.asked + free,
			most: amount{func(n *cluster.Node) int64 { return x.of(of(n)) }, x.text},
		})
	}
	return list
}
func count(n int64) string { return strconv.FormatInt(n, 10) }
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
	return freeDevices(c, n) >= c.Request.GPUs && c.Capacity.GPUMilli <= n.Free.GPUMilli
}

// freeDevices returns the number of free devices that the request may use, regardless of the
// tenants that share them.
func freeDevices(c *cluster.Class, n *cluster.Node) int { return len(usable(c, n)) }

// usable lists these devices, as positions in n.GPUs.
func usable(c *cluster.Class, n *cluster.Node) (list []int) {
	for i, d := range n.GPUs {
		if n.FreeMilli[i] >= c.Request.GPUMilli && c.Typed(d) && c.Large(d) && c.Admits(&n.Machine, d) {
			list = append(list, i)
		}
	}
	return list
}
