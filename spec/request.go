package spec

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

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
	Execution    Execution         `json:"execution"`
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
	return r
}

// Capacity returns the resources that one member takes from its machine.
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
