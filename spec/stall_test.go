package spec_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"berth/spec"
)

func TestFaultsOfAStallPolicyAreNamed(t *testing.T) {
	t.Parallel()
	after := spec.Duration(10 * time.Minute)
	for name, c := range map[string]struct {
		edit         func(*spec.Job)
		field, words string // "": no fault
	}{
		"only after":       {func(s *spec.Job) { s.Stall = &spec.StallPolicy{After: after} }, "", ""},
		"the shortest":     {func(s *spec.Job) { s.Stall = &spec.StallPolicy{After: spec.Duration(10 * time.Second)} }, "", ""},
		"without after":    {func(s *spec.Job) { s.Stall = &spec.StallPolicy{} }, "stall.after", "required"},
		"too short":        {func(s *spec.Job) { s.Stall = &spec.StallPolicy{After: spec.Duration(time.Second)} }, "stall.after", "1s is out of range"},
		"too long":         {func(s *spec.Job) { s.Stall = &spec.StallPolicy{After: spec.Duration(9000 * time.Hour)} }, "stall.after", "out of range"},
		"start":            {func(s *spec.Job) { s.Stall = &spec.StallPolicy{After: after, StartLimit: 2 * after} }, "", ""},
		"a short start":    {func(s *spec.Job) { s.Stall = &spec.StallPolicy{After: after, StartLimit: after / 2} }, "stall.start_limit", "5m is out of range"},
		"both":             {func(s *spec.Job) { s.StallTimeout, s.Stall = after, &spec.StallPolicy{After: after} }, "stall", "stall_timeout as well"},
		"no signs":         {signs(), "stall.signs", "is empty"},
		"unknown":          {signs("log", "heartbeat"), "stall.signs[1]", `"heartbeat" is not known`},
		"twice":            {signs("log", "cpu", "log"), "stall.signs[2]", "log is listed twice"},
		"gpu without GPUs": {signs("gpu"), "stall.signs", "resources.gpus is not set"},
		"gpu with GPUs": {func(s *spec.Job) {
			signs("gpu", "cpu")(s)
			s.Resources.GPUs = 1000
		}, "", ""},
		"gpu, too short": {func(s *spec.Job) {
			signs("gpu")(s)
			s.Resources.GPUs, s.Stall.After = 1000, spec.Duration(20*time.Second)
		}, "stall.after", "20s is too short for the sign gpu"},
		"checkpoint without checkpoints": {signs("checkpoint"), "stall.signs", "checkpoint is not set"},
	} {
		s := minimal()
		c.edit(&s)
		faults := s.WithDefaults().Validate()
		switch {
		case c.field == "" && len(faults) > 0:
			t.Errorf("%s: refused: %+v", name, faults)
		case c.field != "" && (len(faults) != 1 || faults[0].Field != c.field || !strings.Contains(faults[0].Detail, c.words) || faults[0].Allowed == ""):
			t.Errorf("%s: faults are %+v, want one in %s with %q", name, faults, c.field, c.words)
		}
	}
}

// signs returns an edit that sets these signs.
func signs(list ...spec.StallSign) func(*spec.Job) {
	return func(s *spec.Job) {
		s.Stall = &spec.StallPolicy{After: spec.Duration(time.Minute), Signs: append([]spec.StallSign{}, list...)}
	}
}

// A hung collective operation uses CPU and GPU, so neither is a sign of life unless the file says so.
func TestUseIsNoSignByDefault(t *testing.T) {
	t.Parallel()
	s := minimal()
	s.Resources.GPUs = 1000
	s.Stall = &spec.StallPolicy{After: spec.Duration(time.Minute)}
	given := *s.Stall
	if got := s.WithDefaults().Stall.Signs; !slices.Equal(got, []spec.StallSign{spec.SignProgress, spec.SignLog}) {
		t.Errorf("signs are %v", got)
	}
	s.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint"}
	filled := s.WithDefaults()
	if got := filled.Stall.Signs; !slices.Equal(got, []spec.StallSign{spec.SignProgress, spec.SignCheckpoint, spec.SignLog}) {
		t.Errorf("signs of a job with checkpoints are %v", got)
	}
	if s.Stall.Signs != nil || s.Stall.After != given.After {
		t.Errorf("the caller's policy was changed to %+v", s.Stall)
	}
	if got := filled.Stall.SignsText(); got != "progress, checkpoint or log" {
		t.Errorf("text is %q", got)
	}
}
