package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/api"
	"berth/db/dbtest"
	"berth/spec"
	"berth/wire"
)

func TestReplicasShareATenantsRateOfSubmits(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	replicas := []*site{newSiteAt(t, url, nil), newSiteAt(t, url, nil)}
	rate := 8.0 // and 320 submits: on the slowest machine they are more
	if err := replicas[0].db.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: "a", SubmitRPS: &rate}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for _, s := range replicas {
		for range 4 {
			wg.Go(func() {
				for range 40 {
					a := s.call("alice", "POST", "/v1/jobs", small)
					mu.Lock()
					statuses[a.status]++
					mu.Unlock()
					if a.status == http.StatusCreated {
						continue
					}
					if after, err := strconv.Atoi(a.header.Get("Retry-After")); a.problem.Code != "rate_limited" || err != nil || after < 1 || !strings.Contains(a.problem.Detail, "tenant a") {
						t.Errorf("%d, Retry-After %q: %s", a.status, a.header.Get("Retry-After"), a.body)
					}
				}
			})
		}
	}
	wg.Wait()
	most := 2*rate + rate*time.Since(began).Seconds() + 1
	if n := float64(statuses[http.StatusCreated]); n > most || n < 2*rate || len(statuses) != 2 {
		t.Errorf("320 submits of a tenant that may make %g a second, two seconds' worth of them at once: %v, want at most %g of 201", rate, statuses, most)
	}
	for _, s := range replicas {
		if a := s.call("bob", "POST", "/v1/jobs", small); a.status != http.StatusCreated {
			t.Errorf("another tenant: %d %s", a.status, a.body)
		}
	}
}

func TestARefusedSubmitCostsNoQueryAndNoBody(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *api.Deps) { d.SubmitRate = 0.001 })
	if a := s.call("alice", "POST", "/v1/jobs", small); a.status != http.StatusCreated {
		t.Fatalf("the first: %d %s", a.status, a.body)
	}
	before, began := s.db.Pool().Stat().AcquireCount(), time.Now()
	for range 1000 {
		if a := s.call("alice", "POST", "/v1/jobs", small); a.status != http.StatusTooManyRequests {
			t.Fatalf("beyond the rate: %d %s", a.status, a.body)
		}
	}
	// The token and the quotas are looked up every second or so, not for every call.
	most := max(250, 5*int64(time.Since(began).Seconds()))
	if n := s.db.Pool().Stat().AcquireCount() - before; n > min(most, 900) {
		t.Errorf("1000 refused submits took %d connections in %s, want at most one for four, or five a second", n, time.Since(began))
	}
	// 400 at once, and 200 a second.
	if took := time.Since(began); took < 2500*time.Millisecond {
		t.Errorf("a client that does not wait had 1000 refusals in %s", took)
	}
	head := "POST /v1/jobs HTTP/1.1\r\nContent-Length: 1000\r\nConnection: close\r\nAuthorization: Bearer " + s.tokens["alice"]
	if code, _ := status(t, s.half(head, "")); code != http.StatusTooManyRequests {
		t.Errorf("without its body: %d", code)
	}
	for _, path := range []string{"/v1/pipelines", "/v1/jobs/" + string(berth.NewJobID(time.Now())) + "/retry"} {
		if a := s.call("alice", "POST", path, "{}"); a.status != http.StatusTooManyRequests {
			t.Errorf("POST %s: %d %s", path, a.status, a.body)
		}
	}
	if a := s.call("alice", "GET", "/v1/jobs", ""); a.status != http.StatusOK {
		t.Errorf("other calls: %d %s", a.status, a.body)
	}
}

func TestATenantAboveLimitsSubmitsToo(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.below("org", "a", "b")
	rate := 0.001
	if err := s.db.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: "org", SubmitRPS: &rate}); err != nil {
		t.Fatal(err)
	}
	if a := s.call("alice", "POST", "/v1/jobs", small); a.status != http.StatusCreated {
		t.Fatalf("the first: %d %s", a.status, a.body)
	}
	if a := s.call("bob", "POST", "/v1/jobs", small); a.status != http.StatusTooManyRequests || !strings.Contains(a.problem.Detail, "org") || a.header.Get("Retry-After") != "60" {
		t.Errorf("a sibling's after that: %d %v %s", a.status, a.header, a.body)
	}
}

