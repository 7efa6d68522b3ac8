package explain

import (
	"fmt"
	"strings"

	"berth"
	"berth/placement/cluster"
	"berth/spec"
)

// poolCondition is the clause that the machine's pool accepts the job's tenant.
func (c clauses) poolCondition() condition {
	text := condition{one: "is in a pool of other tenants", many: "are in pools of other tenants",
		none: poolText(c.ClosedPools)}
	if len(c.ClosedPools) == 1 {
		p := c.ClosedPools[0]
		in := fmt.Sprintf("in pool %s, which takes %s", p.Name, tenantText(p.Tenants))
		text.one, text.many = "is "+in, "are "+in
	}
	return text
}

// taintCondition is the clause that the job tolerates the taints of the machine.
func (c clauses) taintCondition() condition {
	return condition{
		one:  "has a taint that the job does not tolerate",
		many: "have taints that the job does not tolerate",
		none: "each machine has a taint that the job does not tolerate",
		detail: func(n *cluster.Node) string {
			left := spec.Untolerated(c.Request.Tolerations, n.Taints)
			return fmt.Sprintf("%s tainted %s", n.ID, spec.ShortTaints(left))
		}}
}

// floorCondition is the clause that the machine meets the security floors, for jobs of untrusted tenants.
func (c clauses) floorCondition() condition {
	return condition{
		one:    "is below the security floors for untrusted tenants",
		many:   "are below the security floors for untrusted tenants",
		none:   "each machine is below the security floors for untrusted tenants",
		detail: func(n *cluster.Node) string { return fmt.Sprintf("%s: %s", n.ID, n.Unmet) }}
}

// detailText names the first machines that fail a condition, with the detail of each, in parentheses.
func detailText(c condition, r ruledOut) string {
	var list []string
	for _, n := range r.some {
		list = append(list, c.detail(n))
	}
	if more := r.count - len(r.some); more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return "(" + strings.Join(list, "; ") + ")"
}

// otherTenantCondition is the clause that no other tenant uses the machine, or has capacity of it reserved, if the
// machine is used by one tenant at a time. The text does not name the other tenant, which the reader may not know.
func (c clauses) otherTenantCondition() condition {
	return condition{name: "machine_tenant", one: "is in use by another tenant", many: "are in use by another tenant",
		none:  "each machine is in use by another tenant",
		fails: func(n *cluster.Node) bool { return !c.MayEnter(n) }}
}

// maxNamed bounds the pools and the tenants that a text names.
const maxNamed = 3

// poolText names the tenants of pools: "pool gpu-a takes tenants vision only". It names at most
// maxNamed pools, so that the text stays short in a cluster of many.
func poolText(pools []cluster.Pool) string {
	var parts []string
	for _, p := range pools[:min(len(pools), maxNamed)] {
		parts = append(parts, fmt.Sprintf("pool %s takes %s only", p.Name, tenantText(p.Tenants)))
	}
	if more := len(pools) - maxNamed; more > 0 {
		parts = append(parts, fmt.Sprintf("%d more pools take other tenants only", more))
	}
	return strings.Join(parts, "; ")
}

// tenantText renders a list of tenants. A pool that lists no tenant accepts none.
func tenantText(list []berth.TenantID) string {
	var names []string
	for _, t := range list[:min(len(list), maxNamed)] {
		names = append(names, string(t))
	}
	if more := len(list) - maxNamed; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	switch n := len(names); n {
	case 0:
		return "no tenant"
	case 1:
		return "tenant " + names[0]
	default:
		return "tenants " + strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
}
