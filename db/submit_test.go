package db_test

import (
	"encoding/base64"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

func submission(name, key string) db.Submission {
	jobSpec := spec.Job{Name: name, Image: "busybox", Env: map[string]string{"A": "1"}, Labels: map[string]string{"project": "vision"}}.WithDefaults()
	return db.Submission{Tenant: "default", Spec: jobSpec, IdemKey: key, Actor: "user:test"}
}

func TestFiftyClientsWithOneKeyMakeOneJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var mu sync.Mutex
	ids, first := map[berth.JobID]int{}, 0
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			job, created, err := s.db.Jobs.Submit(t.Context(), submission("digits", "k1"))
			if err != nil {
				t.Errorf("submit: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ids[job.ID]++
			if created {
				first++
			}
		})
	}
	wg.Wait()
	if len(ids) != 1 || first != 1 {
		t.Errorf("got %d jobs, %d created; want one of each", len(ids), first)
	}
	if n := one[int](s, `SELECT count(*) FROM job_specs`); n != 1 {
		t.Errorf("%d specs are stored, want 1", n)
	}
}

func TestAKeyBelongsToOneBodyAndOneTenant(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _, err := s.db.Jobs.Submit(t.Context(), submission("digits", "k1"))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = s.db.Jobs.Submit(t.Context(), submission("letters", "k1"))
	if !berth.IsSlug(err, berth.SlugIdempotencyMismatch) {
		t.Errorf("another body: got %v, want idempotency_mismatch", err)
	}
	other := submission("letters", "k1")
	other.Tenant = "b"
	b, created, err := s.db.Jobs.Submit(t.Context(), other)
	if err != nil || !created || b.ID == a.ID {
		t.Errorf("another tenant: created %v, err %v; want a job of its own", created, err)
	}
	for range 2 {
		if _, created, err := s.db.Jobs.Submit(t.Context(), submission("digits", "")); err != nil || !created {
			t.Errorf("without a key: created %v, err %v; want a new job each time", created, err)
		}
	}
}

func TestASubmittedJobReadsBackWhole(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	sub := submission("digits", "")
	sub.Spec.Resources.GPUs = 250
	sub.Spec.QueueTimeout, sub.Spec.TimeLimit = spec.Duration(3600e9), spec.Duration(7200e9)
	job, _, err := s.db.Jobs.Submit(t.Context(), sub)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sub.Spec, *job.Spec); diff != "" {
		t.Errorf("spec answered by submit (-want +got):\n%s", diff)
	}
	read, err := s.db.Jobs.Get(t.Context(), "default", job.ID)
	if err != nil {
		t.Fatal(err)
	}
	if want := string(job.ID[len(job.ID)-6:]); job.Handle != "" || read.Handle != want {
		t.Errorf("the submit answers with the handle %q, and %q is read; want none, and %q", job.Handle, read.Handle,
			want)
	}
	job.Handle = read.Handle
	if diff := cmp.Diff(job, read); diff != "" {
		t.Errorf("job read back (-submitted +read):\n%s", diff)
	}
	if read.Status != berth.Submitted || read.Labels["project"] != "vision" || read.Priority != spec.PriorityNormal {
		t.Errorf("got %+v", read)
	}
	events, err := s.db.Jobs.Events(t.Context(), "default", job.ID, 0, 10)
	if err != nil || len(events) != 1 || events[0].To != berth.Submitted || events[0].Actor != "user:test" {
		t.Errorf("events %+v, err %v; want the submission by user:test", events, err)
	}
}

func TestListsPageThroughEverythingOnceInOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	want := map[berth.JobID]bool{}
	for range 25 {
		want[s.submit(nil)] = true
	}
	other := submission("x", "")
	other.Tenant = "b"
	if _, _, err := s.db.Jobs.Submit(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	f := db.JobFilter{Tenant: "default", Limit: 10}
	var last wire.Job
	for pages := 1; ; pages++ {
		jobs, next, err := s.db.Jobs.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			if !want[j.ID] {
				t.Errorf("job %s of tenant %s comes twice or is not asked for", j.ID, j.Tenant)
			}
			delete(want, j.ID)
			if last.ID != "" && j.SubmittedAt.After(last.SubmittedAt) {
				t.Errorf("job %s comes after an older one", j.ID)
			}
			if j.Spec != nil {
				t.Error("lists carry specs")
			}
			last = j
		}
		if next == "" {
			if pages != 3 {
				t.Errorf("25 jobs came on %d pages of 10, want 3", pages)
			}
			break
		}
		f.Cursor = next
	}
	if len(want) > 0 {
		t.Errorf("%d jobs never came", len(want))
	}
}

