package chaos_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/internal/lib/failpoint"
)

// The processes that are no program with failpoints.
const (
	dockerdProcess  = "dockerd"
	postgresProcess = "postgresql"
	temporalProcess = "temporal"
	network         = "network"
)

// Downtimes. beyond is until the work of a dead machine was given up, or for
// longer than that would take.
const (
	short  = 2 * time.Second
	beyond = lost + time.Second
)

// cell is one way for things to go wrong.
type cell struct {
	process string
	point   string // a failpoint, or the action on the process
	action  string // kill or freeze
	down    time.Duration
	of      string // the kind of job or change that must hit the failpoint, where several can; "": any
}

func struck(process, point, action string, down time.Duration) cell {
	return cell{process: process, point: point, action: action, down: down}
}

func (c cell) String() string {
	return fmt.Sprintf("%s %s %s %s", c.process, c.place(), c.action, c.downtime())
}

// place is the failpoint, with the kind of job or change that hits it.
func (c cell) place() string {
	if c.of == "" {
		return c.point
	}
	return c.point + " of " + c.of
}

func (c cell) downtime() string {
	switch c.down {
	case 0:
		return "0"
	case beyond:
		return "beyond lost_after"
	}
	return c.down.String()
}

// result is the outcome of a cell.
type result struct {
	cell
	took time.Duration
	err  error
}

// freezes are cells in which a process is not killed but stopped, and goes on
// later where it was.
var freezes = map[string]cell{
	"leader.commit.before": struck(string(failpoint.Leader), "leader.commit.before", "freeze", beyond),
	"leader.commit.after":  struck(string(failpoint.Leader), "leader.commit.after", "freeze", beyond),
	"worker.settle.before": struck(string(failpoint.Worker), "worker.settle.before", "freeze", short),
	"agent.start.after":    struck(string(failpoint.Agent), "agent.start.after", "freeze", beyond),
	"agent.report.before":  struck(string(failpoint.Agent), "agent.report.before", "freeze", short),
	"leader.repair.before": struck(string(failpoint.Leader), "leader.repair.before", "freeze", beyond),
	"leader.clock.before":  struck(string(failpoint.Leader), "leader.clock.before", "freeze", beyond),
	"worker.keep.before":   struck(string(failpoint.Worker), "worker.keep.before", "freeze", beyond),
	"agent.claim.after":    struck(string(failpoint.Agent), "agent.claim.after", "freeze", beyond),
}

// failpointCells are the cells of all failpoints. Each has a kill with a start at once, and a kill with a start
// later, or a freeze. A freeze, and a downtime beyond lost_after, are faults of another kind than a kill, so every run
// has both cells of such a failpoint. The two kills of another failpoint differ only in whether its process or the
// second one of its role goes on: every run has one of them, in turn, and further has the other one. Those with a
// freeze have a third, longer kill, which is in further as well.
func failpointCells() (fixed, further []cell) {
	agents, turns := 0, map[failpoint.Process]int{}
	for i, p := range slices.Concat(failpoint.Points, failpoint.CloudPoints, failpoint.ScalerPoints) {
		first, second := struck(string(p.Process), p.Name, "kill", 0), struck(string(p.Process), p.Name, "kill", short)
		// Every other agent stays away for too long; so does a leader now and then.
		switch p.Process {
		case failpoint.Agent:
			if agents++; agents%2 == 0 {
				second.down = beyond
			}
		case failpoint.Leader:
			if i%4 == 0 {
				second.down = beyond
			}
		}
		freeze, freezes := freezes[p.Name]
		switch {
		case freezes:
			fixed, further = append(fixed, first, freeze), append(further, second)
		case second.down == beyond:
			fixed = append(fixed, first, second)
		default:
			if turns[p.Process]++; turns[p.Process]%2 == 0 {
				first, second = second, first
			}
			fixed, further = append(fixed, first), append(further, second)
		}
	}
	return fixed, further
}

