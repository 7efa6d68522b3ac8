package autoscale

import (
	"slices"

	"berth"
	"berth/internal/control/scaler"
	"berth/spec"
)

// Missing is a pool with fewer machines than the policy of a tenant keeps, although the pass launches nothing more.
type Missing struct {
	Tenant   berth.TenantID
	Pool     string
	Machines int
	Why      scaler.NoteCode
}

// least sets the least number of machines of a pool.
func least(in *scaler.Input, policy spec.Burst) {
	in.Policy.Min, in.Policy.MinTypes = policy.MinMachinesIn(in.Pool)
}

// noteMissing records the machines that a decision leaves missing.
func noteMissing(p *pass, t berth.TenantID, pool string, d scaler.Decision) {
	why := d.MissingWhy
	if p.Paused && why == scaler.NoteMax { // see limit
		why = Paused
	}
	p.out.Missing = append(p.out.Missing, Missing{t, pool, d.Missing, why})
}

// noteUnserved records the pools of the tenant's policy in which no machine can be launched for the tenant: a rule of
// the pool excludes the tenant, or no provider has settings for the pool.
func noteUnserved(p *pass, t berth.TenantID, policy spec.Burst, served []string) {
	for _, pool := range policy.MinPools() {
		if n, _ := policy.MinMachinesIn(pool); !slices.Contains(served, pool) {
			p.out.Missing = append(p.out.Missing, Missing{t, pool, n, scaler.NoteForbid})
		}
	}
}
