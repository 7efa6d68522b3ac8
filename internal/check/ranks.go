package check

import (
	"cmp"
	"slices"
	"time"

	"berth"
	"berth/db/history"
)

// holds reports whether a job in this state may hold capacity. The first event of a job
// has the empty state as its origin.
func holds(s berth.State) bool { return s != "" && s.HoldsCapacity() }

// atMostOne is the execution of work of which not even a silent machine's container may
// overlap the next.
const atMostOne = "at_most_one"

// oneLiveRank proves invariant 2, first by the ledger: a member is placed again only
// after its allocation before was freed, or its machine was given up as silent.
// oneContainer then proves the same for the containers that really ran.
func oneLiveRank(c *jobCase) {
	last := map[int]history.Allocation{}
	for _, a := range c.j.Allocations {
		if before, ok := last[a.Rank]; ok && a.TakenSeq != 0 && before.TakenSeq != 0 {
			ended := before.FreedSeq != 0 && before.FreedSeq < a.TakenSeq
			silent := before.OrphanedSeq != 0 && before.OrphanedSeq < a.TakenSeq
			if !ended && !silent {
				c.of(a, rows(before, a),
					"rank %d was placed again while attempt %d of it was neither over nor given up", a.Rank,
					before.Attempt)
			}
		}
		last[a.Rank] = a
	}
	c.oneContainer()
}

// oneContainer compares the run times of a member's containers, by the events of the
// engines. An overlap is allowed only between attempts, on a machine that was given up as
// silent, and never for at_most_one: a partitioned machine may continue other work, but
// the fence must have ended at_most_one work. A container that was started twice is a
// breach too.
func (c *jobCase) oneContainer() {
	byAlloc := map[berth.AllocationID]history.Allocation{}
	for _, a := range c.j.Allocations {
		byAlloc[a.ID] = a
	}
	started := slices.Clone(c.lives)
	started = slices.DeleteFunc(started, func(l life) bool { return len(l.Starts) == 0 })
	slices.SortStableFunc(started, func(a, b life) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), a.Starts[0].Compare(b.Starts[0]))
	})
	for i, l := range started {
		if len(l.Starts) > 1 {
			c.of(byAlloc[l.Alloc], rows(l), "container %s of rank %d was started %d times", l.ID, l.Rank, len(l.Starts))
		}
		for _, before := range started[:i] {
			if before.Rank != l.Rank {
				continue
			}
			over := endOf(before, byAlloc[before.Alloc])
			if !over.IsZero() && !over.After(l.Starts[0].Add(c.v.o.Skew)) {
				continue
			}
			silent := byAlloc[before.Alloc].OrphanedAt != nil && before.Attempt < l.Attempt
			switch {
			case !silent:
				c.of(byAlloc[l.Alloc], rows(before, l),
					"two containers of rank %d ran at once, of attempts %d and %d", l.Rank, before.Attempt, l.Attempt)
			case c.j.Execution == atMostOne:
				c.of(byAlloc[l.Alloc], rows(before, l),
					"two containers of rank %d of at_most_one work ran at once, of attempts %d and %d", l.Rank,
					before.Attempt, l.Attempt)
			}
		}
	}
}

// endOf returns the end of a container: from its engine's events, or, if these stop
// before the end, from the confirmed end of its allocation. Zero: the container may still
// run.
func endOf(l life, a history.Allocation) time.Time {
	if over := l.ended(); !over.IsZero() {
		return over
	}
	if a.ExitedAt != nil {
		return *a.ExitedAt
	}
	if a.ReleasedAt != nil && (a.FreedBy == byAgent || a.FreedBy == byBoot || a.FreedBy == byProvider) {
		return *a.ReleasedAt
	}
	return time.Time{}
}

