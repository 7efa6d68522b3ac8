package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/internal/lib/jobfile"
	"berth/placement"
	"berth/spec"
)

// scenario is the description of a simulated cluster: its machines, its tenants and the
// streams of jobs that arrive. The fields are listed in docs/design/simulation.md.
type scenario struct {
	Seed     int           `json:"seed,omitempty"` // the same seed gives the same jobs
	Duration spec.Duration `json:"duration"`       // of the arrivals; the run continues until all jobs have ended
	Policy   policySpec    `json:"policy,omitempty"`
	Machines []machineSpec `json:"machines"`
	Tenants  []tenantSpec  `json:"tenants,omitempty"` // a parent before its children
	Jobs     []jobSpec     `json:"jobs"`
}

// policySpec sets fields of placement.Policy; a zero value means the same in both.
type policySpec struct {
	Order        string        `json:"order,omitempty"` // fair, priority, fifo or srsf; "": fair
	BandWidth    int           `json:"band_width,omitempty"`
	Aging        spec.Duration `json:"aging,omitempty"`
	HalfLife     spec.Duration `json:"half_life,omitempty"`
	EntryPenalty spec.Duration `json:"entry_penalty,omitempty"`
	Backfill     int           `json:"backfill,omitempty"`
	Preempt      bool          `json:"preempt,omitempty"`
	PreemptAfter spec.Duration `json:"preempt_after,omitempty"`
	MinRuntime   spec.Duration `json:"min_runtime,omitempty"`
	Overdue      spec.Duration `json:"overdue,omitempty"`
	AssumeRun    spec.Duration `json:"assume_run,omitempty"`
}

