package cluster

import (
	"slices"
	"strings"

	"berth"
)

// Pool is the rules of a pool. A pool without rules accepts the jobs of all tenants.
type Pool struct {
	Name    string
	Tenants []berth.TenantID // the pool accepts their jobs, and the jobs of the tenants below them
	// Open makes the pool accept the jobs of all tenants; Tenants has no meaning then.
	Open      bool
	OneTenant bool // each machine of the pool is used by one tenant at a time
	// Taints are taints of each machine of the pool, for machines that do not exist yet: the rows of others have them.
	Taints []string
}

// equal reports whether two rules are the same.
func (p Pool) equal(o Pool) bool {
	return p.Name == o.Name && p.Open == o.Open && p.OneTenant == o.OneTenant && slices.Equal(p.Tenants, o.Tenants)
}

// poolRules caches, for each tenant, the pools that are closed to it. A nil poolRules stands for a
// cluster without rules.
type poolRules struct {
	rules  []Pool                              // sorted by name
	parent func(berth.TenantID) berth.TenantID // "" for a tenant without a parent
	closed map[berth.TenantID]closure          // of the tenants that ClassFor was called for
}

// closure is the list of the pools that are closed to one tenant, with a key that is equal for
// equal lists.
type closure struct {
	pools []Pool
	key   string
}

// of returns the pools that are closed to a tenant.
func (a *poolRules) of(t berth.TenantID) closure {
	if a == nil {
		return closure{}
	}
	c, ok := a.closed[t]
	if !ok {
		c = a.derive(t)
		a.closed[t] = c
	}
	return c
}

// derive computes a tenant's closure.
func (a *poolRules) derive(t berth.TenantID) (c closure) {
	var key strings.Builder
	for _, p := range a.rules {
		if p.Open || a.accepts(p, t) {
			continue
		}
		c.pools = append(c.pools, p)
		key.WriteByte(0)
		key.WriteString(p.Name)
		for _, tenant := range p.Tenants {
			key.WriteByte(' ')
			key.WriteString(string(tenant))
		}
	}
	c.key = key.String()
	return c
}

// oneTenant reports whether the machines of a pool are used by one tenant at a time.
func (a *poolRules) oneTenant(pool string) bool {
	return a != nil && slices.ContainsFunc(a.rules, func(p Pool) bool { return p.OneTenant && p.Name == pool })
}

// anyOneTenant reports whether oneTenant holds for any pool.
func (a *poolRules) anyOneTenant() bool {
	return a != nil && slices.ContainsFunc(a.rules, func(p Pool) bool { return p.OneTenant })
}

// accepts reports whether the pool accepts the jobs of a tenant.
func (a *poolRules) accepts(p Pool, t berth.TenantID) bool {
	// The database prevents cycles of tenants, but rows from two reads may form a cycle.
	for range maxDepth {
		if t == "" {
			return false
		}
		if slices.Contains(p.Tenants, t) {
			return true
		}
		t = a.parent(t)
	}
	return false
}

// maxDepth bounds the walk from a tenant to the root.
const maxDepth = 1000

// Restrict replaces the rules of the pools. parent returns the parent of a tenant. Restrict reports
// whether a pool may have opened or closed for a tenant: ClassFor then may return other classes than
// before. The cluster keeps the list, so the caller must not change it afterwards.
func (s *Cluster) Restrict(rules []Pool, parent func(berth.TenantID) berth.TenantID) bool {
	defer s.markOneTenant()
	if len(rules) == 0 {
		had := s.pools != nil
		s.pools = nil
		return had
	}
	rules = slices.SortedFunc(slices.Values(rules), func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	a := &poolRules{rules: rules, parent: parent, closed: map[berth.TenantID]closure{}}
	old := s.pools
	s.pools = a
	if old == nil || !slices.EqualFunc(old.rules, rules, Pool.equal) {
		return true
	}
	// The rules are the same, but a tenant may have another parent.
	for t, c := range old.closed {
		if a.of(t).key != c.key {
			return true
		}
	}
	return false
}

// markOneTenant applies the rules about one tenant at a time to machines whose pool has another rule than before.
func (s *Cluster) markOneTenant() {
	for _, id := range s.MachineIDs() {
		if one := s.pools.oneTenant(s.Nodes[id].Pool); one != s.Nodes[id].oneTenant {
			s.change(id, func(n *Node) { n.oneTenant = one })
		}
	}
}

// Closed reports whether the machine's pool does not accept the jobs of the class.
func (c *Class) Closed(m *Machine) bool {
	return slices.ContainsFunc(c.ClosedPools, func(p Pool) bool { return p.Name == m.Pool })
}
