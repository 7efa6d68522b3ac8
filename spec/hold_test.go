package spec_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/spec"
)

func TestAHoldHasATimeAndIsRefusedForAtMostOne(t *testing.T) {
	t.Parallel()
	for claim, c := range map[string]struct {
		edit func(*spec.Job)
		ok   bool
	}{
		"none":           {func(*spec.Job) {}, true},
		"half an hour":   {func(j *spec.Job) { j.HoldOnFailure = spec.Duration(30 * time.Minute) }, true},
		"too short":      {func(j *spec.Job) { j.HoldOnFailure = spec.Duration(time.Second) }, false},
		"too long":       {func(j *spec.Job) { j.HoldOnFailure = spec.Duration(25 * time.Hour) }, false},
		"negative":       {func(j *spec.Job) { j.HoldOnFailure = spec.Duration(-time.Hour) }, false},
		"an at_most_one": {func(j *spec.Job) { j.HoldOnFailure, j.Execution = spec.Duration(time.Hour), spec.AtMostOne }, false},
	} {
		j := spec.Job{Name: "x", Image: "busybox"}
		c.edit(&j)
		faults := j.WithDefaults().Validate()
		if (len(faults) == 0) != c.ok || !c.ok && faults[0].Field != "hold_on_failure" {
			t.Errorf("%s: faults %+v", claim, faults)
		}
	}
}

// TestADebugJobIsAValidJobOfOneMember checks that a debug job of any job passes the checks of a submit, and has the
// resources and the environment of the member that it holds.
func TestADebugJobIsAValidJobOfOneMember(t *testing.T) {
	t.Parallel()
	cpus, memory, gpus := spec.MilliCPU(4000), spec.MiB(4096), spec.MilliGPU(2000)
	job := spec.Job{
		Name: strings.Repeat("n", 60), Image: "busybox", Command: []string{"python", "fit.py"}, Workdir: ".",
		Env: map[string]string{"A": "1"}, Secrets: []string{"token"}, Labels: map[string]string{"team": "a"},
		Network:       spec.Network{Egress: spec.EgressNone},
		Placement:     spec.Placement{Tolerations: []string{"rack=new"}},
		HoldOnFailure: spec.Duration(90 * time.Minute), TimeLimit: spec.Duration(time.Hour),
		Checkpoint: &spec.CheckpointPolicy{Path: "/c"}, Retry: spec.RetryPolicy{MaxAttempts: 5},
		Outputs: []spec.Output{{Name: "o", Path: "/workspace/o"}},
		Groups: []spec.Group{
			{Name: "head", Members: 1},
			{Name: "workers", Members: 2, Resources: spec.GroupResources{CPUs: &cpus, Memory: &memory, GPUs: &gpus}, Env: map[string]string{"B": "2"}},
		},
	}.WithDefaults()
	d := spec.DebugJob(job, 2, 0, "gpu-1")
	plain := d
	plain.Env = map[string]string{"A": "1"} // without the variables of Berth, which no file may set
	if faults := plain.Validate(); len(faults) > 0 {
		t.Errorf("the debug job has faults: %+v", faults)
	}
	if len(d.Name) > 63 || !strings.HasSuffix(d.Name, spec.DebugSuffix) {
		t.Errorf("its name is %s", d.Name)
	}
	r := d.Request()
	want := berth.Capacity{CPUMilli: 4000, MemoryMiB: 4096, GPUMilli: 2000}
	if r.Capacity() != want || r.Members != 1 || r.Constraint != `machine.id == "gpu-1"` ||
		!slices.Equal(r.Tolerations, []string{"rack=new"}) {
		t.Errorf("it asks for %+v", r)
	}
	if d.Env["A"] != "1" || d.Env["B"] != "2" || d.Env[spec.EnvGroup] != "workers" {
		t.Errorf("its environment is %v", d.Env)
	}
	if diff := cmp.Diff([]string{"sleep", "5400"}, append(d.Entrypoint, d.Command...)); diff != "" {
		t.Error(diff)
	}
	if d.Labels != nil || d.Checkpoint != nil || d.Outputs != nil || d.Retry.MaxAttempts != 1 || d.HoldOnFailure != 0 || d.StopGrace.Std() != 0 ||
		d.TimeLimit.Std() != 91*time.Minute || d.Secrets[0] != "token" || d.Network.Egress != spec.EgressNone {
		t.Errorf("it is %+v", d)
	}
}
