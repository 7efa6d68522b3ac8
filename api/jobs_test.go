package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

const small = `{"name": "digits", "image": "busybox"}`

func TestFiftyClientsWithOneKeyGetOneJob(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	var mu sync.Mutex
	ids, statuses := map[string]int{}, map[int]int{}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			// Blanks and order make no other body.
			body := small
			if i%2 == 1 {
				body = `{ "image": "busybox", "members": 1, "name": "digits" }`
			}
			a := s.call("alice", "POST", "/v1/jobs", body, "Idempotency-Key", "k1")
			mu.Lock()
			defer mu.Unlock()
			statuses[a.status]++
			ids[field(t, a.body, "id")]++
		})
	}
	wg.Wait()
	if len(ids) != 1 || statuses[http.StatusCreated] != 1 || statuses[http.StatusOK] != 49 {
		t.Errorf("got jobs %v with statuses %v; want one job, one 201 and 49 200", ids, statuses)
	}
	a := s.call("alice", "POST", "/v1/jobs", `{"name": "letters", "image": "busybox"}`, "Idempotency-Key", "k1")
	if a.status != http.StatusUnprocessableEntity || a.problem.Code != berth.SlugIdempotencyMismatch {
		t.Errorf("another body: %d %s", a.status, a.body)
	}
	if b := s.call("bob", "POST", "/v1/jobs", small, "Idempotency-Key", "k1"); b.status != http.StatusCreated {
		t.Errorf("the key of another tenant: %d %s", b.status, b.body)
	}
}

