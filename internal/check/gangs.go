package check

import (
	"time"

	"berth"
	"berth/db/history"
)

// gangsStartTogether proves the part of invariant 10 about the start: no member starts
// before the last member of its gang is ready. A gang that lost a member before its start
// never ran, although other members have started; every member that started counts, so
// such a gang is judged as well.
func gangsStartTogether(c *jobCase) {
	if c.j.Members < 2 {
		return
	}
	for _, t := range c.j.Attempts {
		first := t.StartedAt // of the gang, or of the member that began first
		for _, a := range c.ranks(t.Attempt) {
			if a.StartedAt != nil && (first == nil || a.StartedAt.Before(*first)) {
				first = a.StartedAt
			}
		}
		if first == nil {
			continue
		}
		for _, a := range c.ranks(t.Attempt) {
			switch {
			case a.PreparedAt == nil:
				c.of(a, rows(t, a), "the gang began at %s, and rank %d was never ready", first, a.Rank)
			case a.PreparedAt.After(first.Add(c.v.o.Skew)): // times are the starts of transactions
				c.of(a, rows(t, a), "the gang began at %s, before rank %d was ready at %s", first, a.Rank, a.PreparedAt)
			}
		}
	}
}

// repairsAreBrief proves the part of invariant 10 about repairs: capacity for the repair
// of a gang is kept while its attempt is being stopped, and for berth.RepairHold after
// that. The bound prevents a gang that cannot be repaired from blocking machines without
// end.
func repairsAreBrief(c *jobCase) {
	ended := map[int]time.Time{}
	for _, t := range c.j.Attempts {
		if t.EndedAt != nil {
			ended[t.Attempt] = *t.EndedAt
		}
	}
	for _, r := range c.j.Repairs {
		most := r.MadeAt.Add(berth.GangGrace + berth.RepairHold)
		if end, ok := ended[r.Attempt]; ok && end.Add(berth.RepairHold).After(most) {
			most = end.Add(berth.RepairHold)
		}
		until := c.v.now
		if r.GoneAt != nil {
			until = *r.GoneAt
		}
		if most = most.Add(c.v.o.Patience); until.After(most) {
			b := c.breach(rows(r), "room on %s is kept for the repair of attempt %d since %s, until %s at least",
				r.Machine, r.Attempt, r.MadeAt, until)
			b.Attempt, b.Machine = r.Attempt, r.Machine
		}
	}
}

// portsGivenOnce proves invariant 25: from its reservation until its settlement, a port
// belongs to one member. Allocations come in the order of the ledger, so it suffices to
// compare each one with the last holder of its port.
func portsGivenOnce(c *machineCase) {
	last := map[int]history.Allocation{}
	for _, a := range c.m.Allocations {
		if a.Port == 0 {
			continue
		}
		before, ok := last[a.Port]
		if ok && (before.ReleasedAt == nil || before.ReleasedAt.After(a.ReservedAt.Add(c.v.o.Skew))) {
			c.of(a, rows(before, a), "port %d was given to it while allocation %d had it", a.Port, before.ID)
		}
		last[a.Port] = a
	}
}
