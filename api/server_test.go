package api_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/api"
	"berth/api/client"
	"berth/db/dbtest"
	"berth/spec"
	"berth/wire"
)

func TestADatabaseThatIsDownIs503(t *testing.T) {
	t.Parallel()
	proxy := breaking(t, dbtest.URL(t))
	s := newSiteAt(t, proxy.url, nil)
	job := s.submit("alice", nil)
	proxy.close()
	for _, path := range []string{"/v1/jobs", "/v1/jobs/" + string(job.ID), "/v1/machines"} {
		a := s.call("alice", "GET", path, "")
		if a.status != http.StatusServiceUnavailable || a.problem.Code != "unavailable" || a.header.Get("Retry-After") == "" {
			t.Errorf("GET %s: %d %s", path, a.status, a.body)
		}
	}
	if a := s.call("alice", "POST", "/v1/jobs", small); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
		t.Errorf("submit: %d %s", a.status, a.body)
	}
	if a := s.call("", "GET", "/healthz", ""); a.status != http.StatusOK {
		t.Errorf("healthz: %d", a.status)
	}
}

// ready calls /readyz until it answers 200, and returns that body. A database that takes longer than 3 seconds, as on a
// busy machine, is not ready.
func (s *site) ready(method string) (body string) {
	s.t.Helper()
	eventually(s.t, "readiness", func() bool {
		var status int
		status, body = s.probe(method)
		return status == http.StatusOK
	})
	return body
}

// probe calls /readyz, whose negative answers are no problems.
func (s *site) probe(method string) (status int, body string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+"/readyz", nil)
	if err != nil {
		s.t.Error(err)
		return 0, ""
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Error(err)
		return 0, ""
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Error(err)
	}
	return res.StatusCode, string(text)
}

func TestReadinessNamesEachDependency(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	s := newSite(t, func(d *api.Deps) {
		d.Checks = []api.Check{{Name: "temporal", Run: func(context.Context) error {
			if down.Load() {
				return errors.New("connection refused at a secret address")
			}
			return nil
		}}}
	})
	if body := s.ready("GET"); !strings.Contains(body, `"database":"ok"`) || !strings.Contains(body, `"temporal":"ok"`) {
		t.Errorf("ready: %s", body)
	}
	down.Store(true)
	eventually(t, "the failure shows", func() bool { // an answer is given again for a moment
		res, err := http.Get(s.url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode == http.StatusOK {
			return false
		}
		if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || strings.Contains(string(text), "secret address") {
			t.Errorf("not ready: %d %s", res.StatusCode, text)
		}
		return true
	})
}

func TestAPanicIsOneProblemAndIsLogged(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.server.Panic("/panic")
	a := s.call("", "GET", "/panic", "")
	if a.status != http.StatusInternalServerError || a.problem.Code != "internal" || strings.Contains(a.body, "a bug") {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if !strings.Contains(s.log.String(), "a bug") {
		t.Error("the log does not say why")
	}
}

func TestCallersAreLimitedOneByOne(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *api.Deps) { d.Rate, d.Burst = 0.001, 3 })
	for range 3 {
		if a := s.call("alice", "GET", "/v1/jobs", ""); a.status != http.StatusOK {
			t.Fatalf("within the limit: %d %s", a.status, a.body)
		}
	}
	if a := s.call("alice", "GET", "/v1/jobs", ""); a.status != http.StatusTooManyRequests || a.problem.Code != "rate_limited" || a.header.Get("Retry-After") == "" {
		t.Errorf("above the limit: %d %s", a.status, a.body)
	}
	if a := s.call("bob", "GET", "/v1/jobs", ""); a.status != http.StatusOK {
		t.Errorf("another token: %d %s", a.status, a.body)
	}
}