func TestBadInputsAreRefusedClearly(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	job := s.submit("alice", nil)
	env := make([]string, 1100)
	for i := range env {
		env[i] = fmt.Sprintf(`"V%d": "x"`, i)
	}
	with := func(fields string) string { return `{"name": "x", "image": "y", ` + fields + `}` }
	rows := []struct {
		name, method, path, body string
		status                   int
		code                     string
		field                    string // one that must be named
	}{
		{"no JSON", "POST", "/v1/jobs", `{"name": `, 400, "invalid", ""},
		{"NaN", "POST", "/v1/jobs", with(`"resources": {"gpus": NaN}`), 400, "invalid", ""},
		{"two values", "POST", "/v1/jobs", small + small, 400, "invalid", ""},
		{"empty", "POST", "/v1/jobs", ` `, 400, "invalid", ""},
		{"deep", "POST", "/v1/jobs", strings.Repeat("[", 100_000), 400, "invalid", ""},
		{"deep and whole", "POST", "/v1/jobs", strings.Repeat(`{"a":`, 30_000) + "1" + strings.Repeat("}", 30_000), 400, "invalid", ""},
		{"deep and long", "POST", "/v1/jobs", strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000), 422, "invalid_spec", ""},
		{"a list", "POST", "/v1/jobs", `[]`, 422, "invalid_spec", ""},
		{"a number", "POST", "/v1/jobs", `1`, 422, "invalid_spec", ""},
		{"null", "POST", "/v1/jobs", `null`, 422, "invalid_spec", "name"},
		{"unknown field", "POST", "/v1/jobs", with(`"privileged": true`), 422, "invalid_spec", "privileged"},
		{"tenant in the body", "POST", "/v1/jobs", with(`"tenant_id": "b"`), 422, "invalid_spec", "tenant_id"},
		{"nested unknown field", "POST", "/v1/jobs", with(`"resources": {"gpu": 1}`), 422, "invalid_spec", "resources.gpu"},
		{"unknown in a list", "POST", "/v1/jobs", with(`"retry": {"rules": [{"exit_codes": "1", "action": "fail"}, {"exit_code": 1}]}`), 422, "invalid_spec", "retry.rules[1].exit_code"},
		{"key in capitals", "POST", "/v1/jobs", `{"Name": "x", "image": "y"}`, 422, "invalid_spec", "Name"},
		{"key twice", "POST", "/v1/jobs", with(`"name": "z"`), 422, "invalid_spec", "name"},
		{"wrong kind", "POST", "/v1/jobs", with(`"command": "echo hi"`), 422, "invalid_spec", "command"},
		{"number for text", "POST", "/v1/jobs", with(`"env": {"A": 1}`), 422, "invalid_spec", "env.A"},
		{"null in a list", "POST", "/v1/jobs", with(`"command": ["a", null]`), 422, "invalid_spec", "command[1]"},
		{"null in a map", "POST", "/v1/jobs", with(`"env": {"A": null}`), 422, "invalid_spec", "env.A"},
		{"1e999", "POST", "/v1/jobs", with(`"placement": {"max_price_per_hour": 1e999}`), 422, "invalid_spec", "placement.max_price_per_hour"},
		{"1e999 cpus", "POST", "/v1/jobs", with(`"resources": {"cpus": 1e999}`), 422, "invalid_spec", "resources.cpus"},
		{"1e999 members", "POST", "/v1/jobs", with(`"members": 1e999}`), 400, "invalid", ""},
		{"huge members", "POST", "/v1/jobs", with(`"members": 9223372036854775808`), 422, "invalid_spec", "members"},
		{"half a member", "POST", "/v1/jobs", with(`"members": 1.5`), 422, "invalid_spec", "members"},
		{"negative gpus", "POST", "/v1/jobs", with(`"resources": {"gpus": -1}`), 422, "invalid_spec", "resources.gpus"},
		{"gpus 2^63", "POST", "/v1/jobs", with(`"resources": {"gpus": 9223372036854775808}`), 422, "invalid_spec", "resources.gpus"},
		{"one and a half gpus", "POST", "/v1/jobs", with(`"resources": {"gpus": 1.5}`), 422, "invalid_spec", "resources.gpus"},
		{"gpus as text NaN", "POST", "/v1/jobs", with(`"resources": {"gpus": "NaN"}`), 422, "invalid_spec", "resources.gpus"},
		{"memory overflow", "POST", "/v1/jobs", with(`"resources": {"memory": "99999999999999999999GiB"}`), 422, "invalid_spec", "resources.memory"},
		{"duration overflow", "POST", "/v1/jobs", with(`"time_limit": "9999999999999h"`), 422, "invalid_spec", "time_limit"},
		{"duration as number", "POST", "/v1/jobs", with(`"time_limit": 90`), 422, "invalid_spec", "time_limit"},
		{"negative duration", "POST", "/v1/jobs", with(`"time_limit": "-1s"`), 422, "invalid_spec", "time_limit"},
		{"priority", "POST", "/v1/jobs", with(`"priority": 1001`), 422, "invalid_spec", "priority"},
		{"NUL in env", "POST", "/v1/jobs", with(`"env": {"A": "a\u0000b"}`), 422, "invalid_spec", "env.A"},
		{"NUL in a label's key", "POST", "/v1/jobs", with(`"labels": {"a\u0000": "b"}`), 422, "invalid_spec", "labels.a\x00"},
		{"NUL in a list", "POST", "/v1/jobs", with(`"command": ["a", "b\u0000"]`), 422, "invalid_spec", "command[1]"},
		{"NUL in gpu_type", "POST", "/v1/jobs", with(`"resources": {"gpus": 1, "gpu_type": "a\u0000"}`), 422, "invalid_spec", "resources.gpu_type[0]"},
		{"HTML in the name", "POST", "/v1/jobs", `{"name": "<script>", "image": "y"}`, 422, "invalid_spec", "name"},
		{"reserved env", "POST", "/v1/jobs", with(`"env": {"NVIDIA_VISIBLE_DEVICES": "all"}`), 422, "invalid_spec", "env.NVIDIA_VISIBLE_DEVICES"},
		{"too many env", "POST", "/v1/jobs", with(`"env": {` + strings.Join(env, ",") + `}`), 422, "invalid_spec", "env"},
		{"broken CEL", "POST", "/v1/jobs", with(`"placement": {"constraint": "machine.nope == 1"}`), 422, "invalid_spec", "placement.constraint"},
		{"unbuilt field", "POST", "/v1/jobs", with(`"cache": true`), 422, "invalid_spec", "cache"},
		{"array of nothing", "POST", "/v1/jobs", with(`"array": {"parallel": 3}`), 422, "invalid_spec", "array.size"},
		{"heavy spec", "POST", "/v1/jobs", with(`"env": {` + heavyEnv() + `}`), 422, "invalid_spec", ""},
		{"1 MiB and more", "POST", "/v1/jobs", with(`"workdir": "` + strings.Repeat("x", 1<<20) + `"`), 413, "body_too_large", ""},
		{"10 MiB", "POST", "/v1/jobs", strings.Repeat(" ", 10<<20), 413, "body_too_large", ""},
		{"plan of nothing", "POST", "/v1/plans", `{}`, 422, "invalid_spec", "image"},

		{"empty patch", "PATCH", "/v1/jobs/" + string(job.ID), `{}`, 422, "invalid_spec", ""},
		{"patch of the image", "PATCH", "/v1/jobs/" + string(job.ID), `{"image": "z"}`, 422, "invalid_spec", "image"},
		{"patch of the status", "PATCH", "/v1/jobs/" + string(job.ID), `{"status": "succeeded"}`, 422, "invalid_spec", "status"},
		{"patch of a label's kind", "PATCH", "/v1/jobs/" + string(job.ID), `{"labels": {"a": 1}}`, 422, "invalid_spec", "labels.a"},

		{"bad cursor", "GET", "/v1/jobs?cursor=abc", "", 400, "invalid", ""},
		{"negative limit", "GET", "/v1/jobs?limit=-1", "", 422, "invalid", "limit"},
		{"limit of letters", "GET", "/v1/jobs?limit=many", "", 422, "invalid", "limit"},
		{"limit above all", "GET", "/v1/jobs?limit=1001", "", 422, "invalid", "limit"},
		{"bad status", "GET", "/v1/jobs?status=done", "", 400, "invalid", "status"},
		{"bad label", "GET", "/v1/jobs?label=x", "", 400, "invalid", "label"},
		{"bad since", "GET", "/v1/jobs?since=yesterday", "", 400, "invalid", "since"},
		{"bad parent", "GET", "/v1/jobs?parent=x", "", 400, "invalid", "parent"},
		{"NUL in a filter", "GET", "/v1/jobs?name=%00", "", 400, "invalid", "name"},
		{"NUL in a label filter", "GET", "/v1/jobs?label=a%3D%00", "", 400, "invalid", "label"},
		{"another tenant's list", "GET", "/v1/jobs?tenant=b", "", 403, "forbidden", ""},
		{"bad id", "GET", "/v1/jobs/%00", "", 404, "not_found", ""},
		{"id that is SQL", "GET", "/v1/jobs/'%20OR%201=1", "", 404, "not_found", ""},
		{"id that climbs", "GET", "/v1/jobs/..%2f..%2fmachines", "", 404, "not_found", ""},
		{"events after letters", "GET", "/v1/jobs/" + string(job.ID) + "/events?cursor=x", "", 400, "invalid", ""},
		{"events after a negative", "GET", "/v1/jobs/" + string(job.ID) + "/events?cursor=-1", "", 400, "invalid", ""},
		{"logs of attempt 9", "GET", "/v1/jobs/" + string(job.ID) + "/logs?attempt=9", "", 404, "not_found", ""},
		{"logs of member 9", "GET", "/v1/jobs/" + string(job.ID) + "/logs?member=9", "", 404, "not_found", ""},
		{"logs since ever", "GET", "/v1/jobs/" + string(job.ID) + "/logs?since=ever", "", 400, "invalid", "since"},
		{"logs of tail -1", "GET", "/v1/jobs/" + string(job.ID) + "/logs?tail=-1", "", 422, "invalid", "tail"},
		{"unknown route", "GET", "/v1/nothing", "", 404, "not_found", ""},
		{"unknown method", "PUT", "/v1/jobs", "{}", 405, "method_not_allowed", ""},
		{"unknown page", "GET", "/nothing", "", 404, "not_found", ""},
	}
	for _, row := range rows {
		a := s.call("alice", row.method, row.path, row.body)
		if a.status != row.status || a.problem.Code != row.code {
			t.Errorf("%s: got %d %s, want %d %s", row.name, a.status, clipped(a.body), row.status, row.code)
			continue
		}
		if row.field != "" && !names(a.problem.Errors, row.field) {
			t.Errorf("%s: %s does not name %q", row.name, clipped(a.body), row.field)
		}
	}
	if jobs, err := s.as("alice").Jobs(t.Context(), client.JobsQuery{}); err != nil || len(jobs.Items) != 1 {
		t.Errorf("%d jobs are stored, %v; want the first alone", len(jobs.Items), err)
	}
	if strings.Contains(s.log.String(), "level=ERROR") {
		t.Errorf("a caller's fault is logged as ours:\n%s", s.log)
	}
}

