package api_test

import (
	"net/http"
	"strings"
	"testing"

	"berth"
	"berth/api"
	"berth/internal/lib/overload"
	"berth/spec"
)

func TestExplainSaysThatAJobWaitsForTheControlPlane(t *testing.T) {
	t.Parallel()
	gate := overload.NewGate(nil)
	s := newSite(t, func(d *api.Deps) { d.Gate = gate })
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	explain := func() string { return s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/explain", "").body }
	if text := explain(); strings.Contains(text, "control_plane") {
		t.Errorf("it waits for the control plane although nothing binds: %s", text)
	}
	gate.Observe(overload.Pressure{Unsettled: 50})
	if text := explain(); strings.Contains(text, "control_plane") {
		t.Errorf("it reports the rate of a gate that this process does not use: %s", text)
	}
	gate.Observe(overload.Pressure{Unsettled: overload.TolerateMost + 1})
	if text := explain(); !strings.Contains(text, "waits for the control plane: 501 ended jobs are settled first") {
		t.Errorf("it does not say that the whole cluster settles first: %s", text)
	}
	gate.Observe(overload.Pressure{Unsettled: 50})
	gate.Starts.Room() // this process starts workflows
	gate.Placements.Room()
	if text := explain(); !strings.Contains(text, `"code":"control_plane"`) || !strings.Contains(text, "waits for the control plane: 50 ended jobs are settled first") {
		t.Errorf("it does not say what it waits for: %s", text)
	}
}

func TestOnlyAdminsPauseAdmissionAndEverybodySeesIt(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	if a := s.call("alice", "PUT", "/v1/admission", `{"paused": true}`); a.status != http.StatusForbidden {
		t.Errorf("a user paused the cluster: %d %s", a.status, a.body)
	}
	if a := s.call("admin", "PUT", "/v1/admission", `{"reason": "x"}`); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, `"paused"`) {
		t.Errorf("neither a pause nor a resumption: %d %s", a.status, a.body)
	}
	if a := s.call("admin", "PUT", "/v1/admission", `{"paused": true, "reason": "new disks"}`); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	for _, path := range []string{"/v1/admission", "/v1/jobs", "/v1/jobs/" + string(job.ID) + "/explain"} {
		if a := s.call("alice", "GET", path, ""); a.status != http.StatusOK || !strings.Contains(a.body, "new disks") {
			t.Errorf("%s does not tell of the pause: %d %s", path, a.status, a.body)
		}
	}
	e, err := s.as("alice").Explain(t.Context(), job.ID)
	if err != nil || !blocked(e, "paused") || blocked(e, "not_accepted") {
		t.Errorf("a pause is explained, and no worker is suspected for it: %+v, %v", e.Blockers, err)
	}
	if again := s.submit("alice", func(j *spec.Job) { j.Name = "later" }); again.Status != berth.Submitted {
		t.Errorf("a job that was submitted during the pause is %s", again.Status)
	}
}
