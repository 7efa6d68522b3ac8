package spec_test

import (
	"strings"
	"testing"

	"berth"
	"berth/spec"
)

const sourceID = "01920000-0000-7000-8000-00000000000a"

func TestACheckpointOfAJobIsNamedInOneForm(t *testing.T) {
	t.Parallel()
	faults := func(from string) []berth.FieldError {
		return spec.Job{Name: "a", Image: "i", Checkpoint: &spec.CheckpointPolicy{Path: "/c", From: from}}.WithDefaults().Validate()
	}
	for _, good := range []string{sourceID, sourceID + "@0", sourceID + "@17"} {
		ref, err := spec.ParseStepRef(good)
		if err != nil || ref.String() != good || len(faults(good)) > 0 {
			t.Errorf("%s is %+v, %v, %v", good, ref, err, faults(good))
		}
	}
	for _, named := range []string{"digits", "digits@17", "a1b2c3@17", "sweep[3]@2", "nightly.fit"} { // for the command line to look up
		if _, err := spec.ParseStepRef(named); err == nil || len(faults(named)) > 0 {
			t.Errorf("%q: an id %t, faults %v", named, err == nil, faults(named))
		}
	}
	for _, bad := range []string{"@17", sourceID + "@", sourceID + "@-1", sourceID + "@017", sourceID + "@+1", sourceID + "@1@2",
		"two words", sourceID + "@9223372036854775808", strings.Repeat("x", 600)} {
		if f := faults(bad); len(f) != 1 || f[0].Field != "checkpoint.from" || !strings.Contains(f[0].Allowed, "JOB@STEP") {
			t.Errorf("%q: faults are %+v", bad, f)
		}
	}
}

// TestACachedStepNamesItsStep checks that the key of a cached step changes with the checkpoint
// from which the step starts, and that the checkpoint cannot change without the key.
func TestACachedStepNamesItsStep(t *testing.T) {
	t.Parallel()
	fit := func(from string) spec.Pipeline {
		return spec.Pipeline{Kind: "pipeline", Name: "p", Jobs: map[string]spec.Job{"fit": {Image: "i", Cache: true,
			Checkpoint: &spec.CheckpointPolicy{Path: "/c", From: from}}}}.WithDefaults()
	}
	if faults := fit(sourceID).Validate(); len(faults) != 1 || faults[0].Field != "jobs.fit.checkpoint.from" {
		t.Errorf("without a step: %+v", faults)
	}
	keys := map[string]bool{}
	for _, step := range []string{"17", "18"} {
		p := fit(sourceID + "@" + step)
		if faults := p.Validate(); len(faults) > 0 {
			t.Errorf("step %s: %+v", step, faults)
		}
		key, ok := p.Jobs["fit"].CacheKey(spec.Standing{})
		keys[string(key)] = ok
	}
	if len(keys) != 2 {
		t.Errorf("two checkpoints have %d keys", len(keys))
	}
}