// A zero that was written is not taken for the default, as if nothing had been.
func TestAZeroWhereThereIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for _, c := range []struct{ field, job string }{
		{"members", `"members": 0`},
		{"lost_after", `"lost_after": "0s"`},
		{"retry.max_attempts", `"retry": {"max_attempts": 0}`},
		{"retry.backoff.initial", `"retry": {"backoff": {"initial": "0s"}}`},
		{"retry.backoff.factor", `"retry": {"backoff": {"factor": 0}}`},
		{"retry.backoff.max", `"retry": {"backoff": {"max": "0s"}}`},
		{"checkpoint.keep", `"checkpoint": {"path": "/c", "keep": 0}`},
		{"array.size", `"array": {"each": [{"A": "1"}], "size": 0}`},
		{"array.parallel", `"array": {"size": 2, "parallel": 0}`},
	} {
		job := `{"name": "x", "image": "y", ` + c.job + `}`
		for path, body := range map[string]struct{ at, text string }{
			"/v1/jobs":      {"", job},
			"/v1/plans":     {"", job},
			"/v1/pipelines": {"jobs.a.", `{"name": "p", "jobs": {"a": ` + job + `}}`},
			"/v1/schedules": {"job.", `{"name": "s", "cron": "@daily", "job": ` + job + `}`},
		} {
			a := s.call("alice", "POST", path, body.text)
			if a.status != http.StatusUnprocessableEntity || !names(a.problem.Errors, body.at+c.field) {
				t.Errorf("%s with %s: %d %s", path, c.job, a.status, clipped(a.body))
			}
		}
	}
	for _, c := range []struct{ path, field, body string }{
		{"/v1/schedules", "catch_up", `{"name": "s", "cron": "@daily", "catch_up": "0s", "job": {"image": "y"}}`},
		{"/v1/pipelines", "jobs.a.jobs.b.members", `{"name": "p", "jobs": {"a": {"jobs": {"b": {"name": "x", "image": "y", "members": 0}}}}}`},
	} {
		a := s.call("alice", "POST", c.path, c.body)
		if a.status != http.StatusUnprocessableEntity || !names(a.problem.Errors, c.field) {
			t.Errorf("%s with %s: %d %s", c.path, c.body, a.status, clipped(a.body))
		}
	}
	a := s.call("alice", "POST", "/v1/jobs", `{"name": "x", "image": "y", "members": null, "resources": {"gpus": 0}, "time_limit": "0s", "stop_grace": "0s"}`)
	if a.status != http.StatusCreated {
		t.Errorf("zeros that are values, and an absent one: %d %s", a.status, clipped(a.body))
	}
}

