package agent_test

import (
	"strings"
	"testing"

	"berth"
	"berth/failure"
	"berth/spec"
)

// The rules may have changed since the submit.
func TestAnImageThatIsNoLongerAllowedDoesNotStart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	ran := &created{}
	ran.of(m.runtime)
	s.secret("TOKEN", canary)
	id := s.submit(func(j *spec.Job) { j.Secrets = []string{"TOKEN"} }, "exit", "0")
	if err := s.db.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: "default", Images: []string{"ghcr.io/acme"}}); err != nil {
		t.Fatal(err)
	}
	_, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseImageNotAllowed || x.Started() {
		t.Errorf("exit is %+v", x)
	}
	j := s.settle(id)
	if j.Status != berth.Failed || j.Reason == nil || j.Reason.Code != berth.ReasonImageNotAllowed ||
		!strings.Contains(j.Reason.Message, "docker.io/library/testprog is not among the images that tenant default allows (allowed: images of ghcr.io/acme)") {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	if len(ran.sorted()) > 0 || strings.Contains(m.logs.text(), canary) {
		t.Errorf("it ran %q, or its secret was handed out", ran.sorted())
	}
}
