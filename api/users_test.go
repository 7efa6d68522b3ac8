package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/api"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// claimOf claims again the allocation that a machine has taken, as an agent with these headers.
func (s *site) claimOf(m *agent, job berth.JobID, headers ...string) (c wire.Claim) {
	s.t.Helper()
	body, err := json.Marshal(wire.ClaimRequest{AgentBoot: m.boot, Epoch: m.epoch, Alloc: m.run.Alloc, Job: job,
		Attempt: 1})
	if err != nil {
		s.t.Fatal(err)
	}
	got := s.call("m1", "POST", "/agent/v1/claim", string(body), headers...)
	if err := json.Unmarshal([]byte(got.body), &c); err != nil || got.status != http.StatusOK {
		s.t.Fatalf("%d %s", got.status, got.body)
	}
	return c
}

func TestClaimsNameTheUser(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *api.Deps) { d.Users = spec.UserTenant })
	s.secret("TOKEN", "alice", canary)
	job := s.submit("alice", func(j *spec.Job) { j.Secrets = []string{"TOKEN"} })
	m := s.joinMachine("m1")
	shows := func(want string) {
		t.Helper()
		if a := s.call("alice", "GET", "/v1/jobs/"+string(job.ID), ""); !strings.Contains(a.body, `"runs_as":"`+want+`"`) {
			t.Errorf("the job does not show that it runs as %s: %s", want, a.body)
		}
		if a := s.call("alice", "POST", "/v1/plans", `{"name": "x", "image": "busybox"}`); !strings.Contains(a.body, `"runs_as":"`+want+`"`) {
			t.Errorf("the plan does not show that the job runs as %s: %s", want, a.body)
		}
	}
	shows(spec.UserTenant)
	// Neither a look nor a plan takes a range of users, and a refused call does not, either.
	for path, calls := range map[string]map[string]int{
		"/v1/plans": {"tenant": http.StatusOK, "0": http.StatusUnprocessableEntity},
		"/v1/jobs":  {"0": http.StatusUnprocessableEntity, "1000:1000": http.StatusUnprocessableEntity},
	} {
		for user, want := range calls {
			a := s.call("alice", "POST", path, fmt.Sprintf(`{"name": "x", "image": "busybox", "user": %q}`, user))
			if a.status != want {
				t.Errorf("user %s at %s: %d %s", user, path, a.status, a.body)
			}
		}
	}
	if rows, err := s.db.Tenants.Rows(t.Context()); err != nil || slices.ContainsFunc(rows, func(r db.TenantRow) bool { return !r.Users.IsZero() }) {
		t.Errorf("a tenant has got users without a container: %+v, %v", rows, err)
	}

	// An agent that would run the container as root gets neither the work nor the secrets.
	c := m.take(job.ID)
	if c.Withheld == nil || c.Withheld.Missing || !strings.Contains(c.Withheld.Message, "upgrade the agent") ||
		len(c.Secrets) > 0 || c.User != "" {
		t.Errorf("an agent of an earlier version gets %+v", c)
	}
	c = s.claimOf(m, job.ID, wire.HeaderUsers, "1")
	own, err := s.db.Tenants.Users(t.Context(), "a")
	if err != nil || c.Withheld != nil || c.User != own.User().String() || len(c.Secrets) != 1 {
		t.Errorf("an agent that obeys users gets %+v; the tenant has %v, %v", c, own, err)
	}
	shows(own.User().String())
	if a := s.call("admin", "GET", "/v1/tenants/a", ""); !strings.Contains(a.body,
		fmt.Sprintf(`"users":{"first":%d,"last":%d}`, own.First, own.Last)) {
		t.Errorf("the tenant is shown as %s", a.body)
	}

	// The rules do not affect a container that has started.
	s.exec(`UPDATE allocations SET phase = $1 WHERE id = $2`, berth.PhaseRunning, m.run.Alloc)
	if c = s.claimOf(m, job.ID); c.Withheld != nil {
		t.Errorf("a container that runs gets %+v", c)
	}
}