func TestGuessingTokensIsStopped(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	pass := s.server.StopRates()
	s.tokens["guess"] = "berth_0123456789ab_" + strings.Repeat("f", 64)
	guesses := func(n int) map[int]int {
		statuses := map[int]int{}
		for range n {
			status := http.StatusServiceUnavailable
			eventually(t, "an answer to a guess", func() bool { // a slow database judges none, and charges none
				status = s.call("guess", "GET", "/v1/jobs", "").status
				return status != http.StatusServiceUnavailable
			})
			statuses[status]++
		}
		return statuses
	}
	want := map[int]int{http.StatusUnauthorized: 100, http.StatusTooManyRequests: 200}
	if got := guesses(300); !maps.Equal(got, want) {
		t.Errorf("300 guesses at once: %v, want %v", got, want)
	}
	pass(time.Second)
	want = map[int]int{http.StatusUnauthorized: 10, http.StatusTooManyRequests: 20}
	if got := guesses(30); !maps.Equal(got, want) {
		t.Errorf("30 guesses a second later: %v, want %v", got, want)
	}
}

func TestBodiesOfAnotherKindAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	if a := s.call("alice", "POST", "/v1/jobs", small, "Content-Type", "application/x-yaml"); a.status != http.StatusUnsupportedMediaType || a.problem.Code != "unsupported_media_type" {
		t.Errorf("YAML: %d %s", a.status, a.body)
	}
	if a := s.call("alice", "POST", "/v1/jobs", small, "Content-Type", "application/json; charset=utf-8"); a.status != http.StatusCreated {
		t.Errorf("JSON with a charset: %d %s", a.status, a.body)
	}
}

func TestPagesComeWithoutATokenAndLoadNothingFromAfar(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *api.Deps) { d.Version = "<b>1" })
	for path, want := range map[string]string{"/": "&lt;b&gt;1", "/docs/": "/openapi.json", "/healthz": "ok"} {
		a := s.call("", "GET", path, "")
		if a.status != http.StatusOK || !strings.Contains(a.body, want) || strings.Contains(a.body, `src="http`) || strings.Contains(a.body, `href="http`) {
			t.Errorf("GET %s: %d %s", path, a.status, clipped(a.body))
		}
		if a.header.Get("X-Frame-Options") != "DENY" || a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("GET %s: headers %v", path, a.header)
		}
	}
	for _, path := range []string{"/", "/healthz"} {
		if a := s.call("", "HEAD", path, ""); a.status != http.StatusOK || a.body != "" {
			t.Errorf("HEAD %s: %d %q", path, a.status, a.body)
		}
	}
	if body := s.ready("HEAD"); body != "" {
		t.Errorf("HEAD /readyz: %q", body)
	}
	if a := s.call("", "GET", "/docs/swagger-ui-bundle.js", ""); a.status != http.StatusOK || len(a.body) < 100_000 {
		t.Errorf("the documentation's script: %d, %d bytes", a.status, len(a.body))
	}
}