// below puts tenants below a new one.
func (s *site) below(parent berth.TenantID, tenants ...berth.TenantID) {
	s.t.Helper()
	if err := s.db.Tenants.Create(s.t.Context(), spec.NewTenant{ID: parent}); err != nil {
		s.t.Fatal(err)
	}
	for _, id := range tenants {
		if err := s.db.Tenants.Update(s.t.Context(), id, spec.TenantPatch{Parent: &parent}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// A client of the version before sends a whole quota without the settings that it
// does not know.
func TestAnOlderClientLiftsNoSettingThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.below("org", "a")
	want := func(after, body, want string) {
		t.Helper()
		if a := s.call("admin", "PUT", "/v1/quotas/org", body); a.status != http.StatusOK {
			t.Fatalf("%s: %d %s", after, a.status, a.body)
		}
		q, err := s.as("admin").Quota(t.Context(), "org")
		if err != nil {
			t.Fatal(err)
		}
		q.Tenant, q.Version, q.Use, q.Stored = "", 0, nil, nil
		if got, err := json.Marshal(q); err != nil || string(got) != want {
			t.Errorf("%s: the quota is %s, want %s (%v)", after, got, want, err)
		}
	}
	want("all are named", `{"max_queued": 5, "submit_rps": 2, "max_priority": 400, "storage": {"secrets": 3}}`, `{"tenant":"","borrow":"any","max_queued":5,"submit_rps":2,"max_priority":400,"storage":{"secrets":3}}`)
	want("the older client names its own", `{"max_running": 7}`, `{"tenant":"","borrow":"any","max_running":7,"submit_rps":2,"max_priority":400,"storage":{"secrets":3}}`)
	want("one is lifted", `{"submit_rps": null, "storage": null}`, `{"tenant":"","borrow":"any","max_priority":400}`)
	most := spec.Priority(300)
	if q, err := s.as("admin").SetQuota(t.Context(), spec.Quota{Tenant: "org", MaxPriority: &most}); err != nil || q.MaxPriority == nil || *q.MaxPriority != 300 {
		t.Errorf("quota %+v, %v", q, err)
	}
	if q, err := s.as("admin").SetQuota(t.Context(), spec.Quota{Tenant: "org"}); err != nil || q.MaxPriority != nil {
		t.Errorf("this version's client lifts what it does not set: %+v, %v", q, err)
	}
}

func TestANewTenantHasNoLimitOfADeletedTenantOfItsName(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	here, elsewhere := newSiteAt(t, url, nil), newSiteAt(t, url, nil)
	token := func() wire.Token {
		t.Helper()
		made, err := here.db.Tokens.Create(t.Context(), spec.NewToken{Name: "carol", Tenant: "c", Role: spec.RoleUser},
			"operator:test")
		if err != nil {
			t.Fatal(err)
		}
		here.tokens["carol"] = made.Secret
		return made
	}
	create := func(s *site) {
		t.Helper()
		if a := s.call("admin", "POST", "/v1/tenants", `{"id": "c"}`); a.status != http.StatusCreated {
			t.Fatalf("the tenant: %d %s", a.status, a.body)
		}
	}
	create(here)
	if a := here.call("admin", "PUT", "/v1/quotas/c", `{"max_priority": 100}`); a.status != http.StatusOK {
		t.Fatalf("its quota: %d %s", a.status, a.body)
	}
	old := token()
	if a := here.call("carol", "POST", "/v1/jobs", small); a.status != http.StatusUnprocessableEntity {
		t.Fatalf("above the limit: %d %s", a.status, a.body)
	}
	if err := here.db.Tokens.Revoke(t.Context(), old.ID, "operator:test"); err != nil {
		t.Fatal(err)
	}
	if a := here.call("admin", "DELETE", "/v1/tenants/c", ""); a.status != http.StatusNoContent {
		t.Fatalf("the deletion: %d %s", a.status, a.body)
	}
	create(elsewhere)
	token()
	if a := here.call("carol", "POST", "/v1/jobs", small); a.status != http.StatusCreated {
		t.Errorf("a submit of the new tenant, which has no quota: %d %s", a.status, a.body)
	}
}

func TestNobodySubmitsAboveTheGreatestPriorityOfTheTenant(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	early := s.submit("alice", nil) // of priority 500
	s.below("org", "a")
	most := spec.Priority(400)
	q, err := s.as("admin").SetQuota(t.Context(), spec.Quota{Tenant: "org", MaxPriority: &most})
	if err != nil || q.MaxPriority == nil || *q.MaxPriority != 400 {
		t.Fatalf("quota %+v, %v", q, err)
	}
	job := func(priority int) string {
		return fmt.Sprintf(`{"name": "x", "image": "y", "priority": %d}`, priority)
	}
	for _, c := range []struct{ name, method, path, body, field string }{
		{"a job", "POST", "/v1/jobs", job(401), "priority"},
		{"a job that names none", "POST", "/v1/jobs", small, "priority"},
		{"a step", "POST", "/v1/pipelines", `{"kind": "pipeline", "name": "p", "jobs": {"fit": {"image": "y", "priority": "high"}}}`, "jobs.fit.priority"},
		{"a schedule", "POST", "/v1/schedules", `{"name": "s", "cron": "0 3 * * *", "job": ` + job(800) + `}`, "job.priority"},
		{"a plan", "POST", "/v1/plans", job(500), "priority"},
		{"a change", "PATCH", "/v1/jobs/" + string(early.ID), `{"priority": 900}`, "priority"},
	} {
		a := s.call("alice", c.method, c.path, c.body)
		if a.status != http.StatusUnprocessableEntity || len(a.problem.Errors) != 1 || a.problem.Errors[0].Field != c.field ||
			!strings.Contains(a.problem.Errors[0].Detail, " is 400") || !strings.Contains(a.problem.Errors[0].Detail, "org") {
			t.Errorf("%s: %d %s", c.name, a.status, a.body)
		}
	}
	if a := s.call("alice", "POST", "/v1/jobs", job(400)); a.status != http.StatusCreated {
		t.Errorf("at the limit: %d %s", a.status, a.body)
	}
	if a := s.call("bob", "POST", "/v1/jobs", job(1000)); a.status != http.StatusCreated {
		t.Errorf("another tenant: %d %s", a.status, a.body)
	}
	if a := s.call("alice", "PATCH", "/v1/jobs/"+string(early.ID), `{"labels": {"a": "b"}}`); a.status != http.StatusOK || !strings.Contains(a.body, `"priority":"normal"`) {
		t.Errorf("a job from before keeps its priority: %d %s", a.status, a.body)
	}
	if a := s.call("admin", "PATCH", "/v1/jobs/"+string(early.ID), `{"priority": 900}`); a.status != http.StatusOK {
		t.Errorf("an admin raises a job: %d %s", a.status, a.body)
	}
	if a := s.call("admin", "PUT", "/v1/quotas/org", `{"max_priority": 1001, "submit_rps": 0}`); a.status != http.StatusUnprocessableEntity || len(a.problem.Errors) != 2 {
		t.Errorf("settings out of range: %d %s", a.status, a.body)
	}
}
