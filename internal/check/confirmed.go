package check

import (
	"slices"
	"strings"

	"berth"
	"berth/db/history"
	"berth/wire"
)

// The authorities that may confirm that a machine's capacity is free.
const (
	byAgent    = "agent"
	byBoot     = "boot"
	byProvider = "provider"
	byOperator = "operator"
)

// freedOnConfirmation proves invariant 24 for jobs: time alone frees no capacity. Each
// allocation that may have had a container, so was active or orphaned, must be freed by
// one of the four authorities, and the authority must have left its trace: the exit that
// the agent reported, the agent's event for an orphaned member, or the operator's event
// with a name. A timeout that freed capacity by itself could produce none of these.
// Allocations that were never claimed had no container and may lapse by time.
func freedOnConfirmation(c *jobCase) {
	for _, a := range c.j.Allocations {
		if a.FreedSeq == 0 || a.FreedFrom != berth.AllocActive && a.FreedFrom != berth.AllocOrphaned {
			continue
		}
		switch a.FreedBy {
		case byAgent:
			if a.FreedFrom == berth.AllocActive && a.Exit == nil {
				c.of(a, rows(a), "its agent is said to have confirmed the end of rank %d, and there is no exit on "+
					"record", a.Rank)
			}
			if a.FreedFrom == berth.AllocOrphaned &&
				!c.told(a, func(actor string) bool { return actor == "agent:"+string(a.Machine) }) {
				c.of(a, rows(a), "rank %d was given up as silent and is free, and its machine never said that it "+
					"had ended", a.Rank)
			}
		case byOperator:
			if !c.told(a, person) {
				c.of(a, rows(a), "rank %d is free on an operator's word, and no event says whose", a.Rank)
			}
		case byBoot, byProvider: // byBoot: see freedByBoot
		default:
			c.of(a, rows(a), "rank %d was %s and became free on nobody's word (freed_by %q)", a.Rank,
				a.FreedFrom, a.FreedBy)
		}
	}
}

// told reports whether an event of the attempt records a release of capacity, by an
// accepted actor.
func (c *jobCase) told(a history.Allocation, actor func(string) bool) bool {
	return slices.ContainsFunc(c.j.Events, func(e history.Event) bool {
		return e.Kind == wire.EventReleased && e.Attempt == a.Attempt && actor(e.Actor)
	})
}

// person reports whether an actor is a human operator or user, not a part of Berth.
func person(actor string) bool {
	return actor != "leader" && actor != "workflow" && !strings.HasPrefix(actor, "agent:")
}

// freedByBoot proves the part of invariant 24 about reboots: capacity freed by a boot
// needs a later entry of the machine with another boot id. A new boot id is the only
// proof that every container of the old boot has ended.
func freedByBoot(c *machineCase) {
	for _, a := range c.m.Allocations {
		if a.FreedBy != byBoot || a.TakenSeq == 0 {
			continue
		}
		before := c.at(a.TakenSeq, nil)
		if before == nil {
			continue
		}
		rebooted := slices.ContainsFunc(c.m.Events, func(e history.MachineEvent) bool {
			return e.GPU == nil && e.Seq > a.TakenSeq && e.HostBoot != before.HostBoot
		})
		if !rebooted {
			c.of(a, rows(a, before), "it is free because the machine rebooted, and the machine's boot id is still %q",
				before.HostBoot)
		}
	}
}