// fixedCells are the cells of every run: each failpoint, and each process.
func fixedCells() []cell {
	cells, _ := failpointCells()
	cells = append(cells,
		struck(dockerdProcess, whileRunning, "kill", 0),
		struck(dockerdProcess, whileRunning, "kill", short),
		struck(dockerdProcess, whileRunning, "kill", beyond),
		struck(dockerdProcess, beforeCreate, "kill", short),
		struck(dockerdProcess, powerCut, "kill", beyond),
	)
	for _, down := range []time.Duration{0, 0, short, short, beyond} {
		cells = append(cells,
			struck(postgresProcess, whileRunning, "kill", down),
			struck(temporalProcess, whileRunning, "kill", min(down, short)))
	}
	cells = append(cells, workCells()...)
	return append(cells, struck(network, submitReplyCut, "cut", 0), struck(network, databaseCut, "cut", short))
}

// The kinds of work, or of changes, that hit the failpoints of specific cells.
const (
	aGang   = "a gang"
	aPause  = "a pause"
	aDelete = "a deletion"
	aCancel = "a cancel"
	aBranch = "a pipeline with conditions"
	aNotice = "a notice of a cloud"
)

// workCells are about work that many of the same failpoint are not about.
func workCells() []cell {
	agent, leader := string(failpoint.Agent), string(failpoint.Leader)
	api, worker := string(failpoint.API), string(failpoint.Worker)
	return []cell{
		{agent, "agent.claim.after", "kill", beyond, aGang},
		{agent, "agent.create.after", "kill", short, aGang},
		{agent, "agent.create.after", "kill", beyond, aGang},
		{agent, "agent.start.after", "kill", 0, aGang},
		{agent, "agent.start.after", "freeze", beyond, aGang},
		{leader, "leader.clock.after", "kill", 0, aPause},
		{leader, "leader.clock.after", "kill", short, aDelete},
		{api, "worker.judge.before", "kill", 0, aCancel},
		{api, "worker.judge.after", "kill", short, aCancel},
		{worker, "worker.tend.before", "kill", 0, aBranch},
		{worker, "worker.tend.after", "kill", short, aBranch},
		{api, "api.cancel.before", "kill", short, aBranch},
		{api, "api.cancel.after", "kill", 0, aBranch},
		{agent, "agent.start.after", "kill", beyond, aBranch},
		{agent, "agent.exit.before", "kill", 0, aBranch},
		{agent, "agent.stop.before", "kill", short, aNotice},
		{agent, "agent.stop.after", "kill", 0, aNotice},
	}
}

// furtherCells are the cells for which only a longer run has time.
func furtherCells() []cell {
	_, cells := failpointCells()
	return append(cells,
		struck(temporalProcess, whileRunning, "kill", beyond),
		struck(network, databaseSlow, "delay", short),
		struck(network, temporalCut, "cut", short),
		struck(network, frontDown, "drop", short),
	)
}

// Actions on processes without failpoints.
const (
	whileRunning   = "while jobs run"
	beforeCreate   = "before a container is created"
	powerCut       = "power cut"
	submitReplyCut = "reply of a committed submit is cut"
	databaseCut    = "database cut one way"
	databaseSlow   = "database slow"
	temporalCut    = "temporal cut one way"
	frontDown      = "all connections of users and agents reset"
)

// loses reports whether the cell is about work that is given up because its
// machine was silent beyond lost_after.
func (c cell) loses() bool {
	switch c.process {
	case string(failpoint.Agent):
		return c.down == beyond
	case dockerdProcess:
		return c.point == powerCut
	}
	return strings.HasPrefix(c.point, "leader.lost.")
}

// matrix prints all results: a line for each process and failpoint, with every
// action and downtime and how long the cell took.
func matrix(results []result) string {
	slices.SortStableFunc(results, func(a, b result) int {
		return cmp.Or(strings.Compare(a.process, b.process), strings.Compare(a.place(), b.place()), strings.Compare(b.action, a.action), cmp.Compare(a.down, b.down))
	})
	var b strings.Builder
	for i, r := range results {
		if i == 0 || r.process != results[i-1].process || r.place() != results[i-1].place() {
			fmt.Fprintf(&b, "\n%-10s %-34s", r.process, r.place())
		}
		says := "ok"
		switch {
		case onlySlow(r.err):
			says = "SLOW TWICE"
		case r.err != nil:
			says = "BREACH"
		}
		fmt.Fprintf(&b, "  %s %s: %s %.0fs", r.action, r.downtime(), says, r.took.Seconds())
	}
	return strings.TrimPrefix(b.String(), "\n") + "\n"
}
