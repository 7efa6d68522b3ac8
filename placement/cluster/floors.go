package cluster

import (
	"maps"

	"berth"
)

// Distrust replaces the set of untrusted tenants: tenants that are untrusted themselves, and tenants below one. It
// reports whether the set has changed: ClassFor then may return other classes than before. The cluster keeps the set,
// so the caller must not change it afterwards.
func (s *Cluster) Distrust(tenants map[berth.TenantID]bool) bool {
	if maps.Equal(s.untrusted, tenants) {
		return false
	}
	s.untrusted = tenants
	return true
}

// Distrust makes the jobs of the class start only on machines that meet the security floors. Call it before the class
// is defined.
func (c *Class) Distrust() { c.Untrusted, c.Reads.floors = true, true }
