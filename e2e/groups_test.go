package e2e_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/spec"
	"berth/wire"
)

// runsGroups runs a head and its workers with other resources and commands. The workers never end by
// themselves: the end of the head stops them, and the job has succeeded although they exit with 3.
func runsGroups(t *testing.T, s *stack) {
	j := jobSpec("flock")
	j.StopGrace = new(spec.Duration(10 * time.Second))
	j.Groups = []spec.Group{
		{Name: "head", Leads: true, Command: []string{"do", "env BERTH_GROUP BERTH_GROUPS", "sleep 1s"}},
		{Name: "workers", Members: 2, Command: []string{"do", "env BERTH_GROUP_MEMBER", "trap-term 3"},
			Resources: spec.GroupResources{CPUs: new(spec.MilliCPU(200)), GPUs: new(spec.MilliGPU(1000))}},
	}
	id := s.submit(t, j)
	job := s.ends(t, id, berth.Succeeded)
	if len(job.Attempts) != 1 || len(job.Attempts[0].GPUs) != 2 || job.Spec.Members != 3 {
		t.Errorf("the job is %+v with the attempts %+v", job.Spec, job.Attempts)
	}
	events, err := s.api.Events(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(events.Items, func(e wire.Event) bool {
		return e.Kind == wire.EventOrdered && strings.HasPrefix(e.Detail, "stop: ") && strings.Contains(e.Detail, "member 1 on") &&
			strings.Contains(e.Detail, "member 2 on")
	}) {
		t.Errorf("no order to stop the workers: %+v", events)
	}
	// The head of another flock fails: its workers stop, and the job has failed.
	j.Groups[0].Command = []string{"do", "sleep 500ms", "exit 5"}
	job = s.ends(t, s.submit(t, j), berth.Failed)
	if job.ExitCode == nil || *job.ExitCode != 5 {
		t.Errorf("the exit code is %v", job.ExitCode)
	}
}
