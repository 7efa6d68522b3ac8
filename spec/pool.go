package spec

import (
	"fmt"

	"berth"
)

// DefaultPool is the pool of machines that name no other pool. It always exists.
const DefaultPool = "default"

// Limits on pools.
const (
	MaxPoolTenants     = 64
	MaxPoolDescription = 200 // bytes
)

// PoolRules is the body of a call that sets the rules of a pool of machines. A rule that is left out
// is lifted.
type PoolRules struct {
	Tenants     []berth.TenantID `json:"tenants,omitempty" doc:"accepted, with all tenants below; unset: all"`
	Approval    bool             `json:"approval,omitempty" doc:"machines get work only after an approval"`
	OneTenant   bool             `json:"one_tenant_per_machine,omitempty" doc:"a machine serves one tenant at a time"`
	Taints      []string         `json:"taints,omitempty" doc:"of each machine: KEY or KEY=VALUE"`
	Description string           `json:"description,omitempty"`
	Version     int64            `json:"version,omitempty" doc:"base of the change; unset: any version"`
}

// Validate returns all faults of the rules at once, or nil.
func (p PoolRules) Validate() []berth.FieldError {
	v := &validation{}
	const name = "1 to 63 of a-z, 0-9 and '-', not at either end"
	v.require(p.Tenants == nil || len(p.Tenants) > 0, "tenants", "is empty",
		"at least one tenant, or no list to accept all tenants")
	v.require(len(p.Tenants) <= MaxPoolTenants, "tenants", "has too many tenants",
		fmt.Sprintf("at most %d", MaxPoolTenants))
	seen := map[berth.TenantID]bool{}
	for i, t := range p.Tenants[:min(len(p.Tenants), MaxPoolTenants)] {
		field := fmt.Sprintf("tenants[%d]", i)
		v.require(isName(string(t)), field, "is not a valid name", name)
		v.require(!seen[t], field, "is a repetition", "each tenant once")
		seen[t] = true
	}
	v.taints("taints", p.Taints)
	v.require(len(p.Description) <= MaxPoolDescription, "description", "is too long",
		fmt.Sprintf("at most %d bytes", MaxPoolDescription))
	v.require(p.Version >= 0, "version", "is negative", "0 or more")
	return v.faults
}
