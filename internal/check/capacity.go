package check

import (
	"cmp"
	"fmt"
	"slices"

	"berth"
	"berth/db/history"
)

// move is one change of a machine's free capacity: an allocation takes or frees its part.
type move struct {
	seq   int64
	taken bool
	a     history.Allocation
}

// moves returns the takes and frees on a machine, in the order of the ledger. Takes from
// before the ledger began have no number and are left out.
func (c *machineCase) moves() []move {
	var list []move
	for _, a := range c.m.Allocations {
		if a.TakenSeq == 0 {
			continue
		}
		list = append(list, move{a.TakenSeq, true, a})
		if a.FreedSeq != 0 {
			list = append(list, move{a.FreedSeq, false, a})
		}
	}
	slices.SortFunc(list, func(x, y move) int { return cmp.Compare(x.seq, y.seq) })
	return list
}

// at returns the state of the machine, or with gpu of one device, at a number of the
// ledger; nil if the state is unknown.
func (c *machineCase) at(seq int64, gpu *int) *history.MachineEvent {
	var last *history.MachineEvent
	for i, e := range c.m.Events {
		if e.Seq > seq {
			break
		}
		if (e.GPU == nil) == (gpu == nil) && (gpu == nil || *e.GPU == *gpu) {
			last = &c.m.Events[i]
		}
	}
	return last
}

// gpusGivenOnce proves invariant 1: no GPU has overlapping live reservations. It replays
// the ledger and adds up, after each take, the milli of all holders of the device: 1000
// is the whole device, so a larger sum means that two jobs had the same part. The second
// loop proves the premise, that the claims of an allocation are its whole GPU capacity; a
// lost claim would hide an overlap. A take draws its number under the machine's lock,
// after the free that it depends on, so the replay sees no false overlap. A free draws
// its number before that lock; an overlap within that moment stays unseen, and the
// constraints of the schema prevent it.
func gpusGivenOnce(c *machineCase) {
	holders := map[int]map[berth.AllocationID]history.Allocation{}
	for _, m := range c.moves() {
		for _, g := range m.a.GPUs {
			if holders[g.Index] == nil {
				holders[g.Index] = map[berth.AllocationID]history.Allocation{}
			}
			if !m.taken {
				delete(holders[g.Index], m.a.ID)
				continue
			}
			holders[g.Index][m.a.ID] = m.a
			if sum := claimed(holders[g.Index], g.Index); sum > 1000 {
				proof := []any{}
				for _, h := range holders[g.Index] {
					proof = append(proof, h)
				}
				c.of(m.a, proof, "GPU %d holds %d of 1000 milli in %d reservations at %d of the ledger", g.Index, sum,
					len(holders[g.Index]), m.seq)
			}
		}
	}
	for _, a := range c.m.Allocations {
		var sum int64
		for _, g := range a.GPUs {
			sum += g.Milli
		}
		if sum != a.GPUMilli {
			c.of(a, rows(a), "its claims add up to %d milli, its reservation to %d", sum, a.GPUMilli)
		}
	}
}

// tenantsKeptApart proves invariant 31: a reservation that was committed under the rule of one tenant
// a GPU met no share of another tenant. It replays the ledger as gpusGivenOnce does. Reservations
// without the rule may meet any other, and are compared only with later ones under the rule.
func tenantsKeptApart(c *machineCase) {
	holders := map[int]map[berth.AllocationID]history.Allocation{}
	for _, m := range c.moves() {
		for _, g := range m.a.GPUs {
			if !m.taken {
				delete(holders[g.Index], m.a.ID)
				continue
			}
			for _, h := range holders[g.Index] {
				if g.Tenant != "" && h.Tenant != g.Tenant {
					c.of(m.a, []any{m.a, h}, "GPU %d was shared by tenants %s and %s at %d of the ledger", g.Index,
						h.Tenant, g.Tenant, m.seq)
				}
			}
			if holders[g.Index] == nil {
				holders[g.Index] = map[berth.AllocationID]history.Allocation{}
			}
			holders[g.Index][m.a.ID] = m.a
		}
	}
}

// machinesKeptWhole proves invariant 38: a reservation that was committed under the rule of one tenant a machine met no
// reservation of another tenant. Reservations without the rule may meet any other, and are compared only with later
// ones under the rule.
func machinesKeptWhole(c *machineCase) {
	holders := map[berth.AllocationID]history.Allocation{}
	for _, m := range c.moves() {
		if !m.taken {
			delete(holders, m.a.ID)
			continue
		}
		for _, h := range holders {
			if m.a.OneTenant && h.Tenant != m.a.Tenant {
				c.of(m.a, []any{m.a, h}, "the machine was used by tenants %s and %s at %d of the ledger", h.Tenant,
					m.a.Tenant, m.seq)
			}
		}
		holders[m.a.ID] = m.a
	}
}

// untrustedKeptOff proves invariant 41: at the number of the ledger at which an allocation of an untrusted tenant took
// its capacity, the latest event of the machine says that the machine met the security floors. A verdict and a commit
// both hold the lock of the machine, so their numbers are in the order of their commits.
func untrustedKeptOff(c *machineCase) {
	for _, a := range c.m.Allocations {
		if !a.Untrusted || a.TakenSeq == 0 {
			continue
		}
		if e := c.at(a.TakenSeq, nil); e != nil && !e.MeetsFloors {
			c.of(a, []any{a, *e}, "an untrusted tenant's reservation was committed at %d of the ledger, and the "+
				"machine did not meet the security floors", a.TakenSeq)
		}
	}
}

