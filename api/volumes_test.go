package api_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/api"
	"berth/api/client"
	"berth/db/dbtest"
	"berth/internal/control/admission"
	"berth/spec"
	"berth/wire"
)

// sharing sets the allowed folders: /all for all tenants, /a for tenant a, /other
// for a tenant that does not exist.
func sharing(d *api.Deps) {
	d.Volumes = admission.Volumes{"all": nil, "a": {"a"}, "other": {"nobody"}}
}

func reading(from ...string) func(*spec.Job) {
	return func(j *spec.Job) {
		for i, f := range from {
			j.Inputs = append(j.Inputs, spec.Input{From: f, To: []string{"/x", "/y", "/z"}[i]})
		}
	}
}

// Each way into the cluster refuses the same, by the field.
func TestFoldersThatATenantMayNotReadAreRefused(t *testing.T) {
	t.Parallel()
	const job = `{"name":"n","image":"i","inputs":[{"from":"./x","to":"/own"},{"from":"FROM","to":"/data"}]}`
	own := strings.Replace(job, "./x", "sha256:"+strings.Repeat("ab", 32), 1)
	ways := map[string]struct{ path, body, field string }{
		"a job":               {"/v1/jobs", own, "inputs[1].from"},
		"a plan":              {"/v1/plans", own, "inputs[1].from"},
		"a step":              {"/v1/pipelines", `{"kind":"pipeline","name":"p","jobs":{"s":` + own + `}}`, "jobs.s.inputs[1].from"},
		"a step of a step":    {"/v1/pipelines", `{"kind":"pipeline","name":"p","jobs":{"s":{"jobs":{"t":` + own + `}}}}`, "jobs.s.jobs.t.inputs[1].from"},
		"a schedule":          {"/v1/schedules", `{"name":"s","cron":"@hourly","job":` + own + `}`, "job.inputs[1].from"},
		"a schedule of steps": {"/v1/schedules", `{"name":"s","cron":"@hourly","pipeline":{"kind":"pipeline","name":"p","jobs":{"s":` + own + `}}}`, "pipeline.jobs.s.inputs[1].from"},
	}
	refuses := func(s *site, who, from, detail, allowed string) {
		t.Helper()
		for what, way := range ways {
			got := s.call(who, "POST", way.path, strings.ReplaceAll(way.body, "FROM", from))
			if got.status != http.StatusUnprocessableEntity || got.problem.Code != "invalid_spec" || len(got.problem.Errors) != 1 || got.problem.Errors[0].Field != way.field ||
				!strings.Contains(got.problem.Errors[0].Detail, detail) || !strings.Contains(got.problem.Errors[0].Allowed, allowed) || !strings.Contains(got.problem.Detail, detail) {
				t.Errorf("%s of %s from %s: %d %s", what, who, from, got.status, got.body)
			}
		}
	}
	delivered := newSite(t, nil)
	refuses(delivered, "alice", "file:///datasets/x/", "file:// inputs are not enabled for tenant a", "")
	refuses(delivered, "admin", "file:///datasets/x/", "file:// inputs are not enabled for tenant default", "")
	refuses(delivered, "alice", "file:///etc/passwd", "/etc is a system folder", "FOLDER is a name that an operator has configured")

	s := newSite(t, sharing)
	refuses(s, "alice", "file:///other/x", "tenant a may not read the folder /other", "file:// with /a/, /all/")
	refuses(s, "alice", "file:///unknown/x", "tenant a may not read the folder /unknown", "file:// with /a/, /all/")
	refuses(s, "bob", "file:///a/x", "tenant b may not read the folder /a", "file:// with /all/")
	refuses(s, "alice", "file:///all/../a/x", "the path contains", "file:///FOLDER/PATH")

	// Who is below a tenant is one of it.
	if _, err := s.as("admin").CreateTenant(t.Context(), spec.NewTenant{ID: "team", Parent: "a"}); err != nil {
		t.Fatal(err)
	}
	token, err := s.as("admin").CreateToken(t.Context(), spec.NewToken{Name: "carol", Tenant: "team", Role: spec.RoleUser})
	if err != nil {
		t.Fatal(err)
	}
	s.tokens["carol"] = token.Secret
	for _, who := range []string{"alice", "carol"} {
		if job := s.submit(who, reading("file:///a/x/", "file:///all/x")); job.Spec.Placement.Labels != nil {
			t.Errorf("the job of %s asks for the labels %v, which its user did not write", who, job.Spec.Placement.Labels)
		}
	}
	s.submit("bob", reading("file:///all/x"))
}

