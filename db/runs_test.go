package db_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
)

// past adds ended jobs with the given run times in seconds, the latest last.
func (s *stage) past(tenant berth.TenantID, name string, state berth.State, seconds ...int) {
	s.t.Helper()
	mustExec(s.t, s.pool, `
		INSERT INTO jobs (id, tenant, name, class, priority, preemptible, state, grace_ms, lost_after_ms, actor, submitted_at, finished_at, ran_ms)
		SELECT gen_random_uuid(), $1, $2, 'c', 500, true, $3, 0, 0, 'test', clock_timestamp() + x.i * interval '1 millisecond', now(), 1000 * x.s
		FROM unnest($4::int[]) WITH ORDINALITY AS x (s, i)`, tenant, name, state, seconds)
}

// runs returns the run times in seconds of the latest runs of each work.
func (s *stage) runs(works ...db.Work) map[db.Work][]int {
	s.t.Helper()
	times, err := s.db.Attempts.RunTimes(s.t.Context(), works)
	if err != nil {
		s.t.Fatal(err)
	}
	got := map[db.Work][]int{}
	for w, list := range times {
		for _, d := range list {
			got[w] = append(got[w], int(d/time.Second))
		}
	}
	return got
}

func TestRunTimesAreOfTheTenantsLatestSuccessesOfAName(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.past("a", "train", berth.Succeeded, 1, 2, 3, 4, 5, 6, 7)
	s.past("a", "train", berth.Failed, 91)
	s.past("a", "train", berth.Canceled, 92)
	s.past("b", "train", berth.Succeeded, 93, 94)
	s.past("a", "eval", berth.Succeeded, 8)
	s.past("a", "restored", berth.Succeeded, 0) // run time unknown
	train, eval, theirs := db.Work{Tenant: "a", Name: "train"}, db.Work{Tenant: "a", Name: "eval"}, db.Work{Tenant: "b", Name: "train"}
	got := s.runs(train, eval, theirs, db.Work{Tenant: "b", Name: "eval"}, db.Work{Tenant: "a", Name: "restored"}, db.Work{Tenant: "a"})
	if diff := cmp.Diff(map[db.Work][]int{train: {7, 6, 5, 4, 3}, eval: {8}, theirs: {94, 93}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := s.runs(); len(got) != 0 {
		t.Errorf("nobody asked, and the answer is %v", got)
	}
}

// TestRunTimesAddUpAttemptsAndNoWaiting checks that a job's run time is the sum of its attempts' run times,
// without the time between them.
func TestRunTimesAddUpAttemptsAndNoWaiting(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(func(j *spec.Job) { j.Retry.MaxAttempts = 2 })
	ran := func(d time.Duration, code int) {
		s.exit(id, attempt, 0, failure.Exit{Cause: failure.CauseExited, Code: code, StartedAt: ranAt, FinishedAt: ranAt.Add(d)})
		mustExec(t, s.pool, `UPDATE allocations SET reserved_at = now() - $2::interval WHERE job = $1`, id, 2*d)
	}
	ran(100*time.Second, 1)
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Fatalf("settled as %+v", r)
	}
	mustExec(t, s.pool, `UPDATE jobs SET submitted_at = now() - interval '9 hours' WHERE id = $1`, id)
	attempt = s.place(id, "m0")
	s.claim(id, attempt, 0)
	s.run(id)
	ran(30*time.Second, 0)
	s.settle(id, attempt)
	w := db.Work{Tenant: "default", Name: "x"}
	if got := s.runs(w)[w]; len(got) != 1 || got[0] != 130 {
		t.Errorf("it ran %v seconds, want 130", got)
	}
}

// TestRunTimesOfElementsAndSteps checks that the run times for an element come from other elements of its
// array, and the run times for a step from earlier pipelines of the same name.
func TestRunTimesOfElementsAndSteps(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.past("default", "x", berth.Succeeded, 90) // not an element
	array := s.array(8, nil)
	s.tend(array)
	for i := range 4 {
		mustExec(t, s.pool, `UPDATE jobs SET ran_ms = $2 WHERE id = $1`, s.element(array, i), 1000*(i+100))
		code := 0
		if i == 1 {
			code = 1
		}
		s.finish(s.element(array, i), code)
	}
	element := db.Work{Tenant: "default", Name: "x", Parent: array}

	old := s.pipeline(spec.FailFast, "a", "b: a")
	mustExec(t, s.pool, `UPDATE jobs SET ran_ms = 7000 WHERE id = $1`, s.step(old, "a"))
	s.finish(s.step(old, "a"), 0)
	next := s.pipeline(spec.FailFast, "a", "b: a")
	step := db.Work{Tenant: "default", Name: "a", Parent: next, Step: "a"}
	if got := s.runs(step); len(got) != 0 {
		t.Errorf("the pipeline has not ended, and its step counts: %v", got)
	}
	s.tend(old)
	mustExec(t, s.pool, `UPDATE jobs SET ran_ms = 9000 WHERE id = $1`, s.step(old, "b"))
	s.finish(s.step(old, "b"), 0)
	s.tend(old)
	if state := s.tend(old); state != berth.Succeeded {
		t.Fatalf("the pipeline is %s", state)
	}
	other := db.Work{Tenant: "default", Name: "b", Parent: next, Step: "b"}
	want := map[db.Work][]int{element: {103, 102, 100}, step: {7}, other: {9}}
	if diff := cmp.Diff(want, s.runs(element, step, other, db.Work{Tenant: "default", Name: "c", Parent: next, Step: "c"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestRunTimesReadFewRows checks that a lookup of run times reads few rows, however many jobs are stored.
func TestRunTimesReadFewRows(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	array, pipeline := s.array(8, nil), s.pipeline(spec.FailFast, "a")
	mustExec(t, s.pool, `
		INSERT INTO jobs (id, tenant, name, class, priority, preemptible, state, grace_ms, lost_after_ms, actor, submitted_at, finished_at, ran_ms)
		SELECT gen_random_uuid(), 'a', CASE WHEN i % 2 = 0 THEN 'train' ELSE 'p' END, 'c', 500, true, 'succeeded', 0, 0, 'test', now() + i * interval '1 second', now(), 1000
		FROM generate_series(1, 8000) AS i`)
	mustExec(t, s.pool, `
		INSERT INTO jobs (id, tenant, name, class, priority, preemptible, state, grace_ms, lost_after_ms, actor, submitted_at, finished_at, ran_ms, parent, array_index)
		SELECT gen_random_uuid(), 'default', 'x', 'c', 500, true, 'succeeded', 0, 0, 'test', now(), now(), 1000, $1, i
		FROM generate_series(1, 4000) AS i`, array)
	mustExec(t, s.pool, `ANALYZE jobs`)
	conn, err := s.beside().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `SET plan_cache_mode = force_generic_plan`); err != nil { // as db.Open sets it
		t.Fatal(err)
	}
	for what, row := range map[string]struct {
		work        db.Work
		found, most int
	}{
		"own":                  {db.Work{Tenant: "a", Name: "train"}, 5, 50},
		"of nobody":            {db.Work{Tenant: "a", Name: "rare"}, 0, 50},
		"another tenant's":     {db.Work{Tenant: "b", Name: "train"}, 0, 1100},
		"element":              {db.Work{Tenant: "default", Name: "x", Parent: array}, 5, 50},
		"step of a rare name":  {db.Work{Tenant: "default", Name: "a", Parent: array, Step: "a"}, 0, 50},
		"step of another's":    {db.Work{Tenant: "default", Name: "a", Parent: pipeline, Step: "a"}, 0, 1100},
		"element of something": {db.Work{Tenant: "default", Name: "x", Parent: pipeline}, 0, 50},
	} {
		sql, args := row.work.Query()
		found, read := rowsRead(t, conn.Conn(), sql, args)
		if found != row.found || read > row.most {
			t.Errorf("%s: %d runs, after reading %d rows; want %d, after at most %d", what, found, read, row.found, row.most)
		}
	}
}

// TestLatestPassesOverJobsThatNeverRan checks that a cancel of a long queue does not hide the jobs that ran.
func TestLatestPassesOverJobsThatNeverRan(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `INSERT INTO classes (class, request) VALUES ('c', '{}') ON CONFLICT DO NOTHING`)
	s.past("a", "train", berth.Succeeded, 3)
	s.past("a", "train", berth.Failed, 2)
	s.past("a", "train", berth.Succeeded, 1)
	s.past("a", "waiting", berth.Canceled, make([]int, db.LatestEnded+1)...)
	list, err := s.db.Attempts.Latest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ran []time.Duration
	for _, j := range list {
		ran = append(ran, j.Ran)
	}
	if diff := cmp.Diff([]time.Duration{3 * time.Second, 2 * time.Second, time.Second}, ran); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