// claimed adds up the parts of one device that the allocations hold, in thousandths.
func claimed(holders map[berth.AllocationID]history.Allocation, idx int) int64 {
	var sum int64
	for _, a := range holders {
		for _, g := range a.GPUs {
			if g.Index == idx {
				sum += g.Milli
			}
		}
	}
	return sum
}

// amounts are quantities of each resource, as capacity or as use.
type amounts struct {
	CPUMilli, MemoryMiB, DiskMiB, GPUMilli int64
}

func amountsOf(a history.Allocation) amounts {
	return amounts{a.CPUMilli, a.MemoryMiB, a.DiskMiB, a.GPUMilli}
}

func (x amounts) add(y amounts, sign int64) amounts {
	return amounts{x.CPUMilli + sign*y.CPUMilli, x.MemoryMiB + sign*y.MemoryMiB, x.DiskMiB + sign*y.DiskMiB,
		x.GPUMilli + sign*y.GPUMilli}
}

func (x amounts) within(y amounts) bool {
	return x.CPUMilli <= y.CPUMilli && x.MemoryMiB <= y.MemoryMiB && x.DiskMiB <= y.DiskMiB && x.GPUMilli <= y.GPUMilli
}

func (x amounts) String() string {
	return fmt.Sprintf("cpu %d m, memory %d MiB, disk %d MiB, gpu %d milli", x.CPUMilli, x.MemoryMiB,
		x.DiskMiB, x.GPUMilli)
}

// withinCapacity proves invariant 9 in two steps. The replay of the ledger compares the
// sum of all reservations after each take with the machine's capacity at that number.
// Only takes are compared: a machine may shrink below its reservations, but must not get
// more. Then the counters of the machine and of its devices are compared with the sums of
// the live allocations: a counter that drifts would waste capacity or give it out twice.
func withinCapacity(c *machineCase) {
	var held amounts
	for _, m := range c.moves() {
		if !m.taken {
			held = held.add(amountsOf(m.a), -1)
			continue
		}
		held = held.add(amountsOf(m.a), 1)
		e := c.at(m.seq, nil)
		if e == nil {
			continue
		}
		if has := (amounts{e.CPUMilli, e.MemoryMiB, e.DiskMiB, e.GPUMilli}); !held.within(has) {
			c.of(m.a, rows(m.a, e), "at %d of the ledger %s is reserved, of %s", m.seq, held, has)
		}
	}
	var live amounts
	devices := map[int]int64{}
	for _, a := range c.m.Allocations {
		if !a.Counts() {
			continue
		}
		live = live.add(amountsOf(a), 1)
		for _, g := range a.GPUs {
			devices[g.Index] += g.Milli
		}
	}
	if used := (amounts{c.m.CPUUsed, c.m.MemUsed, c.m.DiskUsed, c.m.GPUUsed}); used != live {
		c.breach(rows(bare(c.m)), "its counters say %s; its live allocations add up to %s", used, live)
	}
	for _, g := range c.m.GPUs {
		if g.MilliUsed != devices[g.Index] {
			c.breach(rows(g), "the counter of GPU %d says %d; live claims add up to %d", g.Index, g.MilliUsed,
				devices[g.Index])
		}
	}
}

// bare is a machine's own row, without its lists, as proof of a breach.
func bare(m history.Machine) history.Machine {
	m.GPUs, m.Events, m.Allocations = nil, nil, nil
	return m
}

// placedOnReady proves invariant 17: the machine was ready, and each device healthy, at
// the number of the ledger at which the allocation took its capacity. A change of the
// machine has a number from the same sequence, so the state at the take is exact, without
// clocks.
func placedOnReady(c *machineCase) {
	for _, a := range c.m.Allocations {
		if a.TakenSeq == 0 {
			continue
		}
		if e := c.at(a.TakenSeq, nil); e != nil && e.State != string(berth.MachineReady) {
			c.of(a, rows(a, e), "it was placed at %d of the ledger, when the machine was %s", a.TakenSeq, e.State)
		}
		for _, g := range a.GPUs {
			if e := c.at(a.TakenSeq, &g.Index); e != nil && e.State != "healthy" {
				c.of(a, rows(a, e), "it was given GPU %d at %d of the ledger, when that was not healthy: %s", g.Index,
					a.TakenSeq, e.Reason)
			}
		}
	}
}

// noStaleMachine proves the part of invariant 4 about machines: an allocation carries the
// epoch that its machine had at the take. Another epoch would mean that the placement
// rested on an incarnation of the machine from before a reboot or a loss.
func noStaleMachine(c *machineCase) {
	for _, a := range c.m.Allocations {
		if a.TakenSeq == 0 {
			continue
		}
		if e := c.at(a.TakenSeq, nil); e != nil && e.Epoch != a.MachineEpoch {
			c.of(a, rows(a, e), "it was placed under epoch %d of the machine, which was at %d", a.MachineEpoch, e.Epoch)
		}
	}
}

// machineSettled proves the part of invariant 20 about machines: no allocation counts
// against the machine, and its counters are zero. It runs only with Options.Settled,
// since a cluster in use always holds capacity.
func machineSettled(c *machineCase) {
	if !c.v.o.Settled {
		return
	}
	for _, a := range c.m.Allocations {
		if a.Counts() {
			c.of(a, rows(a), "allocation %d is still %s", a.ID, a.State)
		}
	}
	if used := (amounts{c.m.CPUUsed, c.m.MemUsed, c.m.DiskUsed, c.m.GPUUsed}); used != (amounts{}) {
		c.breach(rows(bare(c.m)), "its counters still say %s", used)
	}
}
