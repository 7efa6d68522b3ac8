package chaos_test

import (
	"fmt"
	"slices"
	"strings"

	"berth/internal/lib/failpoint"
)

// Lanes in addition to the processes' own lanes, which have the processes' names. A lane orders
// the cells that must not run at the same time.
const (
	beyondLane = "agent beyond" // agents that stay away until their work is given up
	lossLane   = "loss"         // machines that a leader gives up
	deafLane   = "deaf"         // machines that do not receive their orders
	gangLane   = "gang"         // gangs, with two machines to themselves
	clockLane  = "clock"        // schedules that Temporal fires: one at a time, so that no other one is struck
)

// lane is whose turn a cell waits for.
func (c cell) lane() string {
	switch {
	case c.ofGang():
		return gangLane
	case c.ofClock():
		return clockLane
	case strings.HasPrefix(c.point, "worker.escalate."):
		return deafLane
	case strings.HasPrefix(c.point, "leader.lost."):
		return lossLane
	case c.process == string(failpoint.Agent) && c.down == beyond:
		return beyondLane
	}
	return c.process
}

// ofGang reports whether only gangs come by.
func (c cell) ofGang() bool {
	return c.of == aGang || c.ofHang() ||
		c.under("api.gang.", "worker.keep.", "leader.repair.", "leader.yield.")
}

// ofHang reports whether only a gang that hangs comes by.
func (c cell) ofHang() bool { return c.under("leader.hang.", "agent.evidence.") }

// ofNeed reports whether only jobs that wait for another one come by.
func (c cell) ofNeed() bool { return c.under("worker.judge.") }

// ofList reports whether only arrays that are made from an output come by.
func (c cell) ofList() bool { return c.under("leader.list.") }

// ofSession reports whether only sessions of users come by.
func (c cell) ofSession() bool { return c.under("api.join.", "agent.exec.") }

// ofLaunch reports whether only machines of a cloud come by.
func (c cell) ofLaunch() bool { return c.under("worker.launch.", "worker.terminate.") }

// ofArray reports whether the cell is about arrays, which alone hit its failpoint.
func (c cell) ofArray() bool { return c.under("worker.expand.", "worker.tell.") }

// ofClock reports whether only schedules that Temporal fires come by.
func (c cell) ofClock() bool { return c.under("leader.clock.", "worker.fire.") }

// ofFire reports whether only fires of schedules by hand hit the failpoint.
func (c cell) ofFire() bool { return c.under("leader.fire.", "api.fire.") }

// under reports whether the failpoint's name begins like one of these.
func (c cell) under(prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(c.point, p) })
}

// How many cells may be under way at the same time. Where agents are killed or
// deaf each has a place of its own.
const (
	agentPlaces  = 12
	beyondPlaces = agentPlaces / 2 // were more than a third of all machines silent, no verdict would be passed on any
	deafPlaces   = 2
	gangPlaces   = 3
)

// Places in addition to the lanes' places, which have the lanes' names.
const (
	enginePlace = "engine" // the machine whose engine is killed
	calmPlace   = "calm"   // a machine to which nothing happens
)

func agentPlace(i int) string { return fmt.Sprint(i) }
func deafPlace(i int) string  { return fmt.Sprintf("%s-%d", deafLane, i) }
func gangPlace(i int) string  { return fmt.Sprintf("%s-%d", gangLane, i) }

// crew runs the cells of lanes one after another, with their jobs in one place:
// the value of the label "lane" of its machines.
type crew struct {
	place string
	lanes []string
}

// phases are crews that work at the same time. While a service that all jobs need is away, every
// other cell would only wait; the database is never away together with Temporal, which keeps its
// state there.
var phases = [][]crew{
	processPhase(),
	abreast(map[string]int{postgresProcess: 5}),
	abreast(map[string]int{temporalProcess: 3, network: 2}), // more, and tasks that fail again and again wait ever longer
}

// abreast returns the given number of crews for each lane. The jobs of cells about the control
// plane run in the place of the lane's name, and all other jobs in a calm place.
func abreast(lanes map[string]int) []crew {
	var crews []crew
	for lane, n := range lanes {
		place := lane
		if slices.Contains([]string{postgresProcess, temporalProcess, network}, lane) {
			place = calmPlace
		}
		for range n {
			crews = append(crews, crew{place, []string{lane}})
		}
	}
	return crews
}

func processPhase() []crew {
	var crews []crew
	for i := range agentPlaces {
		c := crew{agentPlace(i), []string{string(failpoint.Agent)}}
		if i < beyondPlaces {
			c.lanes = []string{beyondLane, string(failpoint.Agent)}
		}
		crews = append(crews, c)
	}
	for i := range deafPlaces {
		crews = append(crews, crew{deafPlace(i), []string{deafLane}})
	}
	for i := range gangPlaces {
		crews = append(crews, crew{gangPlace(i), []string{gangLane}})
	}
	crews = append(crews, crew{enginePlace, []string{dockerdProcess}}, crew{calmPlace, []string{clockLane}})
	return append(crews, abreast(map[string]int{
		string(failpoint.API): 6, string(failpoint.Leader): 3, string(failpoint.Worker): 6, lossLane: 2,
	})...)
}