func heavyEnv() string {
	var b strings.Builder
	for i := range 20 {
		fmt.Fprintf(&b, `"V%d": %q,`, i, strings.Repeat("x", 20_000))
	}
	return b.String() + `"LAST": "x"`
}

func names(faults []berth.FieldError, field string) bool {
	for _, f := range faults {
		if f.Field == field && f.Detail != "" {
			return true
		}
	}
	return false
}

func clipped(s string) string { return s[:min(len(s), 500)] }

func TestEveryFaultIsToldAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.call("alice", "POST", "/v1/jobs", `{"name": "A B", "resources": {"gpus": 1.5, "memory": "lots", "gpu": 1}, "priority": "urgent",
		"retry": {"on_oom": "pray", "rules": [{"exit_codes": "0", "action": "fail"}]}, "checkpoint": {"path": "/etc"}}`)
	var got []string
	for _, f := range a.problem.Errors {
		got = append(got, f.Field)
	}
	want := []string{"resources.memory", "resources.gpu", "priority", "retry.rules[0].exit_codes", "name", "image", "resources.gpus", "retry.on_oom", "checkpoint.path"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s\n%s", diff, a.body)
	}
}

func TestImpossibleRequestsNameWhatIsLargest(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	big := `{"name": "x", "image": "y", "resources": {"cpus": 64, "memory": "1TiB", "gpus": 2}}`
	if a := s.call("alice", "POST", "/v1/jobs", big); a.status != http.StatusCreated {
		t.Errorf("before any machine has joined: %d %s", a.status, a.body)
	}
	s.machine("m1", 16, 65536, 1)
	s.machine("m2", 8, 131072, 0)
	a := s.call("alice", "POST", "/v1/jobs", big)
	if a.status != http.StatusUnprocessableEntity || a.problem.Code != berth.SlugUnsatisfiable {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	want := []berth.FieldError{
		{Field: "resources.gpus", Detail: "2 requested, but the largest machine has 1"},
		{Field: "resources.cpus", Detail: "64 requested, but the largest machine has 16"},
		{Field: "resources.memory", Detail: "1TiB requested, but the largest machine has 128GiB"},
	}
	if diff := cmp.Diff(want, a.problem.Errors); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	_, _, err := s.as("alice").Submit(t.Context(), spec.Job{Name: "x", Image: "y", Resources: spec.Resources{GPUs: 1000, GPUType: []string{"H100"}}}, "")
	if !berth.IsSlug(err, berth.SlugUnsatisfiable) || berth.CodeOf(err) != berth.CodeCapacity || !strings.Contains(err.Error(), "A100") {
		t.Errorf("a GPU type that is not there: %v", err)
	}
	s.submit("alice", func(j *spec.Job) { j.Resources.GPUs = 1000 })
	// Labels may come with the next machine: such a job waits.
	s.submit("alice", func(j *spec.Job) { j.Placement.Labels = map[string]string{"zone": "x"} })
	// A bigger machine counts from the moment it is there.
	s.machine("m3", 64, 1<<20, 2)
	if a := s.call("alice", "POST", "/v1/jobs", big); a.status != http.StatusCreated {
		t.Errorf("with m3: %d %s", a.status, a.body)
	}
}

func TestPlansAreNotStored(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 16, 65536, 1)
	p, err := s.as("viewer").Plan(t.Context(), spec.Job{Name: "x", Image: "y", Resources: spec.Resources{GPUs: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	if !p.StartsNow || p.EstimatedStart == nil || p.Fit.FitNow != 1 || len(p.Fit.Candidates) != 1 || p.Fit.Candidates[0] != "m1" || *p.Spec.Resources.CPUs != 1000 {
		t.Errorf("plan on a free machine: %+v", p)
	}
	p, err = s.as("alice").Plan(t.Context(), spec.Job{Name: "x", Image: "y", Resources: spec.Resources{GPUs: 2000}})
	if err != nil {
		t.Fatal(err)
	}
	if p.StartsNow || p.EstimatedStart != nil || p.Fit.FitEver != 0 || len(p.Fit.Lacking) != 1 || p.Fit.Lacking[0].Resource != "gpus" {
		t.Errorf("plan of what cannot be: %+v", p)
	}
	if jobs, err := s.as("admin").Jobs(t.Context(), client.JobsQuery{}); err != nil || len(jobs.Items) > 0 {
		t.Errorf("plans stored %d jobs, %v", len(jobs.Items), err)
	}
}

// However many plans are asked for, the rows are read twice a second.
func TestPlansShareAReading(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 16, 65536, 1)
	plan := func(cores int) {
		t.Helper()
		cpus := spec.MilliCPU(1000 * cores)
		p, err := s.as("alice").Plan(t.Context(), spec.Job{Name: "x", Image: "y", Resources: spec.Resources{CPUs: &cpus}})
		if err != nil || !p.StartsNow {
			t.Fatalf("a plan of %d cores: %+v, %v", cores, p, err)
		}
	}
	plan(1)
	before, began := s.db.Pool().Stat().AcquireCount(), time.Now()
	const plans = 200
	for i := range plans {
		plan(1 + i%16)
	}
	if n, most := s.db.Pool().Stat().AcquireCount()-before, 20+20*time.Since(began).Seconds(); float64(n) > most {
		t.Errorf("%d plans in %s took %d connections, want at most %.0f", plans, time.Since(began), n, most)
	}
}

func TestAPlanStartsNowPastJobsThatHaveNoUseForTheRoom(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 16, 65536, 1)
	elsewhere := s.submit("alice", func(j *spec.Job) { j.Placement.Labels = map[string]string{"zone": "b"} })
	s.exec(`UPDATE jobs SET state = 'queued', version = version + 1, actor = 'workflow' WHERE id = $1`, elsewhere.ID)
	p, err := s.as("alice").Plan(t.Context(), spec.Job{Name: "x", Image: "y"})
	if err != nil || !p.StartsNow || p.Ahead != 1 {
		t.Errorf("plan %+v, %v", p, err)
	}
}

func TestExplainTellsHowTheLastAttemptEnded(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 16, 65536, 0)
	job := s.submit("alice", nil)
	s.run(job.ID, "m1")
	s.exec(`UPDATE jobs SET state = 'retrying', version = version + 1, actor = 'workflow', eligible_at = now() + interval '1 hour',
		reason = '{"code": "image_unavailable", "message": "no such host", "hint": "Berth tries again"}' WHERE id = $1`, job.ID)
	e, err := s.as("alice").Explain(t.Context(), job.ID)
	if err != nil || !blocked(e, "not_eligible") || !strings.Contains(e.Summary, "last attempt: no such host") {
		t.Errorf("while it backs off: %+v, %v", e, err)
	}
	s.exec(`UPDATE jobs SET eligible_at = now(), version = version + 1, actor = 'workflow' WHERE id = $1`, job.ID)
	e, err = s.as("alice").Explain(t.Context(), job.ID)
	if err != nil || blocked(e, "not_eligible") || !strings.Contains(e.Summary, "last attempt: no such host") {
		t.Errorf("when it may start again: %+v, %v", e, err)
	}
}

