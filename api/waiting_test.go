package api_test

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// queue makes submitted jobs queued, as their workflows do.
func (s *site) queue(ids ...berth.JobID) {
	s.t.Helper()
	for _, id := range ids {
		s.exec(`UPDATE jobs SET state = 'queued', version = version + 1, actor = 'workflow' WHERE id = $1`, id)
	}
}

// reason asks for a job until its reason has the code: a board may be a moment old.
func (s *site) reason(name string, id berth.JobID, code string) wire.Waiting {
	s.t.Helper()
	var w *wire.Waiting
	for began := time.Now(); time.Since(began) < waitLimit; time.Sleep(10 * time.Millisecond) {
		job, err := s.as(name).Job(s.t.Context(), id)
		if err != nil {
			s.t.Fatal(err)
		}
		if w = job.Waiting; w != nil && w.Code == code {
			return *w
		}
	}
	s.t.Fatalf("job %s waits for %+v, want %s", id, w, code)
	return wire.Waiting{}
}

func cores(n int) func(*spec.Job) {
	return func(j *spec.Job) {
		m := spec.MilliCPU(1000 * n)
		j.Resources.CPUs = &m
	}
}

func TestAWaitingJobShowsItsReasonInAFewWords(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 1, 65536, 0)
	retrying, running := s.submit("alice", cores(1)), s.submit("alice", cores(1))
	s.run(retrying.ID, "m1")
	s.end(retrying.ID, berth.Retrying)
	s.exec(`UPDATE jobs SET version = version + 1, actor = 'workflow', eligible_at = '2099-01-31 23:49:53Z' WHERE id = $1`, retrying.ID)
	fresh := s.submit("alice", cores(1))
	s.run(running.ID, "m1")
	first, second, held, large := s.submit("alice", cores(1)), s.submit("alice", cores(1)), s.submit("alice", cores(1)),
		s.submit("alice", cores(1))
	s.queue(first.ID, second.ID, held.ID, large.ID)
	if _, err := s.as("alice").Hold(t.Context(), held.ID); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		job     berth.JobID
		code    string
		message string
	}{
		{fresh.ID, "not_accepted", "waiting for the control plane to pick it up"},
		{first.ID, "no_room", "no room: needs 1 CPU, none free"},
		{second.ID, "no_room", "waiting behind 1 job; no room: needs 1 CPU, none free"},
		{held.ID, "held", "on hold"},
		{retrying.ID, "not_eligible", "retrying at 2099-01-31 23:49Z (backoff)"},
	} {
		if w := s.reason("alice", want.job, want.code); w.Message != want.message {
			t.Errorf("%+v, want %q", w, want.message)
		}
	}
	list, err := s.as("alice").Jobs(t.Context(), client.JobsQuery{})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range list.Items {
		if (j.Waiting != nil) != j.Status.Waiting() {
			t.Errorf("%s is %s and waits for %+v", j.ID, j.Status, j.Waiting)
		}
		if j.ID == first.ID && (j.Waiting.Position != 1 || j.Waiting.AsOf == nil) {
			t.Errorf("the first: %+v", j.Waiting)
		}
	}
}

// The row decides: a job that started after the reading has no reason, and one that was put
// on hold or released has no older reason.
func TestAReasonEndsWithTheStateThatItBelongsTo(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 2, 65536, 0)
	job, other := s.submit("alice", cores(1)), s.submit("alice", cores(2))
	s.exec(`UPDATE machines SET cpu_m = 1000`)
	s.queue(job.ID, other.ID)
	s.reason("alice", other.ID, "unsatisfiable")
	if _, err := s.as("alice").Hold(t.Context(), other.ID); err != nil {
		t.Fatal(err)
	}
	if w, err := s.as("alice").Job(t.Context(), other.ID); err != nil || w.Waiting == nil || w.Waiting.Code != "held" {
		t.Errorf("on hold: %+v, %v", w.Waiting, err)
	}
	s.run(job.ID, "m1")
	if j, err := s.as("alice").Job(t.Context(), job.ID); err != nil || j.Status != berth.Running || j.Waiting != nil {
		t.Errorf("started: %s %+v, %v", j.Status, j.Waiting, err)
	}
	queue, err := s.as("alice").Queue(t.Context(), client.QueueQuery{})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range queue.Items {
		if j.ID == job.ID {
			t.Errorf("the queue has a job that has started: %+v", j)
		}
	}
}