// A revoked folder is not readable for jobs that were submitted before either.
func TestTheOperatorIsAskedAtEachClaim(t *testing.T) {
	t.Parallel()
	database := dbtest.URL(t)
	s := newSiteAt(t, database, sharing)
	first, second := s.submit("alice", reading("file:///a/x")), s.submit("alice", reading("file:///a/x"))
	plain := s.submit("alice", nil)
	m := s.joinMachine("m1")
	if c := m.take(first.ID); !slices.Equal(c.Volumes, []spec.Volume{"a", "all"}) {
		t.Errorf("the claim allows %v", c.Volumes)
	}
	if c := m.take(plain.ID); c.Volumes != nil {
		t.Errorf("a claim of a job that reads none tells of %v", c.Volumes)
	}
	later := newSiteAt(t, database, func(d *api.Deps) { d.Volumes = admission.Volumes{"all": nil} })
	if c := later.joinMachine("m2").take(second.ID); !slices.Equal(c.Volumes, []spec.Volume{"all"}) {
		t.Errorf("the claim allows %v", c.Volumes)
	}
	s.end(first.ID, berth.Failed)
	_, err := later.as("alice").Retry(t.Context(), first.ID, client.RetryOptions{})
	if berth.CodeOf(err) != berth.CodeInvalid || !strings.Contains(err.Error(), "tenant a may not read the folder /a") {
		t.Errorf("retried: %v", err)
	}
}

// No submit waits for the machine that has it: it may join any time.
func TestAJobWaitsForAMachineThatSharesItsFolder(t *testing.T) {
	t.Parallel()
	s := newSite(t, sharing)
	s.machine("m1", 8, 8192, 0)
	s.machine("m2", 8, 8192, 0)
	s.exec(`UPDATE machines SET labels = '{"berth.volume.all": "yes"}' WHERE id = 'm2'`)
	for from, want := range map[string]string{
		"file:///all/x": "1 of 2 machines has room now: 1 does not share the folder /all",
		"file:///a/x":   "no machine shares the folder /a",
	} {
		jobSpec := spec.Job{Name: "n", Image: "i"}
		reading(from)(&jobSpec)
		plan, err := s.as("alice").Plan(t.Context(), jobSpec)
		if err != nil || plan.Fit.Summary != want {
			t.Errorf("%s: the plan says %q, %v", from, plan.Fit.Summary, err)
		}
	}
	job := s.submit("alice", reading("file:///a/x"))
	s.exec(`UPDATE jobs SET state = 'queued', version = version + 1, actor = 'workflow' WHERE id = $1`, job.ID)
	e, err := s.as("alice").Explain(t.Context(), job.ID)
	if err != nil || !slices.ContainsFunc(e.Blockers, func(b wire.Blocker) bool {
		return b.Code == "unsatisfiable" && b.Message == "file_inputs: the folder /a requested, but no machine shares it"
	}) {
		t.Errorf("it waits for %+v, %v", e.Blockers, err)
	}
}

// A mount has the permissions of a copy, and a machine that only copies does not match.
func TestAMountIsPermittedAndPlacedByItsFolder(t *testing.T) {
	t.Parallel()
	database := dbtest.URL(t)
	s := newSiteAt(t, database, sharing)
	mounting := func(from string) func(*spec.Job) {
		return func(j *spec.Job) { reading(from)(j); j.Inputs[0].Mode = spec.InputMount }
	}
	jobSpec := spec.Job{Name: "n", Image: "i"}
	mounting("file:///a/x/")(&jobSpec)
	if _, _, err := s.as("bob").Submit(t.Context(), jobSpec, ""); err == nil || !strings.Contains(err.Error(), "tenant b may not read the folder /a") {
		t.Errorf("another tenant mounts: %v", err)
	}
	s.machine("m1", 8, 8192, 0)
	s.exec(`UPDATE machines SET labels = '{"berth.volume.a": "yes"}' WHERE id = 'm1'`)
	plan, err := s.as("alice").Plan(t.Context(), jobSpec)
	if want := "no machine shares the folder /a for mounts"; err != nil || plan.Fit.Summary != want {
		t.Errorf("the plan says %q, %v", plan.Fit.Summary, err)
	}
	job := s.submit("alice", mounting("file:///a/x/"))
	later := newSiteAt(t, database, func(d *api.Deps) { d.Volumes = admission.Volumes{"all": nil} })
	if c := later.joinMachine("m2").take(job.ID); !slices.Equal(c.Volumes, []spec.Volume{"all"}) {
		t.Errorf("the claim allows %v", c.Volumes)
	}
	s.end(job.ID, berth.Failed)
	if _, err := later.as("alice").Retry(t.Context(), job.ID, client.RetryOptions{}); berth.CodeOf(err) != berth.CodeInvalid ||
		!strings.Contains(err.Error(), "tenant a may not read the folder /a") {
		t.Errorf("retried: %v", err)
	}
}
