package spec

import (
	"fmt"
	"time"

	"berth"
)

// DefaultHalfLife is the time after which past use of a cluster counts half in the
// shares of its tenants.
const DefaultHalfLife = 7 * 24 * time.Hour

// TenantUse is the present and past use of a tenant. It does not include the tenants
// below.
type TenantUse struct {
	Waiting   int     `json:"waiting" doc:"jobs submitted, queued or retrying"`
	Running   int     `json:"running" doc:"jobs that hold capacity"`
	Holding   Amounts `json:"holding"`
	GPUHours  float64 `json:"gpu_hours" doc:"recent use; older use counts less, half after each half-life"`
	CPUHours  float64 `json:"cpu_hours" doc:"hours of CPU cores, counted as gpu_hours"`
	SpentGPUs float64 `json:"spent_gpu_hours" doc:"GPU hours in the present period of its budget; 0 without one"`
}

// Amounts holds an amount of each resource that quotas bound. A nil amount is not given: a
// quota does not bind the resource.
type Amounts struct {
	CPUs   *MilliCPU `json:"cpus,omitempty"`
	Memory *MiB      `json:"memory,omitempty"`
	GPUs   *MilliGPU `json:"gpus,omitempty"`
}

// NewTenant is the body of a call that creates a tenant.
type NewTenant struct {
	ID     berth.TenantID `json:"id"`
	Parent berth.TenantID `json:"parent,omitempty" doc:"unset: none above it"`
	// Untrusted keeps jobs of the tenant, and of all tenants below it, on machines that meet the security floors.
	Untrusted bool    `json:"untrusted,omitempty" doc:"jobs start only on machines that meet the security floors"`
	Weight    float64 `json:"weight,omitempty" zero:"more than 0; default 1" doc:"default 1"`
}

// Validate returns all faults of the request at once, or nil.
func (n NewTenant) Validate() []berth.FieldError {
	v := &validation{}
	v.require(isName(string(n.ID)), "id", fmt.Sprintf("%q is not a valid name", n.ID), nameForm)
	v.require(n.Parent == "" || isName(string(n.Parent)), "parent", fmt.Sprintf("%q is not a valid name", n.Parent),
		nameForm)
	v.require(n.Parent != n.ID || n.ID == "", "parent", "is the tenant itself", "another tenant")
	v.weight(n.Weight)
	return v.faults
}

// TenantPatch changes a tenant. A nil field stays as it is.
type TenantPatch struct {
	Parent *berth.TenantID `json:"parent,omitempty" doc:"empty: none above it"`
	Weight *float64        `json:"weight,omitempty"`

	Untrusted *bool `json:"untrusted,omitempty" doc:"jobs start only on machines that meet the security floors"`
}

// Validate returns all faults of the request at once, or nil.
func (p TenantPatch) Validate() []berth.FieldError {
	v := &validation{}
	v.require(p.Parent != nil || p.Weight != nil || p.Untrusted != nil, "", "the patch changes nothing",
		"parent, weight, untrusted")
	if p.Parent != nil {
		v.require(*p.Parent == "" || isName(string(*p.Parent)), "parent", fmt.Sprintf("%q is not a valid name",
			*p.Parent),
			nameForm)
	}
	if p.Weight != nil {
		v.weight(*p.Weight)
	}
	return v.faults
}

// nameForm describes the names that isName accepts.
const nameForm = "1 to 63 of a-z, 0-9 and '-', not at either end"

// weight checks a weight. The bounds allow ratios up to a million to one; a greater ratio
// is more likely a typing error.
func (v *validation) weight(w float64) {
	v.require(w > 0.001 && w <= 1000, "weight", fmt.Sprintf("%g is out of range", w), "above 0.001, at most 1000")
}

// MaxTenantDepth is the largest number of levels in the tree of tenants.
const MaxTenantDepth = 8
