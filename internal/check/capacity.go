package check

import (
	"cmp"
	"fmt"
	"slices"

	"berth"
	"berth/db/history"
)

// move is an allocation's capacity being taken or freed.
type move struct {
	seq   int64
	taken bool
	a     history.Allocation
}

// moves returns the takes and frees on a machine, in the order of the ledger.
// Takes from before the ledger began have no number and are left out.
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

// at returns the machine's state (or with gpu that device's) at a number of the
// ledger; nil if it is unknown.
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

// bare is a machine's own row.
func bare(m history.Machine) history.Machine {
	m.GPUs, m.Events, m.Allocations = nil, nil, nil
	return m
}

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
