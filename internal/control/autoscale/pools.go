package autoscale

import (
	"slices"
	"strings"

	"berth"
	"berth/spec"
)

// pools returns the pools in which machines for a tenant are launched, in order: pools with a rule that
// names the tenant or one above it, then other pools with settings of their own, then the default pool.
func (p *pass) pools(t berth.TenantID) []string {
	path := p.path(t)
	var named, open []string
	for _, a := range p.Accounts.Providers {
		for pool := range a.Pools {
			tenants, ruled := p.rules[pool]
			switch {
			// Several providers may have settings for one pool; it is listed once.
			case slices.Contains(named, pool) || slices.Contains(open, pool):
			case !ruled:
				open = append(open, pool)
			case slices.ContainsFunc(path, func(t berth.TenantID) bool { return slices.Contains(tenants, t) }):
				named = append(named, pool)
			}
		}
	}
	// Maps have a random order; the same facts must give the same launches.
	slices.Sort(named)
	slices.Sort(open)
	list := slices.Concat(named, open)
	tenants, ruled := p.rules[spec.DefaultPool]
	may := !ruled || slices.ContainsFunc(path, func(t berth.TenantID) bool { return slices.Contains(tenants, t) })
	if may && !slices.Contains(list, spec.DefaultPool) {
		list = append(list, spec.DefaultPool)
	}
	return list
}

// places returns the regions that a policy allows, as provider/region.
func places(b spec.Burst) (list []string) {
	for _, a := range b.Allow {
		_, region, _ := strings.Cut(a, "/")
		// An entry of the residency is a prefix, such as "eu", and stands for all regions that begin with it.
		begins := func(r string) bool { return strings.HasPrefix(region, r) }
		if b.Residency == nil || slices.ContainsFunc(b.Residency, begins) {
			list = append(list, a)
		}
	}
	return list
}