func TestExplainListsEveryBlocker(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	lone := s.submit("alice", nil)
	e, err := s.as("alice").Explain(t.Context(), lone.ID)
	if err != nil || !blocked(e, "no_machines") || !blocked(e, "not_accepted") {
		t.Errorf("without machines: %+v, %v", e, err)
	}
	s.machine("m1", 1, 4096, 0)
	limited := s.submit("alice", func(j *spec.Job) { j.TimeLimit = spec.Duration(3600e9) })
	s.run(limited.ID, "m1")
	first := s.submit("alice", nil)
	second := s.submit("alice", nil)
	for _, id := range []berth.JobID{first.ID, second.ID} {
		s.exec(`UPDATE jobs SET state = 'queued', version = version + 1, actor = 'workflow' WHERE id = $1`, id)
	}
	if _, err := s.as("alice").Hold(t.Context(), second.ID); err != nil {
		t.Fatal(err)
	}
	e, err = s.as("alice").Explain(t.Context(), second.ID)
	if err != nil {
		t.Fatal(err)
	}
	if !blocked(e, "held") || !blocked(e, "no_room") || !blocked(e, "behind") || blocked(e, "unsatisfiable") || *e.Ahead != 1 || e.EstimatedStart != nil {
		t.Errorf("a held job on a full machine: %+v", e)
	}
	e, err = s.as("alice").Explain(t.Context(), first.ID)
	if err != nil || blocked(e, "held") || e.EstimatedStart == nil || *e.Ahead != 0 {
		t.Errorf("the next job: %+v, %v", e, err)
	}
	if len(e.Fit.Clauses) != 1 || e.Fit.Clauses[0].Name != "free_cpus" {
		t.Errorf("clauses %+v", e.Fit.Clauses)
	}
	e, err = s.as("alice").Explain(t.Context(), limited.ID)
	if err != nil || len(e.Blockers) != 1 || e.Blockers[0].Code != "egress_open" || !slices.Equal(e.Blockers[0].Machines, []berth.MachineID{"m1"}) {
		t.Errorf("a running job whose policy is not enforced: %+v, %v", e, err)
	}
	s.exec(`UPDATE machines SET labels = '{"berth.egress": "held"}'`)
	e, err = s.as("alice").Explain(t.Context(), limited.ID)
	if err != nil || len(e.Blockers) != 0 || !strings.Contains(e.Summary, "running") || !strings.Contains(e.Summary, "m1") {
		t.Errorf("a running job: %+v, %v", e, err)
	}
}