// On an upgraded cluster images choose, also for agents of the version before; a read-only root needs a newer one.
func TestUpgradedClustersRunTheImagesUser(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	job := s.submit("alice", nil)
	m := s.joinMachine("m1")
	if c := m.take(job.ID); c.Withheld != nil || c.User != spec.UserImage {
		t.Errorf("the claim is %+v", c)
	}
	if a := s.call("alice", "GET", "/v1/jobs/"+string(job.ID), ""); !strings.Contains(a.body, `"runs_as":"image"`) {
		t.Errorf("the job is shown as %s", a.body)
	}
	s.exec(`UPDATE job_specs SET spec = spec || '{"read_only_root": true}' WHERE job = $1`, job.ID)
	if c := s.claimOf(m, job.ID); c.Withheld == nil || !strings.Contains(c.Withheld.Message, "writable root") {
		t.Errorf("an agent of an earlier version gets %+v", c)
	}
	if c := s.claimOf(m, job.ID, wire.HeaderUsers, "1"); c.Withheld != nil {
		t.Errorf("an agent that knows read-only roots gets %+v", c)
	}
}

func TestUsersAreRefusedAtTheSubmit(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *api.Deps) { d.Users = spec.UserTenant })
	refused := func(who, user string) bool {
		t.Helper()
		a := s.call(who, "POST", "/v1/jobs", fmt.Sprintf(`{"name": "x", "image": "busybox", "user": %q}`, user))
		step := s.call(who, "POST", "/v1/pipelines", fmt.Sprintf(
			`{"kind": "pipeline", "name": "x", "jobs": {"a": {"image": "busybox", "user": %q}}}`, user))
		switch {
		case a.status == http.StatusCreated && step.status == http.StatusCreated:
			return false
		case a.status == http.StatusUnprocessableEntity && strings.Contains(a.body, `"user"`) &&
			step.status == http.StatusUnprocessableEntity && strings.Contains(step.body, "user"):
			return true
		}
		t.Fatalf("user %s: %d %s, in a step %d %s", user, a.status, a.body, step.status, step.body)
		return false
	}
	for user, want := range map[string]bool{
		"": false, "tenant": false, "image": true, "0": true, "1000:1000": true, "2000000000:0": true, "root": true,
	} {
		if got := refused("alice", user); got != want {
			t.Errorf("user %q is refused: %v", user, got)
		}
	}
	for _, user := range []string{"image", "0"} {
		a := s.call("alice", "POST", "/v1/jobs", fmt.Sprintf(`{"name": "x", "image": "busybox", "user": %q}`, user))
		if !strings.Contains(a.body, "berth quota set a --any-user=true") {
			t.Errorf("user %s: no command that works for the tenant: %s", user, a.body)
		}
	}
	// The nearest setting decides, also for the tenants below.
	if a := s.call("admin", "PUT", "/v1/quotas/a", `{"any_user": true}`); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if refused("alice", "image") || refused("alice", "1000:1000") || !refused("bob", "image") {
		t.Error("any_user of one tenant allows every user to this tenant alone")
	}
	for parent, want := range map[string]bool{"a": false, "b": true} {
		if a := s.call("admin", "PATCH", "/v1/tenants/b", fmt.Sprintf(`{"parent": %q}`, strings.Trim(parent,
			"b"))); a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if got := refused("bob", "image"); got != want {
			t.Errorf("below %s: refused %v", parent, got)
		}
	}
	if a := s.call("admin", "PUT", "/v1/quotas/b", `{"any_user": false}`); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a := s.call("admin", "PATCH", "/v1/tenants/b", `{"parent": "a"}`); a.status != http.StatusOK || !refused("bob",
		"image") {
		t.Errorf("a setting of the tenant itself counts before the one above: %d %s", a.status, a.body)
	}
}
