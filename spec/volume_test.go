package spec_test

import (
	"maps"
	"strings"
	"testing"

	"berth"
	"berth/spec"
)

// Placement reads labels of machines, and the spec that the user wrote stays as
// it is.
func TestAJobAsksForTheFoldersThatItReads(t *testing.T) {
	t.Parallel()
	jobSpec := spec.Job{
		Name: "x", Image: "busybox", Placement: spec.Placement{Labels: map[string]string{"zone": "a"}},
		Inputs: []spec.Input{{From: "file:///datasets/a/", To: "/a"}, {From: "./src", To: "/b"}, {From: "file:///datasets/b", To: "/c"}, {From: "file:///models/c", To: "/d"}},
	}.WithDefaults()
	want := map[string]string{"zone": "a", "berth.volume.datasets": "yes", "berth.volume.models": "yes"}
	if got := jobSpec.Request().Labels; !maps.Equal(got, want) {
		t.Errorf("it asks for %v", got)
	}
	if !maps.Equal(jobSpec.Placement.Labels, map[string]string{"zone": "a"}) {
		t.Errorf("the spec has %v", jobSpec.Placement.Labels)
	}
	without := jobSpec
	without.Inputs = jobSpec.Inputs[1:2]
	if without.Request().Class() == jobSpec.Request().Class() {
		t.Error("a job without the folders is of the same class")
	}
	if keys := jobSpec.DataKeys("a"); len(keys) != 4 {
		t.Errorf("its data has %d keys: one for each file or folder that it reads, and one for its image", len(keys))
	}
}

func TestNamesOfFoldersAreNamesAlone(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"/datasets", "/Data_2.1", "/a-b", "/0", "/" + strings.Repeat("x", 48)} {
		v, err := spec.ParseVolume(ok)
		if err != nil || v.String() != ok {
			t.Errorf("%s: %v, %v", ok, v, err)
		}
		if back, is := spec.VolumeOf(v.Label()); !is || back != v || len(v.Label()) > 63 {
			t.Errorf("%s has the label %s", ok, v.Label())
		}
	}
	for _, bad := range []string{"", "/", "datasets", "/a/b", "/.", "/..", "/.hidden", "/-x", "/_x", "/a b", "/a=b", "/a,b", "/a;b", "/ü", "/" + strings.Repeat("x", 49), "/proc", "/sys", "/dev", "/etc", "/run", "/var", "/root", "/tmp"} {
		if v, err := spec.ParseVolume(bad); err == nil || berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("%q is read as %q, %v", bad, v, err)
		}
	}
}

// Otherwise the label of a user or of an operator could stand for a fact that only
// the machine knows.
func TestLabelsOfFoldersAreTheMachinesAlone(t *testing.T) {
	t.Parallel()
	jobSpec := spec.Job{Name: "x", Image: "busybox", Placement: spec.Placement{Labels: map[string]string{"berth.volume.datasets": "yes", "berth.volume": "a"}}}.WithDefaults()
	const key = ".berth.volume.datasets"
	if faults := jobSpec.Validate(); len(faults) != 1 || faults[0].Field != "placement.labels"+key {
		t.Errorf("of a job: %+v", faults)
	}
	join := spec.NewJoinToken{Labels: jobSpec.Placement.Labels}
	if faults := join.Validate(); len(faults) != 1 || faults[0].Field != "labels"+key {
		t.Errorf("of a join token: %+v", faults)
	}
}

func TestACachedStepTakesNoFilesThatMayChange(t *testing.T) {
	t.Parallel()
	p := graph("a")
	s := p.Jobs["a"]
	s.Cache, s.Inputs = true, []spec.Input{{From: "file:///datasets/a/", To: "/data"}}
	p.Jobs["a"] = s
	if faults := p.Validate(); len(faults) != 1 || faults[0].Field != "jobs.a.inputs[0].from" || !strings.Contains(faults[0].Detail, "may change unnoticed") {
		t.Errorf("%+v", faults)
	}
}

// A container that waits for a dead file server cannot be fenced, and the content of a cached
// step's inputs must be part of its key.
func TestNeitherAtMostOneNorACachedStepMounts(t *testing.T) {
	t.Parallel()
	mount := []spec.Input{{From: "file:///datasets/a/", To: "/data", Mode: spec.InputMount}}
	fenced := spec.Job{Name: "x", Image: "i", Execution: spec.AtMostOne, Inputs: mount}.WithDefaults()
	if faults := fenced.Validate(); len(faults) != 1 || faults[0].Field != "inputs[0].mode" ||
		faults[0].Detail != "mount is not available for jobs with execution at_most_one" {
		t.Errorf("%+v", faults)
	}
	p := graph("a")
	s := p.Jobs["a"]
	s.Cache, s.Inputs = true, mount
	p.Jobs["a"] = s
	if faults := p.Validate(); len(faults) != 1 || faults[0].Field != "jobs.a.inputs[0].from" {
		t.Errorf("%+v", faults)
	}
}

// Agents of earlier versions would copy the folder, so their machines do not match; and no machine is
// preferred for a copy that a mount does not use.
func TestAMountNeedsAMachineThatMounts(t *testing.T) {
	t.Parallel()
	j := spec.Job{Name: "x", Image: "i", Inputs: []spec.Input{
		{From: "file:///a/", To: "/a", Mode: spec.InputMount}, {From: "file:///b/", To: "/b"}, {From: "file:///c/x/", To: "/c", Mode: spec.InputCopy},
	}}.WithDefaults()
	want := map[string]string{"berth.mount.a": "yes", "berth.volume.b": "yes", "berth.volume.c": "yes"}
	if got := j.Request().Labels; !maps.Equal(got, want) {
		t.Errorf("it needs %v", got)
	}
	if n := len(j.DataKeys("t")); n != 3 { // two copies and the image
		t.Errorf("%d keys", n)
	}
	j.Placement.Labels = map[string]string{"berth.mount.a": "no"}
	if faults := j.Validate(); len(faults) != 1 || !strings.Contains(faults[0].Detail, "is reserved for the shared folders of machines") {
		t.Errorf("%+v", faults)
	}
}