// containersHaveRows proves the part of invariant 8 about known jobs: each container
// names an allocation of its job, agrees with the row on attempt, member and machine, and
// was created after the claim. So no container ran outside the accounting.
func containersHaveRows(c *jobCase) {
	byAlloc := map[berth.AllocationID]history.Allocation{}
	for _, a := range c.j.Allocations {
		byAlloc[a.ID] = a
	}
	for _, l := range c.lives {
		a, ok := byAlloc[l.Alloc]
		switch first := l.first(); {
		case !ok:
			b := c.breach(rows(l), "container %s says that it is of allocation %d, which does not exist", l.ID, l.Alloc)
			b.Machine, b.Attempt = l.Machine, l.Attempt
		case a.Attempt != l.Attempt || a.Rank != l.Rank || a.Machine != l.Machine:
			c.of(a, rows(l, a), "container %s of rank %d, attempt %d on %s has the allocation of rank %d, attempt "+
				"%d on %s", l.ID, l.Rank, l.Attempt, l.Machine, a.Rank, a.Attempt, a.Machine)
		case a.ClaimedAt == nil:
			c.of(a, rows(l, a), "container %s was made, and its allocation was never claimed", l.ID)
		case first.Add(c.v.o.Skew).Before(*a.ClaimedAt):
			c.of(a, rows(l, a), "container %s was seen at %s, before its allocation was claimed at %s", l.ID,
				first, a.ClaimedAt)
		}
	}
}

// containersHaveJobs proves the part of invariant 8 about unknown jobs: a container of a
// job without a row, not even in the archive, is a breach.
func containersHaveJobs(c *clusterCase) {
	for _, id := range c.missing {
		for _, l := range c.lives[id] {
			b := c.breach(rows(l), "container %s is of a job that does not exist", l.ID)
			b.Job, b.Attempt, b.Machine = id, l.Attempt, l.Machine
		}
	}
}

// partlyFor is how long a part of a gang may continue to run, until its other members are
// ordered to stop.
const partlyFor = 30 * time.Second

// gangsAreWhole proves the parts of invariant 10 about reservation and partial runs. Each
// attempt has an allocation for every member, all with the same reservation time, which
// is the time of one transaction: all at once or not at all. In a current attempt with a
// member that ended badly more than partlyFor ago, every other active member has an order
// to stop.
func gangsAreWhole(c *jobCase) {
	for _, t := range c.j.Attempts {
		ranks := c.ranks(t.Attempt)
		if len(ranks) != c.j.Members {
			c.breach(rows(t), "attempt %d has %d ranks of %d", t.Attempt, len(ranks), c.j.Members).Attempt = t.Attempt
			continue
		}
		for i, a := range ranks {
			if a.Rank != i {
				c.of(a, rows(a), "rank %d stands in place %d", a.Rank, i)
			}
			if !a.ReservedAt.Equal(ranks[0].ReservedAt) {
				c.of(a, rows(ranks[0], a), "rank %d was not reserved together with rank 0", a.Rank)
			}
		}
	}
	if !holds(c.j.State) {
		return
	}
	ranks := c.ranks(c.j.Attempt)
	first := firstBad(ranks)
	if first.IsZero() || c.v.now.Sub(first) <= partlyFor+c.v.o.Patience {
		return
	}
	for _, a := range ranks {
		if a.State == berth.AllocActive && !a.Orders.Stop && !a.Orders.Kill {
			c.of(a, rows(a), "rank %d runs on, untold, %s after another of its gang had ended badly", a.Rank,
				c.v.now.Sub(first).Round(time.Second))
		}
	}
}

// firstBad is the time at which the first member of an attempt ended without finishing
// its work; zero if none did.
func firstBad(ranks []history.Allocation) time.Time {
	var first time.Time
	for _, a := range ranks {
		var at *time.Time
		switch {
		case a.OrphanedAt != nil:
			at = a.OrphanedAt
		case a.Exit != nil && !a.Exit.Done():
			at = a.ExitedAt
		}
		if at != nil && (first.IsZero() || at.Before(first)) {
			first = *at
		}
	}
	return first
}