// A job that asks for a policy of its own is not placed on machines that cannot enforce it, such
// as those of older agents.
func TestAStrictPolicyWaitsForAMachineThatEnforcesIt(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 1, 4096, 0)
	little := spec.MilliCPU(10)
	for members, label := range map[int]string{1: spec.EgressLabel, 2: spec.EgressGangLabel} {
		job := s.submit("alice", func(j *spec.Job) {
			j.Network, j.Members = spec.Network{Egress: spec.EgressNone}, members
			j.Resources = spec.Resources{CPUs: &little}
		})
		s.exec(`UPDATE jobs SET state = 'queued', version = version + 1, actor = 'workflow' WHERE id = $1`, job.ID)
		clause := func() string {
			e, err := s.as("alice").Explain(t.Context(), job.ID)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range e.Fit.Clauses {
				if c.Name == "egress" {
					return c.Text
				}
			}
			return ""
		}
		if got := clause(); got != "1 cannot enforce the job's network.egress" {
			t.Errorf("%d members on an older agent: %q", members, got)
		}
		s.exec(`UPDATE machines SET labels = jsonb_build_object($1::text, 'held')`, label)
		if got := clause(); got != "" {
			t.Errorf("%d members on a machine that enforces it: %q", members, got)
		}
	}
}

func TestExplainNamesMachinesWhoseEngineIsSilent(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 1, 4096, 0)
	running, waiting := s.submit("alice", nil), s.submit("alice", nil)
	s.run(running.ID, "m1")
	s.exec(`UPDATE jobs SET state = 'queued', version = version + 1, actor = 'workflow' WHERE id = $1`, waiting.ID)
	s.exec(`UPDATE machines SET engine_silent_since = '2026-01-31 10:02:00Z', labels = '{"berth.egress": "held"}'`)
	e, err := s.as("alice").Explain(t.Context(), running.ID)
	want := wire.Blocker{
		Code: "engine_silent", Hint: "restart it: systemctl restart docker, or bring back the file server that a container waits for", Machines: []berth.MachineID{"m1"},
		Message: "the container engine of machine m1 has not answered since 2026-01-31T10:02:00Z: starts and ends of containers are not seen there",
	}
	if err != nil || e.Status != berth.Running || e.Summary != "the job is running, attempt 1 on m1; the container engine of machine m1 has not answered since 2026-01-31T10:02:00Z" {
		t.Errorf("a job that runs there: %+v, %v", e, err)
	}
	if diff := cmp.Diff([]wire.Blocker{want}, e.Blockers); diff != "" {
		t.Errorf("blockers of a job that runs there (-want +got):\n%s", diff)
	}
	want.Message = "the container engine of machine m1 has not answered since 2026-01-31T10:02:00Z"
	e, err = s.as("alice").Explain(t.Context(), waiting.ID)
	if err != nil || len(e.Blockers) != 2 || !cmp.Equal(e.Blockers[1], want) || e.Summary != "no machine has a container engine that answers" {
		t.Errorf("a job that waits: %+v, %v", e, err)
	}
	m, err := s.as("alice").Machine(t.Context(), "m1")
	if err != nil || m.EngineSilentSince == nil || !strings.Contains(m.Reason, "has not answered since 2026-01-31T10:02:00Z; restart it: systemctl restart docker, or bring back the file server that a container waits for") {
		t.Errorf("the machine: %+v, %v", m, err)
	}
	s.metricsWith("berth_machines_engine_silent 1")
	s.exec(`UPDATE machines SET engine_silent_since = NULL`)
	if e, err = s.as("alice").Explain(t.Context(), running.ID); err != nil || len(e.Blockers) != 0 {
		t.Errorf("once the engine answers: %+v, %v", e, err)
	}
}

