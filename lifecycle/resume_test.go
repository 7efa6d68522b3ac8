package lifecycle_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/lifecycle"
	"berth/wire"
)

func TestARetryResumesFromTheNewestStepThatIsLeft(t *testing.T) {
	t.Parallel()
	step := func(attempt int, n int64) lifecycle.SavedStep {
		return lifecycle.SavedStep{Attempt: attempt, Step: n, Members: 1}
	}
	from := func(job berth.JobID, attempt int, n int64) *wire.StartPoint {
		return &wire.StartPoint{Job: job, Attempt: attempt, Step: n, Members: 1}
	}
	for name, c := range map[string]struct {
		saved map[berth.JobID]lifecycle.Saved
		want  *wire.StartPoint
		lost  bool
	}{
		"it never saved a step": {map[berth.JobID]lifecycle.Saved{"b": {}}, nil, false},
		"its newest step": {map[berth.JobID]lifecycle.Saved{"b": {Had: true,
			Steps: []lifecycle.SavedStep{step(2, 17), step(1, 9)}}}, from("b", 2, 17), false},
		"it succeeded": {map[berth.JobID]lifecycle.Saved{"b": {Succeeded: true, Had: true,
			Steps: []lifecycle.SavedStep{step(1, 40)}}}, nil, false},
		"its steps are damaged": {map[berth.JobID]lifecycle.Saved{"b": {Had: true}}, nil, true},
		"it saved nothing since its start": {map[berth.JobID]lifecycle.Saved{"b": {Had: true, From: from("a", 1, 9)},
			"a": {Had: true, Steps: []lifecycle.SavedStep{step(1, 12), step(1, 9)}}}, from("a", 1, 9), false},
		"what it started from is damaged": {map[berth.JobID]lifecycle.Saved{"b": {Had: true, From: from("a", 2, 9)},
			"a": {Had: true, Steps: []lifecycle.SavedStep{step(3, 9), step(1, 9), step(1, 5)}}}, from("a", 1, 9), false},
		"all of the job before is damaged": {map[berth.JobID]lifecycle.Saved{"c": {}, "b": {Had: true, From: from("a", 1, 9)},
			"a": {Had: true, From: from("0", 1, 3)}, "0": {Had: true, Steps: []lifecycle.SavedStep{step(1, 3)}}},
			from("0", 1, 3), false},
		"the job before is archived": {map[berth.JobID]lifecycle.Saved{"b": {From: from("a", 1, 9)}}, nil, true},
		"a circle ends":              {map[berth.JobID]lifecycle.Saved{"b": {From: from("b", 1, 9)}}, nil, true},
	} {
		got, lost := lifecycle.Resume("b", c.saved)
		if d := cmp.Diff(c.want, got); d != "" || c.lost != lost {
			t.Errorf("%s: lost %t, source (-want +got):\n%s", name, lost, d)
		}
	}
}
