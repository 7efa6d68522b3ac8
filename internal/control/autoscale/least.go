package autoscale

import (
	"maps"
	"slices"

	"berth"
	"berth/db"
	"berth/internal/control/scaler"
	"berth/spec"
)

// Missing is a pool with fewer machines than the policy of a tenant keeps, of which the pass launches no more.
type Missing struct {
	Tenant   berth.TenantID
	Pool     string
	Machines int
	Why      scaler.NoteCode
}

// share names a pool of a tenant's policy.
type share struct {
	tenant berth.TenantID
	pool   string
}

// least sets the least number of machines of a pool, less the adopted machines that count for it.
func least(p *pass, t berth.TenantID, in *scaler.Input, policy spec.Burst) {
	in.Policy.Min, in.Policy.MinTypes = policy.MinMachinesIn(in.Pool)
	in.Policy.Min -= p.adopted[share{t, in.Pool}]
}

// shareAdopted lets the machines that a restored database had lost count for the least numbers of their pools: most of
// them are kept machines that were launched after the backup, and would be launched a second time. Their rows name no
// tenant, so each counts for the first tenant, by name, that lacks a machine of its type in its pool.
func shareAdopted(p *pass) {
	if len(p.Adopted) == 0 {
		return
	}
	free := slices.Clone(p.Adopted)
	for _, t := range slices.Sorted(maps.Keys(p.Policies)) {
		policy := p.Policies[t]
		for _, pool := range policy.MinPools() {
			n, types := policy.MinMachinesIn(pool)
			lacks := n - alive(p, t, pool, types, scaler.Launching, scaler.Ready, scaler.Silent)
			free = slices.DeleteFunc(free, func(a db.Adopted) bool {
				takes := lacks > 0 && a.Pool == pool && (types == nil || slices.Contains(types, a.Type))
				if takes {
					lacks--
					p.adopted[share{t, pool}]++
				}
				return takes
			})
		}
	}
}

// alive returns the number of machines of a tenant in a pool that are of the types and in one of the states. Types nil
// are all types.
func alive(p *pass, t berth.TenantID, pool string, types []string, states ...scaler.MachineState) (n int) {
	for _, m := range p.fleet[t] {
		if m.pool == pool && slices.Contains(states, m.State) && (types == nil || slices.Contains(types, m.Type)) {
			n++
		}
	}
	return n
}

// outOfService returns the number of machines that the policies keep and that are not in service, for whatever reason.
func outOfService(p *pass) (n int) {
	for t, policy := range p.Policies {
		for _, pool := range policy.MinPools() {
			least, types := policy.MinMachinesIn(pool)
			least -= p.adopted[share{t, pool}]
			n += max(0, least-alive(p, t, pool, types, scaler.Ready, scaler.Silent))
		}
	}
	return n
}

// noteSpent records the machines that the spend of the tenant forbids.
func noteSpent(p *pass, t berth.TenantID, in scaler.Input) {
	n := in.Policy.Min - alive(p, t, in.Pool, in.Policy.MinTypes, scaler.Launching, scaler.Ready, scaler.Silent)
	if n > 0 {
		p.out.Missing = append(p.out.Missing, Missing{t, in.Pool, n, scaler.NoteBudget})
	}
}

// refuse adds the machines without a job of a request that the database has refused.
func (o *Outcome) refuse(r Request, why scaler.NoteCode) {
	if len(r.Jobs) > 0 {
		return
	}
	same := func(m Missing) bool { return m.Tenant == r.Tenant && m.Pool == r.Pool }
	if i := slices.IndexFunc(o.Missing, same); i >= 0 {
		o.Missing[i].Machines += r.Machines
		return
	}
	o.Missing = append(o.Missing, Missing{r.Tenant, r.Pool, r.Machines, why})
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