func blocked(e wire.Explanation, code string) bool {
	for _, b := range e.Blockers {
		if b.Code == code {
			return true
		}
	}
	return false
}

func TestAJobsLifeOverTheAPI(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	c := s.as("alice")
	job := s.submit("alice", nil)
	if job, err := c.Hold(t.Context(), job.ID); err != nil || !job.Held {
		t.Errorf("hold: %+v, %v", job, err)
	}
	if job, err := c.Release(t.Context(), job.ID); err != nil || job.Held {
		t.Errorf("release: %+v, %v", job, err)
	}
	high, limit, blue := spec.PriorityHigh, spec.Duration(60e9), "blue"
	job, err := c.Update(t.Context(), job.ID, spec.JobPatch{Priority: &high, TimeLimit: &limit, Labels: map[string]*string{"color": &blue}})
	if err != nil || job.Priority != high || job.Labels["color"] != "blue" || job.Spec.TimeLimit != limit || *job.Spec.Priority != high {
		t.Errorf("update: %+v, %v", job, err)
	}
	if _, err := c.Retry(t.Context(), job.ID, client.RetryOptions{}); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("retry of a live job: %v", err)
	}
	for range 2 {
		if job, err = c.Cancel(t.Context(), job.ID); err != nil || job.Status != berth.Canceled {
			t.Errorf("cancel: %+v, %v", job, err)
		}
	}
	if job.Reason == nil || job.Reason.Code != berth.ReasonCanceledByUser {
		t.Errorf("reason %+v", job.Reason)
	}
	next, err := c.Retry(t.Context(), job.ID, client.RetryOptions{})
	if err != nil || next.RetryOf == nil || *next.RetryOf != job.ID || next.Spec.TimeLimit != limit {
		t.Errorf("retry: %+v, %v", next, err)
	}
	if _, err := c.Update(t.Context(), job.ID, spec.JobPatch{Priority: &high}); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("update of an ended job: %v", err)
	}
	events, err := c.Events(t.Context(), job.ID, 0)
	if err != nil || len(events.Items) < 4 {
		t.Fatalf("events %+v, %v", events, err)
	}
	for i, e := range events.Items {
		if e.Seq != int64(i+1) || e.Actor != "user:alice" {
			t.Errorf("event %d: %+v", i, e)
		}
	}
}

