package spec

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

	"berth"
)

// Request is the part of a job's spec that determines the machines for a member. Jobs with
// equal requests form a class, and placement searches once per plan for a class that does
// not fit, not once per job.
type Request struct {
	CPUMilli     int64             `json:"cpu_milli"`
	MemoryMiB    int64             `json:"memory_mib"`
	DiskMiB      int64             `json:"disk_mib,omitempty"`
	GPUs         int               `json:"gpus,omitempty"`      // number of devices; 1 for a share
	GPUMilli     int64             `json:"gpu_milli,omitempty"` // thousandths of each device; 1000: whole
	GPUTypes     []string          `json:"gpu_types,omitempty"`
	GPUMemoryMiB int64             `json:"gpu_memory_mib,omitempty"`
	Members      int               `json:"members"`
	Regions      []string          `json:"regions,omitempty"`
	Site         string            `json:"site,omitempty"`      // "", on_prem or cloud
	Residency    []string          `json:"residency,omitempty"` // see ResidencyOf
	Spot         SpotRule          `json:"spot,omitempty"`      // of machines of clouds; "": by the policy
	MaxPrice     float64           `json:"max_price,omitempty"` // US dollars an hour of a machine of a cloud; 0: any
	Labels       map[string]string `json:"labels,omitempty"`
	Constraint   string            `json:"constraint,omitempty"` // CEL
	Strategy     string            `json:"strategy,omitempty"`   // "" (pack) or spread
	SameLabel    string            `json:"same_label,omitempty"`
	Avoid        []berth.MachineID `json:"avoid,omitempty"`
	Tolerations  []string          `json:"tolerations,omitempty"` // sorted, each once
	Execution    Execution         `json:"execution"`

	// Groups are the requests of a gang with unlike members, by rank; empty: all members are alike. With
	// groups, Members is the sum of their members, and the resources of the request itself are 0.
	Groups []GroupRequest `json:"groups,omitempty"`
}

// GroupRequest is the request of one group of equal members in a gang of unlike members. Its fields
// have the meaning that they have in Request.
type GroupRequest struct {
	Name         string   `json:"name"`
	Members      int      `json:"members"`
	CPUMilli     int64    `json:"cpu_milli"`
	MemoryMiB    int64    `json:"memory_mib"`
	DiskMiB      int64    `json:"disk_mib,omitempty"`
	GPUs         int      `json:"gpus,omitempty"`
	GPUMilli     int64    `json:"gpu_milli,omitempty"`
	GPUTypes     []string `json:"gpu_types,omitempty"`
	GPUMemoryMiB int64    `json:"gpu_memory_mib,omitempty"`
}

// Request derives the placement request of a spec. The spec must have its defaults filled
// in. Equal defaults are left out (site any or prefer_on_prem, strategy pack), so that equal jobs share a
// class.
func (s Job) Request() Request {
	r := Request{
		CPUMilli:     int64(*s.Resources.CPUs),
		MemoryMiB:    int64(*s.Resources.Memory),
		DiskMiB:      int64(s.Resources.Disk),
		GPUTypes:     s.Resources.GPUType,
		GPUMemoryMiB: int64(s.Resources.GPUMemory),
		Members:      s.Members,
		Regions:      s.Placement.Regions,
		Residency:    ResidencyOf(s.Inputs),
		Spot:         s.Placement.Spot,
		MaxPrice:     s.Placement.MaxPricePerHour,
		Labels:       s.machineLabels(),
		Constraint:   s.Placement.Constraint,
		SameLabel:    s.Placement.SameLabel,
		Avoid:        s.Placement.AvoidMachines,
		Tolerations:  slices.Compact(slices.Sorted(slices.Values(s.Placement.Tolerations))),
		Execution:    s.Execution,
	}
	if g := s.Resources.GPUs; g.IsShare() {
		r.GPUs, r.GPUMilli = 1, int64(g)
	} else if g > 0 {
		r.GPUs, r.GPUMilli = g.Devices(), 1000
	}
	if s.Placement.Site == SiteOnPrem || s.Placement.Site == SiteCloud {
		r.Site = s.Placement.Site
	}
	if s.Placement.Strategy == "spread" {
		r.Strategy = "spread"
	}
	if len(s.Groups) > 0 {
		r.Groups = groupRequests(s)
		r.CPUMilli, r.MemoryMiB, r.DiskMiB, r.GPUs, r.GPUMilli, r.GPUTypes, r.GPUMemoryMiB = 0, 0, 0, 0, 0, nil, 0
		r.Labels = maps.Clone(r.Labels)
		if r.Labels == nil {
			r.Labels = map[string]string{}
		}
		r.Labels[GroupsLabel] = HasGroups
	}
	return r
}

// GroupsLabel is a label that the request of a gang with groups demands and that no machine has. Readers
// of the version before do not know Request.Groups. For them the request fits on no machine, so they
// never start such a gang with the resources of one group. Split leaves the label out.
const GroupsLabel = "berth.groups"

// HasGroups is the value that a request demands of GroupsLabel.
const HasGroups = "known"

// Split returns the request of each group of equal members, by rank, with the number of its members: the
// request itself if all members are alike.
func (r Request) Split() []Request {
	if len(r.Groups) == 0 {
		return []Request{r}
	}
	list := make([]Request, len(r.Groups))
	for i, g := range r.Groups {
		one := r
		one.Groups, one.Labels = nil, maps.Clone(r.Labels)
		delete(one.Labels, GroupsLabel)
		one.Members, one.CPUMilli, one.MemoryMiB, one.DiskMiB = g.Members, g.CPUMilli, g.MemoryMiB, g.DiskMiB
		one.GPUs, one.GPUMilli, one.GPUTypes, one.GPUMemoryMiB = g.GPUs, g.GPUMilli, g.GPUTypes, g.GPUMemoryMiB
		list[i] = one
	}
	return list
}

// Total returns the resources of all members together.
func (r Request) Total() (sum berth.Capacity) {
	for _, one := range r.Split() {
		c, n := one.Capacity(), int64(max(1, one.Members))
		sum = sum.Add(berth.Capacity{CPUMilli: n * c.CPUMilli, MemoryMiB: n * c.MemoryMiB, DiskMiB: n * c.DiskMiB,
			GPUMilli: n * c.GPUMilli})
	}
	return sum
}

// Capacity returns the resources that one member takes from its machine. A request with groups has no such
// amount: see Split and Total.
func (r Request) Capacity() berth.Capacity {
	return berth.Capacity{CPUMilli: r.CPUMilli, MemoryMiB: r.MemoryMiB, DiskMiB: r.DiskMiB,
		GPUMilli: int64(r.GPUs) * r.GPUMilli}
}

// Class returns the name of the request's class: a hash that is equal for equal requests.
func (r Request) Class() string {
	b, err := json.Marshal(r) // struct fields in order, map keys sorted
	if err != nil {
		panic("request does not marshal: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:12])
}