func TestMetricsTellOfCallsJobsAndMachines(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 2)
	s.submit("alice", nil)
	s.call("alice", "GET", "/v1/jobs", "")
	s.metricsWith(
		`berth_jobs{status="submitted"} 1`, `berth_jobs{status="running"} 0`, `berth_machines{state="ready"} 1`,
		`berth_cpu_cores{kind="total"} 8`, `berth_cpu_cores{kind="reserved"} 0`, `berth_memory_bytes{kind="total"} 8.589934592e+09`,
		`berth_cpu_cores{kind="used"} 0`, `berth_memory_bytes{kind="used"} 0`,
		`berth_gpus{kind="total",model="A100"} 2`, `berth_gpus{kind="unhealthy",model="A100"} 0`,
		`berth_http_request_seconds_count{method="GET",route="/v1/jobs",status="200"} 1`,
		`berth_machines{state="drained"} 0`, `berth_build_info{go_version="go`, `version="test"`,
		`berth_attempts_ended_total{next="retrying",reason="machine_lost"} 0`,
		`berth_lost_gpu_seconds_total{reason="machine_lost"} 0`,
		`berth_tenant_jobs{state="waiting",tenant="a"} 1`, `berth_tenant_jobs{state="running",tenant="a"} 0`,
		`berth_tenant_oldest_waiting_job_seconds{tenant="a"} `, `berth_oldest_waiting_job_seconds `,
		`berth_leader_present 0`, `berth_webhooks_waiting 0`, `berth_webhooks_overdue_seconds 0`,
		`berth_dependency_up{dependency="postgres"} 1`,
		`berth_machines_silent 0`, `berth_machine_renewals_overdue 0`, `berth_waiting_jobs_age_seconds `,
		`berth_waiting_jobs{reason="ready"} 0`, `berth_waiting_jobs{reason="quota_budget"} 0`,
	)
	if a := s.call("", "GET", "/metrics", "", "X-Forwarded-For", "192.0.2.1"); a.status != http.StatusUnauthorized {
		t.Errorf("metrics from elsewhere: %d", a.status)
	}
	if a := s.call("alice", "GET", "/metrics", "", "X-Forwarded-For", "192.0.2.1"); a.status != http.StatusForbidden {
		t.Errorf("metrics for a user elsewhere: %d", a.status)
	}
	if a := s.call("admin", "GET", "/metrics", "", "X-Forwarded-For", "192.0.2.1"); a.status != http.StatusOK {
		t.Errorf("metrics for an admin elsewhere: %d", a.status)
	}
	token, err := s.as("admin").CreateToken(t.Context(), spec.NewToken{Name: "prometheus", Role: spec.RoleMetrics})
	if err != nil || token.Role != spec.RoleMetrics {
		t.Fatalf("token %+v: %v", token, err)
	}
	s.tokens["prometheus"] = token.Secret
	if a := s.call("prometheus", "GET", "/metrics", "", "X-Forwarded-For", "192.0.2.1"); a.status != http.StatusOK {
		t.Errorf("metrics for a scraper elsewhere: %d", a.status)
	}
	for _, path := range []string{"/v1/jobs", "/v1/machines", "/v1/tokens"} {
		if a := s.call("prometheus", "GET", path, ""); a.status != http.StatusForbidden {
			t.Errorf("%s for a scraper: %d", path, a.status)
		}
	}
}

func TestOperatorsHandleMachines(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 2)
	s.machine("m2", 8, 8192, 0)
	job := s.submit("alice", nil)
	s.run(job.ID, "m1")
	c := s.as("admin")
	list, err := c.Machines(t.Context())
	if err != nil || len(list.Items) != 2 || list.Items[0].ID != "m1" || len(list.Items[0].GPUs) != 2 {
		t.Errorf("machines %+v, %v", list, err)
	}
	deadline := time.Now().Add(time.Hour)
	m, err := c.Drain(t.Context(), "m1", wire.DrainRequest{Reason: "new disk", Deadline: &deadline})
	if err != nil || m.State != berth.MachineDraining || m.Reason != "new disk" || len(m.Jobs) != 1 {
		t.Errorf("drain: %+v, %v", m, err)
	}
	if m, err := c.Undrain(t.Context(), "m1"); err != nil || m.State != berth.MachineReady {
		t.Errorf("undrain: %+v, %v", m, err)
	}
	if m, err := c.Drain(t.Context(), "m2", wire.DrainRequest{}); err != nil || m.State != wire.MachineDrained ||
		m.Reason != "drained by admin" || m.DrainBy != "operator:admin" {
		t.Errorf("drain of an empty machine: %+v, %v", m, err)
	}
	// Users read the history too.
	events, err := s.as("alice").MachineEvents(t.Context(), "m1", 0)
	n := len(events.Items)
	if err != nil || n < 2 || events.Items[n-2].State != "draining" || events.Items[n-2].Actor != "operator:admin" ||
		events.Items[n-2].Deadline == nil || events.Items[n-1].State != "ready" ||
		events.Items[n-1].Actor != "operator:admin" {
		t.Errorf("history %+v, %v", events, err)
	}
	if rest, err := c.MachineEvents(t.Context(), "m1", events.Items[n-2].Seq); err != nil || len(rest.Items) != 1 {
		t.Errorf("after the last but one: %+v, %v", rest, err)
	}
	if a := s.call("alice", "GET", "/v1/machines/m1/events?limit=1", ""); !strings.Contains(a.body, `"next_cursor"`) {
		t.Errorf("a page of one event: %s", a.body)
	}
	if a := s.call("alice", "GET", "/v1/machines?label=rack", ""); a.status != http.StatusBadRequest ||
		!strings.Contains(a.body, "key=value") {
		t.Errorf("a wrong label: %d %s", a.status, a.body)
	}
	s.exec(`UPDATE machines SET pool = 'spot', labels = '{"rack": "r7"}' WHERE id = 'm2'`)
	if found, err := c.FindMachines(t.Context(), client.MachineQuery{Pool: "spot",
		Labels: []string{"rack=r7"}}); err != nil ||
		len(found.Items) != 1 || found.Items[0].ID != "m2" {
		t.Errorf("machines of pool and label: %+v, %v", found, err)
	}
	if _, err := c.ConfirmDead(t.Context(), "m1"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("confirm-dead of a live machine: %v", err)
	}
	if err := c.RemoveMachine(t.Context(), "m1"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("remove a machine in use: %v", err)
	}
	s.exec(`UPDATE machine_leases SET until = now() - interval '1 second'`)
	dead, err := c.ConfirmDead(t.Context(), "m1")
	if err != nil || len(dead.Jobs) != 1 || dead.Jobs[0] != job.ID || dead.Machine.State != berth.MachineLost {
		t.Errorf("confirm-dead: %+v, %v", dead, err)
	}
	if err := c.RemoveMachine(t.Context(), "m1"); err != nil {
		t.Errorf("remove: %v", err)
	}
	if list, err := c.Machines(t.Context()); err != nil || len(list.Items) != 1 {
		t.Errorf("after removal: %+v, %v", list, err)
	}
	if _, err := c.Drain(t.Context(), "m1", wire.DrainRequest{}); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("drain of a retired machine: %v", err)
	}
	if _, err := c.Machine(t.Context(), "no/such"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("a name that is none: %v", err)
	}
}

