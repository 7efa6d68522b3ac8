package chaos_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"berth/internal/lib/failpoint"
)

// The minimum that every run must cover: each failpoint, and each process with every kind of fault that it can have.
// make chaos strikes each failpoint at least twice.
func TestTheFixedCellsAreEnough(t *testing.T) {
	t.Parallel()
	cells, further := fixedCells(), furtherCells()
	points, every, processes, faults, away := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}, 0
	for _, c := range cells {
		points[c.point]++
		every[c.point]++
		processes[c.process]++
		faults[fmt.Sprintf("%s %s %s", c.process, c.action, c.downtime())]++
		if c.down == beyond && c.loses() {
			away++
		}
	}
	t.Logf("%d cells, %d of them down beyond lost_after, and %d further ones", len(cells), away, len(further))
	if len(cells) < 60 || away < 15 {
		t.Errorf("%d cells, %d of them down beyond lost_after: want at least 60 and 15", len(cells), away)
	}
	for _, c := range further {
		every[c.point]++
		if slices.Contains(cells, c) {
			t.Errorf("cell %s is among the fixed and the further ones", c)
		}
	}
	for _, p := range slices.Concat(failpoint.Points, failpoint.CloudPoints, failpoint.ScalerPoints) {
		if points[p.Name] < 1 || every[p.Name] < 2 {
			t.Errorf("failpoint %s is in %d fixed cells and %d of all: want at least 1 and 2", p.Name, points[p.Name],
				every[p.Name])
		}
	}
	for _, p := range []string{
		string(failpoint.API), string(failpoint.Leader), string(failpoint.Worker), string(failpoint.Agent),
		dockerdProcess, postgresProcess, temporalProcess,
	} {
		if processes[p] < 5 {
			t.Errorf("process %s dies in %d cells, want at least 5", p, processes[p])
		}
	}
	for _, c := range further {
		fault := fmt.Sprintf("%s %s %s", c.process, c.action, c.downtime())
		if c.process != network && c.process != temporalProcess && faults[fault] < 3 {
			t.Errorf("cell %s is left to longer runs, and only %d fixed cells have its fault, want at least 3",
				c, faults[fault])
		}
	}
}

// A breach fails the run, even if another part of the cell was only slow.
func TestSlownessNeverHidesABreach(t *testing.T) {
	t.Parallel()
	late := awaitFor(time.Millisecond, lastLook, "it comes", func() error { return errors.New("not yet") })
	early := fatal{slowness{overtaken{errors.New("the job has succeeded")}}}
	breach := errors.New("the log is wrong")
	for _, err := range []error{late, early, fmt.Errorf("element 1: %w", late), errors.Join(late, nil, early)} {
		if !onlySlow(err) {
			t.Errorf("%v counts as a breach", err)
		}
	}
	for _, err := range []error{nil, breach, fatal{breach}, errors.Join(late, breach), fmt.Errorf("%w: %w", late, breach)} {
		if onlySlow(err) {
			t.Errorf("%v counts as slowness", err)
		}
	}
	if _, is := errors.AsType[overtaken](early); !is {
		t.Errorf("%v is not recognized", early)
	}
}
