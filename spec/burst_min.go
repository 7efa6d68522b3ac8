package spec

import "fmt"

// Limits on Burst.MinMachines.
const (
	maxBurstMin      = 16
	maxBurstMinTypes = 16
)

// BurstMin is a number of machines of one pool that Berth keeps for a tenant without jobs: it launches the machines
// that are missing, and drains no empty machine below the number. Machines that were launched for the tenant's jobs
// count. The other settings of the policy, such as the regions and the spend, bound these launches as all others.
//
// It is the only setting that is no bound, so the tenants below do not inherit it: each tenant would have as many
// machines of its own.
type BurstMin struct {
	Pool     string   `json:"pool,omitempty" doc:"pool of the machines; default: default"`
	Machines int      `json:"machines" doc:"least number of machines"`
	Types    []string `json:"types,omitempty" doc:"machine types of offers that are launched and count; unset: any"`
}

// MinMachinesIn returns the least number of machines in a pool, with the types that count. nil: any type.
func (b Burst) MinMachinesIn(pool string) (machines int, types []string) {
	for _, m := range b.MinMachines {
		if m.pool() == pool {
			return m.Machines, m.Types
		}
	}
	return 0, nil
}

// Inherited returns an effective policy as a tenant below without a policy of its own has it.
func (b Burst) Inherited() Burst {
	b.MinMachines = nil
	return b
}

// pool returns the pool, or the default one.
func (m BurstMin) pool() string {
	if m.Pool == "" {
		return DefaultPool
	}
	return m.Pool
}

// MinPools returns the pools with a least number of machines, in the order of the policy.
func (b Burst) MinPools() (pools []string) {
	for _, m := range b.MinMachines {
		pools = append(pools, m.pool())
	}
	return pools
}

// total returns the number of machines that all entries keep.
func total(list []BurstMin) (n int) {
	for _, m := range list {
		n += m.Machines
	}
	return n
}

// validateMin checks min_machines. most is max_machines of the same policy; 0: no bound.
func validateMin(v *validation, list []BurstMin, most int) {
	v.require(len(list) <= maxBurstMin, "min_machines", "has too many entries", fmt.Sprintf("at most %d", maxBurstMin))
	list = list[:min(len(list), maxBurstMin)]
	seen := map[string]bool{}
	for i, m := range list {
		at := fmt.Sprintf("min_machines[%d]", i)
		v.require(m.Pool == "" || isName(m.Pool), at+".pool", "is not a valid name",
			"1 to 63 of a-z, 0-9 and '-', not at either end")
		v.require(!seen[m.pool()], at+".pool", "is a repetition", "each pool once")
		seen[m.pool()] = true
		v.require(m.Machines >= 1 && m.Machines <= maxBurstCount, at+".machines",
			fmt.Sprintf("%d is out of range", m.Machines), fmt.Sprintf("1 to %d", maxBurstCount))
		v.require(len(m.Types) <= maxBurstMinTypes, at+".types", "has too many types",
			fmt.Sprintf("at most %d", maxBurstMinTypes))
		for k, t := range m.Types[:min(len(m.Types), maxBurstMinTypes)] {
			v.require(isPlace(t), fmt.Sprintf("%s.types[%d]", at, k), fmt.Sprintf("%q is not a machine type", t),
				"the type of an offer, such as p5.48xlarge")
		}
	}
	v.require(most <= 0 || total(list) <= most, "min_machines", fmt.Sprintf("keeps %d machines", total(list)),
		fmt.Sprintf("at most max_machines, %d", most))
}

// widensMin checks min_machines against max_machines of the policy above. 0: no bound.
func widensMin(v *validation, list []BurstMin, most int) {
	v.require(most == 0 || total(list) <= most, "min_machines",
		fmt.Sprintf("keeps %d machines, more than the policy above allows", total(list)),
		fmt.Sprintf("at most %d", most))
}