// machineSpec is a group of equal machines.
type machineSpec struct {
	Count   int               `json:"count,omitempty"` // 0: one machine
	CPUs    spec.MilliCPU     `json:"cpus"`
	Memory  spec.MiB          `json:"memory"`
	GPUs    int               `json:"gpus,omitempty"`
	GPUType string            `json:"gpu_type,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
}

// tenantSpec is one tenant of the scenario.
type tenantSpec struct {
	Name      string     `json:"name"`
	Parent    string     `json:"parent,omitempty"`
	Weight    float64    `json:"weight,omitempty"` // 0: the planner's default, 1
	Guarantee amountSpec `json:"guarantee,omitempty"`
	Limit     amountSpec `json:"limit,omitempty"` // a zero resource: no limit
}

// amountSpec is a quantity of the resources that quotas count.
type amountSpec struct {
	CPUs   spec.MilliCPU `json:"cpus,omitempty"`
	Memory spec.MiB      `json:"memory,omitempty"`
	GPUs   spec.MilliGPU `json:"gpus,omitempty"`
}

func (a amountSpec) capacity() berth.Capacity {
	return berth.Capacity{CPUMilli: int64(a.CPUs), MemoryMiB: int64(a.Memory), GPUMilli: int64(a.GPUs)}
}

// jobSpec is one stream of similar jobs.
type jobSpec struct {
	Tenant      string         `json:"tenant,omitempty"`
	Every       spec.Duration  `json:"every"`           // mean gap, exponentially distributed
	Batch       int            `json:"batch,omitempty"` // jobs per arrival; 0: one
	From        spec.Duration  `json:"from,omitempty"`
	Until       spec.Duration  `json:"until,omitempty"`      // 0: the duration of the scenario
	Run         spec.Duration  `json:"run"`                  // median
	RunSpread   float64        `json:"run_spread,omitempty"` // deviation of its logarithm
	TimeLimit   spec.Duration  `json:"time_limit,omitempty"` // cuts longer runs; 0: none
	Declared    bool           `json:"declared,omitempty"`   // the planner knows the run time
	Resources   spec.Resources `json:"resources,omitempty"`
	Members     int            `json:"members,omitempty"` // size of the gang; 0: one member
	SameLabel   string         `json:"same_label,omitempty"`
	Priority    *spec.Priority `json:"priority,omitempty"`
	Preemptible *bool          `json:"preemptible,omitempty"`
	Checkpoint  spec.Duration  `json:"checkpoint,omitempty"` // interval; 0: none
	StartCost   spec.Duration  `json:"start_cost,omitempty"` // work that each start adds
}

// Bounds of a scenario, so that a typing error does not fill the memory.
const (
	maxSimMachines = 20_000
	maxSimJobs     = 200_000
)

// readScenario decodes a file; its errors name line and column.
func readScenario(path string, src []byte) (*scenario, error) {
	s := &scenario{}
	if err := jobfile.Decode(path, src, s, s.faults); err != nil {
		return nil, err
	}
	return s, nil
}

// faults validates the values. Each fault names the field and the allowed values.
func (s *scenario) faults() []berth.FieldError {
	var list faultList
	if s.Duration <= 0 {
		list.add("duration", "how long jobs come is missing or not above 0", "such as 24h")
	}
	if _, ok := s.order(); !ok {
		list.add("policy.order", fmt.Sprintf("%q is no order", s.Policy.Order), "fair, priority, fifo or srsf")
	}
	s.checkMachines(&list)
	s.checkJobs(&list, s.checkTenants(&list))
	return list
}

// faultList collects the faults of a scenario.
type faultList []berth.FieldError

func (l *faultList) add(field, detail, allowed string) {
	*l = append(*l, berth.FieldError{Field: field, Detail: detail, Allowed: allowed})
}

// checkMachines adds the faults of the machines and of their number.
func (s *scenario) checkMachines(list *faultList) {
	machines := 0
	for i, m := range s.Machines {
		at := fmt.Sprintf("machines[%d]", i)
		if m.Count < 0 {
			list.add(at+".count", fmt.Sprintf("got %d", m.Count), "1 or more")
		}
		if m.CPUs <= 0 {
			list.add(at+".cpus", "is missing or not above 0", "cores, such as 64")
		}
		if m.Memory <= 0 {
			list.add(at+".memory", "is missing or not above 0", "such as 256GiB")
		}
		if m.GPUs < 0 || m.GPUs > maxNodeGPUs {
			list.add(at+".gpus", fmt.Sprintf("got %d", m.GPUs), fmt.Sprintf("0 to %d", maxNodeGPUs))
		}
		machines += max(1, m.Count)
	}
	if len(s.Machines) == 0 || machines > maxSimMachines {
		list.add("machines", fmt.Sprintf("there are %d machines", machines), fmt.Sprintf("1 to %d", maxSimMachines))
	}
}

// checkTenants adds the faults of the tenants and returns their names. A parent
// stands before its children.
func (s *scenario) checkTenants(list *faultList) map[string]bool {
	names := map[string]bool{}
	for i, t := range s.Tenants {
		at := fmt.Sprintf("tenants[%d]", i)
		switch {
		case t.Name == "":
			list.add(at+".name", "is missing", "a name")
		case names[t.Name]:
			list.add(at+".name", fmt.Sprintf("%q appears twice", t.Name), "keep one")
		}
		// Only tenants above this one are in names, so a cycle of parents cannot be
		// written.
		if t.Parent != "" && !names[t.Parent] {
			list.add(at+".parent", fmt.Sprintf("%q is no tenant above this one", t.Parent), named(names))
		}
		if t.Weight < 0 {
			list.add(at+".weight", fmt.Sprintf("got %g", t.Weight), "above 0")
		}
		names[t.Name] = true
	}
	return names
}

// checkJobs adds the faults of the streams of jobs and of the number of jobs
// that they would submit in all.
func (s *scenario) checkJobs(list *faultList, names map[string]bool) {
	if len(s.Jobs) == 0 {
		list.add("jobs", "is missing or empty", "one stream of jobs or more")
	}
	// The expected number of jobs: random gaps make the actual number differ a little.
	coming := 0.0
	for i, j := range s.Jobs {
		at := fmt.Sprintf("jobs[%d]", i)
		if j.Tenant != "" && !names[j.Tenant] {
			list.add(at+".tenant", fmt.Sprintf("%q is no tenant", j.Tenant), named(names))
		}
		if j.Every <= 0 {
			list.add(at+".every", "the mean gap is missing or not above 0", "such as 10m")
		} else {
			coming += float64(s.Duration) / float64(j.Every) * float64(max(1, j.Batch))
		}
		if j.Run <= 0 {
			list.add(at+".run", "the median run is missing or not above 0", "such as 1h")
		}
		if j.RunSpread < 0 || j.RunSpread > 4 {
			list.add(at+".run_spread", fmt.Sprintf("got %g", j.RunSpread), "0 to 4")
		}
		if j.Members < 0 || j.Members > maxSimMachines {
			list.add(at+".members", fmt.Sprintf("got %d", j.Members), fmt.Sprintf("1 to %d", maxSimMachines))
		}
		if j.Batch < 0 {
			list.add(at+".batch", fmt.Sprintf("got %d", j.Batch), "1 or more")
		}
		for _, e := range j.spec().Validate() {
			list.add(at+"."+strings.TrimPrefix(e.Field, "placement."), e.Detail, e.Allowed)
		}
	}
	if coming > maxSimJobs {
		list.add("jobs", fmt.Sprintf("about %.0f jobs would come", coming), fmt.Sprintf("at most %d", maxSimJobs))
	}
}

func named(names map[string]bool) string {
	if len(names) == 0 {
		return "leave it out, or list it under tenants before"
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

// request returns the part of the stream's jobs that the planner reads.
func (j jobSpec) request() spec.Request {
	r := j.spec().Request()
	r.Members = max(1, j.Members)
	return r
}

// spec returns one member as the spec of a job, with its defaults.
func (j jobSpec) spec() spec.Job {
	return spec.Job{
		Name: "job", Image: "image", Resources: j.Resources, Priority: j.Priority,
		Preemptible: j.Preemptible, TimeLimit: j.TimeLimit, Placement: spec.Placement{SameLabel: j.SameLabel},
	}.WithDefaults()
}

// order returns the queue order, and false if the name is unknown.
func (s *scenario) order() (placement.Order, bool) {
	if s.Policy.Order == "" {
		return placement.Fair, true
	}
	return placement.ParseOrder(s.Policy.Order)
}

// planner returns the production planner with the policy of the scenario.
func (s *scenario) planner() placement.Planner {
	order, _ := s.order()
	return placement.Planner{Pack: placement.LeastFragmentation, Policy: s.Policy.of(order)}
}

// of returns the policy with an order.
func (p policySpec) of(order placement.Order) placement.Policy {
	// Order srsf preempts by remaining service; factor 1 lets a job preempt jobs that have
	// more.
	outrank := 0.0
	if order == placement.SRSF {
		outrank = 1
	}
	return placement.Policy{
		Order: order, BandWidth: p.BandWidth, Aging: p.Aging.Std(), HalfLife: p.HalfLife.Std(),
		EntryPenalty: p.EntryPenalty.Std(),
		Backfill:     p.Backfill, Preempt: p.Preempt, PreemptAfter: p.PreemptAfter.Std(),
		MinRuntime: p.MinRuntime.Std(),
		Overdue:    p.Overdue.Std(), AssumeRun: p.AssumeRun.Std(), Outrank: outrank, Exponent: placement.UsualExponent,
	}
}

// fleet returns the machines, numbered through all groups in the order of the file.
func (s *scenario) fleet() []placement.Machine {
	var list []placement.Machine
	for _, group := range s.Machines {
		for range max(1, group.Count) {
			m := placement.Machine{ID: nodeName(len(list)), Epoch: 1, State: berth.MachineReady, Labels: group.Labels}
			m.Total = berth.Capacity{CPUMilli: int64(group.CPUs), MemoryMiB: int64(group.Memory),
				// Scenarios do not model disks: no job ever waits for one.
				DiskMiB: math.MaxInt32, GPUMilli: int64(group.GPUs) * 1000}
			for d := range group.GPUs {
				m.GPUs = append(m.GPUs, placement.Device{Index: d, Model: group.GPUType, Healthy: true})
			}
			list = append(list, m)
		}
	}
	return list
}

// tenants returns the rows of the tenants in the order of the file.
func (s *scenario) tenants() []placement.Tenant {
	var list []placement.Tenant
	for _, t := range s.Tenants {
		list = append(list, placement.Tenant{
			ID: berth.TenantID(t.Name), Parent: berth.TenantID(t.Parent), Weight: t.Weight,
			Guarantee: t.Guarantee.capacity(), Limit: t.Limit.capacity(),
		})
	}
	return list
}

// until returns the time, since the start, at which a stream of jobs ends.
func (s *scenario) until(j jobSpec) time.Duration {
	if j.Until > 0 {
		return min(j.Until, s.Duration).Std()
	}
	return s.Duration.Std()
}
