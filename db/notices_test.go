package db_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
)

// notifications lists the notifications of a job as hook:status, in order.
func (s *stage) notifications(id berth.JobID) []string {
	s.t.Helper()
	return one[[]string](s, `SELECT coalesce(array_agg(hook || ':' || status ORDER BY seq, hook), '{}') FROM notices WHERE job = $1`, id)
}

func hooks(on ...[]string) func(*spec.Job) {
	return func(j *spec.Job) {
		for i, list := range on {
			j.Notify = append(j.Notify, spec.Notify{URL: fmt.Sprintf("https://example.com/%d", i), On: list})
		}
	}
}

// signs stores the secret that signs webhook calls.
func (s *stage) signs() {
	s.t.Helper()
	if _, _, err := s.db.Secrets.Set(s.t.Context(), db.SealedSecret{Tenant: "default", Name: spec.WebhookSecret, Key: "k", Sealed: []byte("x")}); err != nil {
		s.t.Fatal(err)
	}
}

func TestEachChangeThatAWebhookAsksForIsToldOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.signs()
	id := s.submit(hooks([]string{"running", "retrying", "succeeded"}, []string{"succeeded"}))
	plain := s.submit(nil)
	for _, job := range []berth.JobID{id, plain} {
		s.load(job)
		s.finish(job, 0)
	}
	want := []string{"0:running", "0:succeeded", "1:succeeded"}
	if diff := cmp.Diff(want, s.notifications(id)); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
	if n := one[int](s, `SELECT count(*) FROM notices WHERE job = $1`, plain); n != 0 {
		t.Errorf("of a job without webhooks %d are told", n)
	}
	// A change and its notification are one transaction: a change that is rolled back sends none.
	lost := s.submit(hooks([]string{"queued"}))
	tx, err := s.beside().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `UPDATE jobs SET state = 'queued', version = version + 1 WHERE id = $1`, lost); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.notifications(lost); len(got) != 0 {
		t.Errorf("undone, and told %v", got)
	}
}

func TestWebhooksAreToldOfTheWhole(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.signs()
	array := s.array(2, hooks([]string{"queued", "succeeded"}))
	s.tend(array)
	for i := range 2 {
		e := s.element(array, i)
		if jobSpec := s.job(e).Spec; len(jobSpec.Notify) > 0 {
			t.Errorf("element %d has %+v", i, jobSpec.Notify)
		}
		s.load(e)
		s.finish(e, 0)
		s.tend(array)
	}
	if diff := cmp.Diff([]string{"0:queued", "0:succeeded"}, s.notifications(array)); diff != "" {
		t.Errorf("array (-want +got):\n%s", diff)
	}
	pipeline := spec.Pipeline{Kind: "pipeline", Name: "p", Notify: []spec.Notify{{URL: "https://example.com"}}, Jobs: map[string]spec.Job{"a": {Image: "x"}}}
	p, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: pipeline.WithDefaults(), Actor: "user:x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", p.ID, "user:x", nil); err != nil {
		t.Fatal(err)
	}
	if state := s.tend(p.ID); state != berth.Canceled {
		t.Fatalf("pipeline is %s", state)
	}
	if diff := cmp.Diff([]string{"0:canceled"}, s.notifications(p.ID)); diff != "" {
		t.Errorf("pipeline (-want +got):\n%s", diff)
	}
	if n := one[int](s, `SELECT count(DISTINCT job) FROM notices`); n != 2 {
		t.Errorf("%d jobs are told of, want the two wholes", n)
	}
}

func TestNoticesAreTakenFairlyAndByOneAtATime(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for tenant, n := range map[string]int{"a": 50, "b": 1, "c": 3} {
		mustExec(t, s.pool, `INSERT INTO notices (job, seq, hook, tenant, url, status, body)
			SELECT gen_random_uuid(), 1, 0, $1, 'https://x', 'failed', '{}' FROM generate_series(1, $2)`, tenant, n)
	}
	take := func(c db.NoticeClaim) map[berth.TenantID]int {
		t.Helper()
		c.Lease = time.Minute
		list, err := s.db.Outbox.Claim(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		got := map[berth.TenantID]int{}
		for _, n := range list {
			got[n.Tenant]++
			if n.Tries != 1 || n.Body != "{}" || n.Age < 0 || n.Age > time.Minute {
				t.Errorf("notice is %+v", n)
			}
		}
		return got
	}
	for _, c := range []struct {
		claim db.NoticeClaim
		want  map[berth.TenantID]int
	}{
		{db.NoticeClaim{Each: 4, Limit: 64}, map[berth.TenantID]int{"a": 4, "b": 1, "c": 3}},
		{db.NoticeClaim{Each: 4, Limit: 64, Crowded: []berth.TenantID{"a"}}, map[berth.TenantID]int{}},
		{db.NoticeClaim{Each: 100, Limit: 10}, map[berth.TenantID]int{"a": 10}},
	} {
		if got := take(c.claim); !cmp.Equal(got, c.want) {
			t.Errorf("%+v takes %v, want %v", c.claim, got, c.want)
		}
	}
	// A slow process cannot change a notification that another process has claimed since.
	list, err := s.db.Outbox.Claim(t.Context(), db.NoticeClaim{Each: 1, Limit: 1, Lease: -time.Second})
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	again, err := s.db.Outbox.Claim(t.Context(), db.NoticeClaim{Each: 1, Limit: 1, Lease: time.Hour})
	if err != nil || len(again) != 1 || again[0].ID() != list[0].ID() || again[0].Tries != 2 {
		t.Fatal(again, err)
	}
	if err := s.db.Outbox.Failed(t.Context(), list[0], -time.Hour); err != nil {
		t.Fatal(err)
	}
	if late := one[bool](s, `SELECT due_at > now() FROM notices WHERE job = $1`, list[0].Job); !late {
		t.Error("the slow process has made it due")
	}
}

// A call is overdue from the time at which it was due. A call in flight, and one that waits for its
// next try, are not overdue.
func TestBacklogOfWebhooks(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	backlog := func() db.NoticeBacklog {
		t.Helper()
		b, err := s.db.Outbox.Backlog(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if b := backlog(); b != (db.NoticeBacklog{}) {
		t.Errorf("without calls the backlog is %+v", b)
	}
	for i := range 2 {
		mustExec(t, s.pool, `INSERT INTO notices (job, seq, hook, tenant, url, status, body, due_at)
			VALUES (gen_random_uuid(), $1::int, 0, 'default', 'https://x', 'failed', '{}', now() + make_interval(hours => $1::int - 1))`, i)
	}
	if b := backlog(); b.Waiting != 2 || b.Overdue < time.Hour || b.Overdue > 2*time.Hour {
		t.Errorf("with a call that is due for an hour and one that is due now, the backlog is %+v", b)
	}
	list, err := s.db.Outbox.Claim(t.Context(), db.NoticeClaim{Each: 4, Limit: 4, Lease: time.Hour})
	if err != nil || len(list) != 2 {
		t.Fatalf("claimed %v: %v", list, err)
	}
	if b := backlog(); b != (db.NoticeBacklog{Waiting: 2}) {
		t.Errorf("with both calls in flight the backlog is %+v", b)
	}
}