func TestFiltersSelect(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a := s.submit(func(j *spec.Job) { j.Name = "a"; j.Labels = map[string]string{"team": "x", "stage": "dev"} })
	b := s.submit(func(j *spec.Job) { j.Name = "b"; j.Labels = map[string]string{"team": "x"} })
	s.load(b) // queued
	job := s.job(b)
	rows := map[string]struct {
		filter db.JobFilter
		want   []berth.JobID
	}{
		"all":           {db.JobFilter{}, []berth.JobID{b, a}},
		"name":          {db.JobFilter{Name: "a"}, []berth.JobID{a}},
		"label":         {db.JobFilter{Labels: map[string]string{"team": "x"}}, []berth.JobID{b, a}},
		"two labels":    {db.JobFilter{Labels: map[string]string{"team": "x", "stage": "dev"}}, []berth.JobID{a}},
		"status":        {db.JobFilter{Status: []berth.State{berth.Queued}}, []berth.JobID{b}},
		"statuses":      {db.JobFilter{Status: []berth.State{berth.Queued, berth.Submitted}}, []berth.JobID{b, a}},
		"since":         {db.JobFilter{Since: job.SubmittedAt}, []berth.JobID{b}},
		"parent":        {db.JobFilter{Parent: &a}, nil},
		"other tenant":  {db.JobFilter{Tenant: "b"}, nil},
		"name as value": {db.JobFilter{Name: "a' OR '1'='1"}, nil},
	}
	for name, row := range rows {
		jobs, _, err := s.db.Jobs.List(t.Context(), row.filter)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var got []berth.JobID
		for _, j := range jobs {
			got = append(got, j.ID)
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestCursorsThatNoListGaveAreRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	encode := base64.RawURLEncoding.EncodeToString
	for _, cursor := range []string{
		"x", "!!!", encode([]byte("{}")), encode([]byte("[]x")), encode([]byte(`["a","b"]`)),
		encode([]byte(`[1700000000000000,"not-a-uuid"]`)), encode([]byte(`[9223372036854775807,"0199a000-0000-7000-8000-000000000000"]`)),
		encode([]byte(`[1e400,"0199a000-0000-7000-8000-000000000000"]`)), encode([]byte(`[]`)),
	} {
		if _, _, err := s.db.Jobs.List(t.Context(), db.JobFilter{Cursor: cursor}); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("cursor %q: got %v, want invalid", cursor, err)
		}
	}
}

func TestTheBeginningOfAnIDWillDo(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor) VALUES
		('0199a000-0000-7000-8000-000000000001', 'default', 'a', 'c', 500, true, 0, 0, 'test'),
		('0199a000-0000-7000-8000-000000000002', 'default', 'b', 'c', 500, true, 0, 0, 'test'),
		('0199a000-0000-7000-8000-000000000003', 'b', 'c', 'c', 500, true, 0, 0, 'test'),
		('0199b000-0000-7000-8000-000000000004', 'b', 'd', 'c', 500, true, 0, 0, 'test')`)
	const first = berth.JobID("0199a000-0000-7000-8000-000000000001")
	rows := []struct {
		tenant berth.TenantID
		id     string
		want   berth.JobID
		code   berth.Code
	}{
		{"default", string(first), first, ""},
		{"default", "0199A000-0000-7000-8000-000000000001", first, ""},
		{"default", "0199a000-0000-7000-8000-00000000000", "", berth.CodeConflict},
		{"default", "0199", "", berth.CodeConflict},
		{"b", "0199a", "0199a000-0000-7000-8000-000000000003", ""},
		{"", "0199b000-", "0199b000-0000-7000-8000-000000000004", ""},
		{"default", "0199b000", "", berth.CodeNotFound}, // another tenant's
		{"default", "019", "", berth.CodeNotFound},
		{"default", "", "", berth.CodeNotFound},
		{"default", "0199%", "", berth.CodeNotFound},
		{"default", "0199a0000", "", berth.CodeNotFound},
		{"default", "0199a000-0000-7000-8000-0000000000011", "", berth.CodeNotFound},
	}
	for _, row := range rows {
		got, err := s.db.Jobs.Resolve(t.Context(), row.tenant, row.id)
		if got != row.want || berth.CodeOf(err) != row.code {
			t.Errorf("resolve %q for %q: got %q, %v; want %q, code %q", row.id, row.tenant, got, err, row.want, row.code)
		}
	}
}

func TestRetryLinksBothWaysOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(nil)
	if _, _, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{}, "user:test"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("retry of a live job: got %v, want conflict", err)
	}
	if _, _, err := s.db.Retries.Retry(t.Context(), "b", id, db.RetryOptions{}, "user:test"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("retry of another tenant's job: got %v, want not_found", err)
	}
	s.move(id, berth.Failed)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := map[berth.JobID]int{}
	for range 8 {
		wg.Go(func() {
			job, created, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{}, "user:test")
			if err != nil {
				t.Errorf("retry: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if created {
				made[job.ID]++
			}
			if job.RetryOf == nil || *job.RetryOf != id || job.Spec == nil || job.Status != berth.Submitted {
				t.Errorf("the new job is %+v", job)
			}
		})
	}
	wg.Wait()
	if len(made) != 1 {
		t.Errorf("8 retries at once made %d jobs, want 1", len(made))
	}
	if old := s.job(id); old.RetriedBy == nil || made[*old.RetriedBy] != 1 {
		t.Errorf("the old job says retried_by %v", old.RetriedBy)
	}
}
