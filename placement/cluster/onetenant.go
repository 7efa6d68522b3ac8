package cluster

import (
	"slices"

	"berth"
)

// occupancy is the capacity of a machine that one tenant uses, as a sum over all resources. The sum has no unit: only
// zero and more than zero differ. Grants add to the sum and are subtracted again in any order.
type occupancy struct {
	tenant berth.TenantID
	sum    int64
}

// weightOf is the part of a capacity in an occupancy. The weights of the parts of a capacity add up to its weight.
func weightOf(c berth.Capacity) int64 { return c.CPUMilli + c.MemoryMiB + c.DiskMiB + c.GPUMilli }

// OneTenant reports whether a rule of its pool gives the machine to one tenant at a time.
func (n *Node) OneTenant() bool { return n.oneTenant }

// occupy adds to the use by a tenant, or subtracts from it if weight is negative. It records nothing for a machine
// without the rule, and nothing without a tenant.
func (n *Node) occupy(t berth.TenantID, weight int64) {
	if !n.oneTenant || t == "" || weight == 0 {
		return
	}
	i := slices.IndexFunc(n.tenants, func(o occupancy) bool { return o.tenant == t })
	switch {
	case i < 0:
		n.tenants = append(n.tenants, occupancy{t, weight})
	case n.tenants[i].sum+weight == 0:
		n.tenants = slices.Delete(n.tenants, i, i+1)
	default:
		n.tenants[i].sum += weight
	}
}

// countTenants derives the tenants of the machine from its occupants. Use that the row counts and no occupant explains
// is the use of a tenant that does not exist.
func (n *Node) countTenants() {
	n.tenants = n.tenants[:0]
	if !n.oneTenant {
		return
	}
	rest := weightOf(n.Used)
	if n.On != nil {
		for i := range n.On.List {
			x := &n.On.List[i]
			n.occupy(x.Holder.Tenant, weightOf(x.Frees))
			rest -= weightOf(x.Frees)
		}
	}
	if rest > 0 {
		n.occupy(severalTenants, rest)
	}
}

// usedByOther reports whether a tenant other than t uses the machine or has a claim on it.
func (n *Node) usedByOther(t berth.TenantID) bool {
	return slices.ContainsFunc(n.tenants, func(o occupancy) bool { return o.sum > 0 && o.tenant != t })
}

// MayEnter reports whether the machine may run jobs of the class, as far as the tenants on the machine decide. A class
// that belongs to no tenant may enter each machine.
func (c *Class) MayEnter(n *Node) bool {
	return !n.oneTenant || c.OfTenant == "" || !n.usedByOther(c.OfTenant)
}

// MayStay reports whether the grant may remain on its machine next to the present occupants.
func MayStay(n *Node, g berth.Grant) bool { return !n.oneTenant || !n.usedByOther(g.Tenant) }

// claimWeight is the weight of a claim. A claim counts as a use without capacity.
const claimWeight = 1

// Claim sets the tenant for whose reservations the hold keeps its machine from all other tenants; "": none. It reports
// whether an earlier claim has ended. A claim is in force as long as the hold, also where the hold needs no
// free capacity: a job of another tenant could otherwise delay the reserved start by its presence alone.
func (l *Ledger) Claim(h *Hold, t berth.TenantID) (ended bool) {
	if t == h.claim || !h.Node.oneTenant {
		return false
	}
	l.Touch(h.Node)
	ended = h.claim != ""
	h.Node.occupy(h.claim, -claimWeight)
	h.claim = t
	h.Node.occupy(t, claimWeight)
	return ended
}

// Claimant returns the tenant of two claims on one machine.
func Claimant(a, b berth.TenantID) berth.TenantID {
	switch {
	case a == "" || a == b:
		return b
	case b == "":
		return a
	}
	return severalTenants
}

// Lift returns the capacity and the claim of a hold to a copy of its machine, for the trial of a job that ends before
// the hold's capacity is needed.
func (h *Hold) Lift(x *Node) {
	x.Add(h.Grant)
	x.occupy(h.claim, -claimWeight)
}

// GrantTo returns a grant as the capacity of a tenant's job. The tenant appears where the rules of the cluster read it.
func (s *Cluster) GrantTo(g berth.Grant, t berth.TenantID) berth.Grant {
	g.Tenant = t
	if s.tenancy != nil {
		g = Owned(g, t)
	}
	return g
}

// GrantFor returns a grant as the capacity of a job of the class.
func (c *Class) GrantFor(g berth.Grant) berth.Grant {
	g = Owned(g, c.Tenant)
	g.Tenant = c.OfTenant
	return g
}
