package api_test

import (
	"strings"
	"testing"

	"berth/spec"
)

// An explanation names the caller's own jobs that hold the room and counts the jobs of others;
// an admin sees all.
func TestExplainNamesTheHoldersOfTheRoom(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 2, 65536, 0)
	s.machine("m2", 1, 65536, 0)
	named := func(name string) func(*spec.Job) { return func(j *spec.Job) { cores(1)(j); j.Name = name } }
	own, theirs := s.submit("alice", named("train")), s.submit("bob", named("bobs-secret"))
	limited := s.submit("alice", func(j *spec.Job) { named("limited")(j); j.TimeLimit = spec.Duration(3600e9) })
	s.run(own.ID, "m1")
	s.run(theirs.ID, "m1")
	s.run(limited.ID, "m2")
	job := s.submit("alice", cores(1))
	s.queue(job.ID)
	e, err := s.as("alice").Explain(t.Context(), job.ID)
	if err != nil || len(e.Holders) != 2 || e.OtherHolders != 1 {
		t.Fatalf("%+v %d, %v", e.Holders, e.OtherHolders, err)
	}
	if first, second := e.Holders[0], e.Holders[1]; first.Job != limited.ID || first.EndsBy == nil ||
		second.Name != "train" || second.EndsBy != nil ||
		len(second.Machines) != 1 || second.Machines[0] != "m1" {
		t.Errorf("%+v", e.Holders)
	}
	if a := s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/explain", ""); strings.Contains(a.body,
		"bobs-secret") || strings.Contains(a.body, string(theirs.ID)) {
		t.Errorf("another tenant's job is named: %s", a.body)
	}
	if e, err := s.as("admin").Explain(t.Context(), job.ID); err != nil || len(e.Holders) != 3 || e.OtherHolders != 0 {
		t.Errorf("an admin sees %+v %d, %v", e.Holders, e.OtherHolders, err)
	}
	s.exec(`UPDATE machines SET state = 'draining'`)
	if e, err := s.as("alice").Explain(t.Context(), job.ID); err != nil || len(e.Holders) != 0 || e.OtherHolders != 0 {
		t.Errorf("the machines are draining, so that nothing holds the room: %+v %d, %v", e.Holders, e.OtherHolders,
			err)
	}
}
