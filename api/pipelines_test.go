package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"berth/spec"
	"berth/wire"
)

const nestedPipeline = `{"kind": "pipeline", "name": "p", "jobs": {
	"prep": {"image": "b"},
	"train": {"needs": ["prep"], "jobs": {"load": {"image": "b"}, "fit": {"needs": ["load"], "jobs": {"x": {"image": "b"}}}}}}}`

// TestARepeatedSubmitOfAPipelineIsOnePipeline checks that the idempotency key reaches the database, with and without
// an earlier run to resume.
func TestARepeatedSubmitOfAPipelineIsOnePipeline(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	submit := func(path string, want int) (id string) {
		t.Helper()
		got := s.call("alice", "POST", path, nestedPipeline, "Idempotency-Key", "once"+path)
		var job wire.Job
		if got.status != want || json.Unmarshal([]byte(got.body), &job) != nil {
			t.Fatalf("%s: %d %s", path, got.status, got.body)
		}
		return string(job.ID)
	}
	run := submit("/v1/pipelines", http.StatusCreated)
	if again := submit("/v1/pipelines", http.StatusOK); again != run {
		t.Errorf("two pipelines with one key: %s and %s", run, again)
	}
	if got := s.call("alice", "POST", "/v1/pipelines/"+run+"/cancel", ""); got.status != http.StatusOK {
		t.Fatal(got.status, got.body)
	}
	resumed := submit("/v1/pipelines?resume="+run, http.StatusCreated)
	if again := submit("/v1/pipelines?resume="+run, http.StatusOK); again != resumed || again == run {
		t.Errorf("two resumes with one key: %s and %s", resumed, again)
	}
}

func TestAResumedPipelineMayHaveGroupsOfOtherSizes(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	submit := func(path, body string) (job wire.Job) {
		t.Helper()
		got := s.call("alice", "POST", path, body)
		if got.status != http.StatusCreated || json.Unmarshal([]byte(got.body), &job) != nil {
			t.Fatalf("%s: %d %s", path, got.status, got.body)
		}
		return job
	}
	run := submit("/v1/pipelines", `{"kind": "pipeline", "name": "p", "jobs": {"n": {"jobs": {"x": {"image": "b",
		"groups": [{"name": "head"}, {"name": "workers", "members": 2}]}}}}}`)
	if got := s.call("alice", "POST", "/v1/pipelines/"+string(run.ID)+"/cancel", ""); got.status != http.StatusOK {
		t.Fatal(got.status, got.body)
	}
	stored := *run.Pipeline
	if n := stored.Jobs["n"].Jobs["x"].Members; n != 3 {
		t.Fatalf("the stored step has %d members", n)
	}
	stored.Jobs["n"].Jobs["x"].Groups[1].Members = 4
	body, err := json.Marshal(stored)
	if err != nil {
		t.Fatal(err)
	}
	resumed := submit("/v1/pipelines?resume="+string(run.ID), string(body))
	if n := resumed.Pipeline.Jobs["n"].Jobs["x"].Members; n != 5 {
		t.Errorf("the step has %d members", n)
	}
}

// TestACancelKeepsFinalStepsUnlessAsked checks that a repeated cancel leaves the final steps alone, and that
// skip_final cancels them.
func TestACancelKeepsFinalStepsUnlessAsked(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	var job wire.Job
	call := func(path, body string) wire.Job {
		t.Helper()
		got := s.call("alice", "POST", path, body)
		var j wire.Job
		if got.status >= 300 || json.Unmarshal([]byte(got.body), &j) != nil {
			t.Fatalf("%s: %d %s", path, got.status, got.body)
		}
		return j
	}
	job = call("/v1/pipelines", `{"kind": "pipeline", "name": "p", "jobs": {"a": {"image": "b"}, "clean": {"image": "b", "final": true}}}`)
	if _, err := s.db.Parents.Reconcile(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/pipelines/", "/v1/jobs/"} {
		j := call(path+string(job.ID)+"/cancel", "")
		if j.Status != "queued" || j.Reason == nil || j.Reason.Code != "canceled_by_user" || j.Steps[0].Status != "canceled" || j.Steps[1].Status != "submitted" {
			t.Errorf("%s: %+v", path, j)
		}
	}
	if got := s.call("bob", "POST", "/v1/pipelines/"+string(job.ID)+"/cancel?skip_final=true", ""); got.status != http.StatusNotFound {
		t.Errorf("another tenant: %d", got.status)
	}
	if j := call("/v1/pipelines/"+string(job.ID)+"/cancel?skip_final=true", ""); j.Status != "canceled" {
		t.Errorf("without final steps: %+v", j)
	}
}

func TestExplainSaysWhatANestedStepWaitsForAtEveryLevel(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	show := func(path string, into any) {
		t.Helper()
		got := s.call("alice", "GET", path, "")
		if got.status != http.StatusOK || json.Unmarshal([]byte(got.body), into) != nil {
			t.Fatalf("%s: %d %s", path, got.status, got.body)
		}
	}
	var job wire.Job
	if got := s.call("alice", "POST", "/v1/pipelines", nestedPipeline); got.status != http.StatusCreated || json.Unmarshal([]byte(got.body), &job) != nil {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for _, want := range []struct{ step, says string }{
		{"train", "it needs step prep, which is submitted"},
		{"fit", "pipeline train, which it is in, needs step prep, which is submitted; it needs step load, which is submitted"},
		{"x", "pipeline train, which it is in, needs step prep, which is submitted; pipeline fit, which it is in, needs step load, which is submitted"},
	} {
		show("/v1/pipelines/"+string(job.ID), &job)
		for _, step := range job.Steps {
			if step.Name == want.step {
				job.ID = step.Job
			}
		}
		var e wire.Explanation
		show("/v1/jobs/"+string(job.ID)+"/explain", &e)
		var got []string
		for _, b := range e.Blockers {
			got = append(got, b.Message)
		}
		if text := strings.Join(got, "; "); text != want.says || !strings.HasPrefix(want.says, e.Summary) {
			t.Errorf("%s: it says %q and %q", want.step, e.Summary, text)
		}
	}
}

// Too deep a nesting is refused in little time, for any content of the lower levels.
func TestPipelinesThatNestTooDeepAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for _, levels := range []int{spec.MaxLevels + 1, 40, 4000} {
		body := `{"kind": "pipeline", "name": "p", "jobs": {"a": ` + strings.Repeat(`{"jobs": {"a": `, levels-1) + `{"image": "b"}` + strings.Repeat(`}}`, levels)
		got := s.call("alice", "POST", "/v1/pipelines", body)
		if got.status != http.StatusUnprocessableEntity || len(got.problem.Errors) == 0 || !strings.HasPrefix(got.problem.Errors[0].Field, "jobs.a.jobs.a") {
			t.Errorf("%d levels: %d %.300s", levels, got.status, got.body)
		}
	}
	if got := s.call("alice", "POST", "/v1/pipelines", strings.Replace(nestedPipeline, `"x": {"image": "b"}`, `"x": {}`, 1)); got.status != http.StatusUnprocessableEntity || got.problem.Errors[0].Field != "jobs.train.jobs.fit.jobs.x.image" {
		t.Errorf("%d %s", got.status, got.body)
	}
}
