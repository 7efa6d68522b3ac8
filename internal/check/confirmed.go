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

// freedOnConfirmation wants somebody's word for the end of each allocation that
// a container may have run under, and looks for the trace that this leaves.
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

// told reports whether an event of the attempt records a release of capacity, by
// an actor that the function accepts.
func (c *jobCase) told(a history.Allocation, actor func(string) bool) bool {
	return slices.ContainsFunc(c.j.Events, func(e history.Event) bool {
		return e.Kind == wire.EventReleased && e.Attempt == a.Attempt && actor(e.Actor)
	})
}

func person(actor string) bool {
	return actor != "leader" && actor != "workflow" && !strings.HasPrefix(actor, "agent:")
}

// freedByBoot wants to see the other boot id that a machine came back with.
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