// A retry is a submit: requests beyond the present quota are refused, and the
// retry of a job that has one already only names that one.
func TestARetryIsHeldToTheQuota(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	c := s.as("alice")
	two := func(j *spec.Job) { cpus := spec.MilliCPU(2000); j.Resources.CPUs = &cpus }
	first, second := s.submit("alice", two), s.submit("alice", two)
	for _, id := range []berth.JobID{first.ID, second.ID} {
		if _, err := c.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	next, err := c.Retry(t.Context(), first.ID, client.RetryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	third := s.submit("alice", two)
	if _, err := c.Cancel(t.Context(), third.ID); err != nil {
		t.Fatal(err)
	}
	changed := *third.Spec
	changed.Image = "other"
	other, err := c.Retry(t.Context(), third.ID, client.RetryOptions{Spec: &changed})
	if err != nil {
		t.Fatal(err)
	}
	one := spec.MilliCPU(1000)
	if _, err := s.as("admin").SetQuota(t.Context(), spec.Quota{Tenant: "a", Limit: &spec.Amounts{CPUs: &one}}); err != nil {
		t.Fatal(err)
	}
	if a := s.call("alice", "POST", "/v1/jobs/"+string(second.ID)+"/retry", ""); a.status != http.StatusForbidden || a.problem.Code != berth.SlugQuota {
		t.Errorf("beyond the limit: %d %s", a.status, a.body)
	}
	if again, err := c.Retry(t.Context(), first.ID, client.RetryOptions{}); err != nil || again.ID != next.ID {
		t.Errorf("a second time: %+v, %v", again, err)
	}
	if again, err := c.Retry(t.Context(), third.ID, client.RetryOptions{Spec: &changed}); err != nil || again.ID != other.ID {
		t.Errorf("a second time with the same spec: %+v, %v", again, err)
	}
}

func TestARetryMayHaveGroupsOfOtherSizes(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	c := s.as("alice")
	old := s.submit("alice", func(j *spec.Job) {
		j.Groups = []spec.Group{{Name: "head", Leads: true}, {Name: "workers", Members: 2}}
	})
	if _, err := c.Cancel(t.Context(), old.ID); err != nil {
		t.Fatal(err)
	}
	if old.Spec.Members != 3 {
		t.Fatalf("the stored spec has %d members", old.Spec.Members)
	}
	changed := *old.Spec
	changed.Groups = slices.Clone(changed.Groups)
	changed.Groups[1].Members = 4
	wrong := changed
	wrong.Members = 7
	if _, err := c.Retry(t.Context(), old.ID, client.RetryOptions{Spec: &wrong}); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("a wrong number of members: %v", err)
	}
	next, err := c.Retry(t.Context(), old.ID, client.RetryOptions{Spec: &changed})
	if err != nil || next.Spec.Members != 5 {
		t.Errorf("with other groups: %+v, %v", next.Spec, err)
	}
}

func TestListsPageOverHTTP(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for i := range 7 {
		s.submit("alice", func(j *spec.Job) { j.Labels = map[string]string{"n": fmt.Sprint(i), "odd": fmt.Sprint(i%2 == 1)} })
	}
	s.submit("bob", nil)
	c := s.as("alice")
	var got []string
	q := client.JobsQuery{Limit: 3}
	for {
		page, err := c.Jobs(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page.Items {
			got = append(got, j.Labels["n"])
		}
		if q.Cursor = page.NextCursor; q.Cursor == "" {
			break
		}
	}
	if diff := cmp.Diff([]string{"6", "5", "4", "3", "2", "1", "0"}, got); diff != "" {
		t.Errorf("jobs (-want +got):\n%s", diff)
	}
	// A cursor made for another tenant shows the reader's own rows.
	mine, err := c.Jobs(t.Context(), client.JobsQuery{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := s.as("bob").Jobs(t.Context(), client.JobsQuery{Cursor: mine.NextCursor})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range theirs.Items {
		if j.Tenant != "b" {
			t.Errorf("bob reads a job of %s", j.Tenant)
		}
	}
	odd, err := c.Jobs(t.Context(), client.JobsQuery{Labels: map[string]string{"odd": "true"}, Status: []berth.State{berth.Submitted, berth.Queued}})
	if err != nil || len(odd.Items) != 3 {
		t.Errorf("%d odd jobs, %v; want 3", len(odd.Items), err)
	}
	all, err := s.as("admin").Jobs(t.Context(), client.JobsQuery{})
	if err != nil || len(all.Items) != 8 {
		t.Errorf("an admin sees %d jobs, %v; want 8", len(all.Items), err)
	}
	only, err := s.as("admin").Jobs(t.Context(), client.JobsQuery{Tenant: "b"})
	if err != nil || len(only.Items) != 1 {
		t.Errorf("an admin sees %d jobs of b, %v; want 1", len(only.Items), err)
	}
	if empty := s.call("bob", "GET", "/v1/jobs?name=nothing", ""); !strings.Contains(empty.body, `"items":[]`) {
		t.Errorf("an empty list is %s", empty.body)
	}
}