func TestTheQueueIsPagedAndFilteredByTenantAndPool(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.exec(`INSERT INTO pools (id, provider) VALUES ('small', 'static'), ('big', 'static')`)
	s.machine("m1", 1, 65536, 0)
	s.machine("m2", 4, 65536, 0)
	s.exec(`UPDATE machines SET pool = CASE id WHEN 'm1' THEN 'small' ELSE 'big' END`)
	s.exec(`UPDATE machines SET state = 'draining'`)
	var mine, all []berth.JobID
	for n := range 7 {
		job := s.submit([]string{"alice", "bob"}[n%2], cores(1+n%3))
		all = append(all, job.ID)
		if n%2 == 0 {
			mine = append(mine, job.ID)
		}
	}
	s.queue(all...)
	s.reason("alice", mine[3], "no_room")
	walk := func(name string, q client.QueueQuery) (list []wire.QueuedJob) {
		t.Helper()
		total := -1
		for {
			page, err := s.as(name).Queue(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if len(page.Items) > q.Limit || page.AsOf.IsZero() || total >= 0 && page.Total != total {
				t.Errorf("a page of %d jobs, as of %s, in total %d", len(page.Items), page.AsOf, page.Total)
			}
			total = page.Total
			list = append(list, page.Items...)
			if q.Cursor = page.NextCursor; q.Cursor == "" {
				break
			}
		}
		if total != len(list) {
			t.Errorf("%d jobs on all pages, total %d", len(list), total)
		}
		return list
	}
	for n, j := range walk("admin", client.QueueQuery{Limit: 3}) {
		want := "m1 drained and 1 more not ready"
		if n%3 > 0 { // m1 is too small for more than one core
			want = "m2 drained"
		}
		if j.Waiting == nil || j.Waiting.Position != n+1 || j.Band != 500 || j.Waiting.Message != want {
			t.Errorf("job %d of the queue: %+v %+v", n, j, j.Waiting)
		}
	}
	if list := walk("admin", client.QueueQuery{Limit: 2, Tenant: "b"}); len(list) != 3 || list[0].Tenant != "b" {
		t.Errorf("of tenant b: %+v", list)
	}
	if list := walk("admin", client.QueueQuery{Limit: 2, Pool: "small"}); len(list) != 3 {
		t.Errorf("%d jobs fit on a machine of the small pool, want the 3 with one core", len(list))
	}
	own := walk("alice", client.QueueQuery{Limit: 3})
	if len(own) != len(mine) {
		t.Errorf("alice sees %d of her %d jobs", len(own), len(mine))
	}
	for _, j := range own {
		if j.Tenant != "a" {
			t.Errorf("alice sees %+v", j)
		}
	}
	if a := s.call("alice", http.MethodGet, "/v1/queue?tenant=b", ""); a.status != http.StatusForbidden {
		t.Errorf("of another tenant: %d %s", a.status, a.body)
	}
	for _, cursor := range []string{"x", "MTIz", strings.Repeat("A", 400)} {
		if a := s.call("alice", http.MethodGet, "/v1/queue?cursor="+cursor,
			""); a.status != http.StatusUnprocessableEntity && a.status != http.StatusBadRequest {
			t.Errorf("cursor %.20s: %d %s", cursor, a.status, a.body)
		}
	}
}

// Reasons name no jobs of other tenants, and only their number.
func TestReasonsRevealNoJobsOfOtherTenants(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 1, 65536, 0)
	running := s.submit("bob", func(j *spec.Job) { cores(1)(j); j.Name = "bobs-secret" })
	s.run(running.ID, "m1")
	first := s.submit("bob", func(j *spec.Job) { cores(1)(j); j.Name = "bobs-secret" })
	job := s.submit("alice", cores(1))
	s.queue(first.ID, job.ID)
	s.reason("alice", job.ID, "no_room")
	for _, path := range []string{"/v1/jobs", "/v1/queue", "/v1/jobs/" + string(job.ID)} {
		a := s.call("alice", http.MethodGet, path, "")
		for _, word := range []string{"bobs-secret", string(running.ID), string(first.ID), `"b"`} {
			if a.status != http.StatusOK || strings.Contains(a.body, word) {
				t.Errorf("%s: %d, contains %q: %s", path, a.status, word, clipped(a.body))
			}
		}
	}
}

// A blocked step names the step that it needs; its pipeline has no reason of its own.
func TestABlockedStepNamesItsNeed(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.call("alice", http.MethodPost, "/v1/pipelines",
		`{"kind": "pipeline", "name": "p", "jobs": {"prep": {"image": "busybox"}, "train": {"image": "busybox", "needs": ["prep"]}}}`)
	if a.status != http.StatusCreated {
		t.Fatal(a)
	}
	list, err := s.as("alice").Jobs(t.Context(), client.JobsQuery{Parent: berth.JobID(field(t, a.body, "id"))})
	if err != nil || len(list.Items) != 2 {
		t.Fatal(list, err)
	}
	got := map[string]string{}
	for _, j := range list.Items {
		got[j.Step] = fmt.Sprintf("%s: %s", j.Waiting.Code, j.Waiting.Message)
	}
	if got["train"] != "needs: needs step prep (submitted)" || !strings.HasPrefix(got["prep"], "not_accepted: ") {
		t.Errorf("%v", got)
	}
}

// A pipeline shows why each of its steps waits, in both of its documents.
func TestAPipelineShowsWhyItsStepsWait(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 1, 65536, 0)
	run := s.submit("alice", cores(1))
	s.run(run.ID, "m1")
	one := spec.MilliCPU(1000)
	pipeline, _, err := s.as("alice").SubmitPipeline(t.Context(), spec.Pipeline{Kind: "pipeline", Name: "p", Jobs: map[string]spec.Job{
		"first": {Image: "b", Resources: spec.Resources{CPUs: &one}},
		"then":  {Image: "b", Needs: []string{"first"}},
		"held":  {Image: "b"},
	}}, "once")
	if err != nil {
		t.Fatal(err)
	}
	steps := map[string]berth.JobID{}
	for _, step := range pipeline.Steps {
		steps[step.Name] = step.Job
	}
	s.exec(`UPDATE jobs SET blocked = false, version = version + 1, actor = 'workflow' WHERE id = $1`, steps["first"])
	s.queue(steps["first"])
	if _, err := s.as("alice").Hold(t.Context(), steps["held"]); err != nil {
		t.Fatal(err)
	}
	s.reason("alice", steps["first"], "no_room")
	for _, show := range []func() (wire.Job, error){
		func() (wire.Job, error) { return s.as("alice").Job(t.Context(), pipeline.ID) },
		func() (wire.Job, error) { return s.as("alice").Pipeline(t.Context(), pipeline.ID) },
	} {
		job, err := show()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, step := range job.Steps {
			if step.Waiting != nil {
				got[step.Name] = step.Waiting.Message
			}
		}
		want := map[string]string{"first": "no room: needs 1 CPU, none free", "then": "needs step first (queued)", "held": "on hold"}
		if !maps.Equal(got, want) {
			t.Errorf("steps wait for %v, want %v", got, want)
		}
	}
}