func TestAdminsHandleTokens(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	c := s.as("admin")
	made, err := c.CreateToken(t.Context(), spec.NewToken{Name: "ci", Tenant: "team-x"})
	if err != nil || made.Secret == "" || made.Role != spec.RoleUser {
		t.Fatalf("create: %+v, %v", made, err)
	}
	s.tokens["ci"] = made.Secret
	if job := s.submit("ci", nil); job.Tenant != "team-x" {
		t.Errorf("the token submits for %s", job.Tenant)
	}
	list, err := c.Tokens(t.Context())
	if err != nil || len(list.Items) != 5 {
		t.Errorf("tokens %+v, %v", list, err)
	}
	for _, token := range list.Items {
		if token.Secret != "" {
			t.Error("the list tells secrets")
		}
	}
	if err := c.RevokeToken(t.Context(), made.ID); err != nil {
		t.Error(err)
	}
	if a := s.call("ci", "GET", "/v1/jobs", ""); a.status != http.StatusUnauthorized {
		t.Errorf("the revoked token still opens: %d", a.status)
	}
	if err := c.RevokeToken(t.Context(), "nothing"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("revoke a token that is none: %v", err)
	}
	if _, err := c.CreateToken(t.Context(), spec.NewToken{Name: "x", Role: spec.RoleMachine}); !berth.IsSlug(err, berth.SlugInvalidSpec) {
		t.Errorf("a machine's token by hand: %v", err)
	}
	join, err := c.CreateJoinToken(t.Context(), spec.NewJoinToken{Labels: map[string]string{"zone": "a"}})
	if err != nil || join.Secret == "" || time.Until(join.ExpiresAt) > 11*time.Minute {
		t.Errorf("join token %+v, %v", join, err)
	}
	if err := c.RevokeJoinToken(t.Context(), join.ID); err != nil {
		t.Error(err)
	}
	joins, err := c.JoinTokens(t.Context())
	if err != nil || len(joins.Items) != 1 || joins.Items[0].ExpiresAt.After(time.Now()) {
		t.Errorf("join tokens %+v, %v", joins, err)
	}
	tenants, err := c.Tenants(t.Context())
	if err != nil || len(tenants.Items) != 4 {
		t.Errorf("tenants %+v, %v", tenants, err)
	}
	if strings.Contains(s.log.String(), made.Secret) || strings.Contains(s.log.String(), join.Secret) {
		t.Error("the log tells secrets")
	}
}
