package check

import (
	"time"

	"berth"
	"berth/db/history"
)

// gangsStartTogether: no rank begins before the last of its gang is ready.
func gangsStartTogether(c *jobCase) {
	if c.j.Members < 2 {
		return
	}
	for _, t := range c.j.Attempts {
		for _, a := range c.ranks(t.Attempt) {
			switch {
			case t.StartedAt == nil && a.StartedAt != nil:
				c.of(a, rows(t, a), "rank %d began although the gang never did", a.Rank)
			case t.StartedAt == nil:
			case a.PreparedAt == nil:
				c.of(a, rows(t, a), "the gang began at %s, and rank %d was never ready", t.StartedAt, a.Rank)
			case a.PreparedAt.After(t.StartedAt.Add(c.v.o.Skew)): // times are those at which transactions began
				c.of(a, rows(t, a), "the gang began at %s, before rank %d was ready at %s", t.StartedAt, a.Rank, a.PreparedAt)
			case a.StartedAt != nil && a.StartedAt.Add(c.v.o.Skew).Before(*t.StartedAt):
				c.of(a, rows(t, a), "rank %d began at %s, before the gang did at %s", a.Rank, a.StartedAt, t.StartedAt)
			}
		}
	}
}

// repairsAreBrief: what is kept for the repair of a gang is kept for a short
// time after its attempt, and while that is being stopped.
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
			b := c.breach(rows(r), "room on %s is kept for the repair of attempt %d since %s, until %s at least", r.Machine, r.Attempt, r.MadeAt, until)
			b.Attempt, b.Machine = r.Attempt, r.Machine
		}
	}
}

// portsGivenOnce: a port is one rank's from its reservation until it is settled.
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
