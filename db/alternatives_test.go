package db_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// picky asks for 2 H100, after ten minutes for 1 A100, and after an hour for no GPU at all.
func picky(j *spec.Job) {
	j.Resources.GPUs, j.Resources.GPUType = 2000, spec.StringList{"H100"}
	j.Retry.MaxAttempts, j.Retry.Backoff = 9, spec.Backoff{Factor: 1}
	j.Alternatives = []spec.Alternative{
		{After: spec.Duration(10 * time.Minute), GPUs: new(spec.MilliGPU(1000)), GPUType: &spec.StringList{"A100"}},
		{After: spec.Duration(time.Hour), GPUs: new(spec.MilliGPU(0)), ShmSize: new(spec.MiB(64))},
	}
}

// row returns a job as placement reads it.
func (s *stage) row(id berth.JobID) db.QueueJob {
	s.t.Helper()
	row, _, err := s.db.Queue.Row(s.t.Context(), "", id)
	if err != nil {
		s.t.Fatal(err)
	}
	return row
}

// got checks the alternative in force, and that the class of the row is its class.
func (s *stage) got(id berth.JobID, want int) {
	s.t.Helper()
	row := s.row(id)
	if row.InForce != want || row.Class != row.Alternatives[want] {
		s.t.Errorf("the job has alternative %d with class %s of %v, want %d", row.InForce, row.Class, row.Alternatives, want)
	}
	if job := s.job(id); job.Alternative == nil || *job.Alternative != want {
		s.t.Errorf("the job shows alternative %v, want %d", job.Alternative, want)
	}
}

// starting is a start of a job with one of its alternatives.
func (s *stage) starting(id berth.JobID, alternative int, ranks ...berth.Grant) berth.Start {
	s.t.Helper()
	x := s.start(id, ranks...)
	x.Alternative = alternative
	return x
}

// requeues ends the attempt of a job by a failure.
func (s *stage) requeues(id berth.JobID) {
	s.t.Helper()
	attempt := one[int](s, `SELECT attempt FROM jobs WHERE id = $1`, id)
	s.claim(id, attempt, 0)
	s.run(id)
	s.exit(id, attempt, 0, exited(1))
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		s.t.Fatalf("settled as %+v", r)
	}
}

func TestAStartPutsItsAlternativeInForce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.queued(picky)
	s.got(id, 0)
	row := s.row(id)
	requests, err := s.db.Queue.Requests(t.Context(), row.Alternatives)
	if err != nil || len(requests) != 3 || requests[row.Alternatives[1]].GPUTypes[0] != "A100" {
		t.Errorf("the classes are %+v, %v", requests, err)
	}
	if a, b := row.Opens[1].Sub(row.Opens[0]), row.Opens[2].Sub(row.Opens[0]); a != 10*time.Minute || b != time.Hour {
		t.Errorf("the alternatives open after %s and %s", a, b)
	}
	s.commit(s.term(), s.starting(id, 1, on("m1", berth.DeviceShare{Index: 0, Milli: 1000})))
	s.got(id, 1)
	job := s.job(id)
	if job.Status != berth.Scheduled || len(job.Attempts) != 1 || job.Attempts[0].Alternative == nil || *job.Attempts[0].Alternative != 1 {
		t.Errorf("the job is %+v", job)
	}
	want := wire.EventFacts{Alternative: &wire.AlternativeChange{From: 0, To: 1}}
	e := lastEvent(s, id)
	if e.Facts != nil && e.Facts.Alternative != nil {
		e.Facts.Alternative.WaitedSeconds = 0 // the time of this test, rounded
	}
	if e.Kind != wire.EventAlternative || e.Attempt != 1 || cmp.Diff(&want, e.Facts) != "" ||
		!strings.Contains(e.Detail, "alternative 1 ") {
		t.Errorf("the last event is %+v", e)
	}
	// Another attempt on the same hardware is no change, and one on the first is.
	s.requeues(id)
	s.got(id, 1)
	s.commit(s.term(), s.starting(id, 1, on("m1", berth.DeviceShare{Index: 0, Milli: 1000})))
	if e := lastEvent(s, id); e.Kind != wire.EventState {
		t.Errorf("the last event is %+v", e)
	}
	s.requeues(id)
	s.commit(s.term(), s.starting(id, 0, on("m0", berth.DeviceShare{Index: 0, Milli: 1000}, berth.DeviceShare{Index: 1, Milli: 1000})))
	s.got(id, 0)
	if e := lastEvent(s, id); e.Facts == nil || e.Facts.Alternative == nil || e.Facts.Alternative.To != 0 || !strings.Contains(e.Detail, "resources") {
		t.Errorf("the last event is %+v", e)
	}
}

func TestAJobWithoutAlternativesHasNone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.queued(nil)
	if row, job := s.row(id), s.job(id); row.Alternatives != nil || row.Opens != nil || job.Alternative != nil {
		t.Errorf("the row is %+v, the job shows %v", row, job.Alternative)
	}
	s.commit(s.term(), s.start(id, on("m1")))
	if job := s.job(id); job.Attempts[0].Alternative != nil || lastEvent(s, id).Kind != wire.EventState {
		t.Errorf("the attempt shows %+v", job.Attempts[0])
	}
}

// The rows refuse a request other than that of the alternative in force, whichever process writes it.
func TestTheClassIsThatOfTheAlternativeInForce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.queued(picky)
	for name, sql := range map[string]string{
		"another alternative with the class of the first": `UPDATE jobs SET alternative = 1 WHERE id = $1`,
		"a number that the job does not have":             `UPDATE jobs SET alternative = 3 WHERE id = $1`,
		"no list":                                         `UPDATE jobs SET alternatives = NULL, alternative = 1 WHERE id = $1`,
	} {
		_, err := s.pool.Exec(t.Context(), sql, id)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.ConstraintName != "jobs_alternative" {
			t.Errorf("%s: got %v", name, err)
		}
	}
	// A start beyond the list is refused as a whole.
	c, err := s.db.Queue.CommitStarts(t.Context(), s.term(), []berth.Start{s.starting(id, 5, on("m1"))})
	if err != nil || len(c.Refused) != 1 {
		t.Errorf("got %+v, %v", c, err)
	}
	s.got(id, 0)
}

// A berthd of the version before starts the request in force and grows the class alone.
func TestTheVersionBeforeLeavesTheAlternativeInForce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.queued(picky)
	s.commit(s.term(), s.starting(id, 1, on("m1", berth.DeviceShare{Index: 0, Milli: 1000})))
	s.requeues(id)
	mustExec(t, s.pool, `INSERT INTO classes (class, request) VALUES ('grown', '{}')`)
	mustExec(t, s.pool, `UPDATE jobs SET class = 'grown', version = version + 1 WHERE id = $1`, id)
	s.got(id, 1)
	attempt := s.place(id, "m1") // the statements of the version before
	s.got(id, 1)
	if job := s.job(id); attempt != 2 || len(job.Attempts) != 2 || job.Attempts[1].Alternative != nil {
		t.Errorf("the attempts are %+v", job.Attempts)
	}
}

func TestMoreMemoryIsForEveryAlternative(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.queued(func(j *spec.Job) {
		picky(j)
		j.Retry.OnOOM = "grow"
		j.Alternatives[0].Memory = new(spec.MiB(4000))
	})
	s.commit(s.term(), s.starting(id, 1, on("m1", berth.DeviceShare{Index: 0, Milli: 1000})))
	s.claim(id, 1, 0)
	s.run(id)
	oom := exited(137)
	oom.OOMKilled = true
	s.exit(id, 1, 0, oom)
	if r := s.settle(id, 1); r.Next != berth.Retrying {
		t.Fatalf("settled as %+v", r)
	}
	s.got(id, 1)
	row := s.row(id)
	requests, err := s.db.Queue.Requests(t.Context(), row.Alternatives)
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for _, class := range row.Alternatives {
		got = append(got, requests[class].MemoryMiB)
	}
	if want := []int64{3072, 6000, 3072}; !slices.Equal(got, want) {
		t.Errorf("the requests have %v MiB, want %v", got, want)
	}
}

// Each wait counts from its own beginning, without the time on hold.
func TestAlternativesOpenByTheTimeOfTheWait(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.queued(picky)
	waits := func() time.Duration {
		t.Helper()
		return time.Duration(one[int64](s, `SELECT (extract(epoch FROM now() - alternatives_from) * 1000)::bigint FROM jobs WHERE id = $1`, id)) * time.Millisecond
	}
	between := func(when string, least, most time.Duration) {
		t.Helper()
		if got := waits(); got < least || got > most {
			t.Errorf("%s the wait is %s, want %s to %s", when, got, least, most)
		}
	}
	const slack = 5 * time.Minute // of a slow machine
	mustExec(t, s.pool, `UPDATE jobs SET alternatives_from = alternatives_from - interval '2 hours' WHERE id = $1`, id)
	between("queued", 2*time.Hour, 2*time.Hour+slack)
	s.hold(id)
	mustExec(t, s.pool, `UPDATE jobs SET held_at = held_at - interval '30 minutes' WHERE id = $1`, id)
	s.release(id)
	between("after a hold", 90*time.Minute-time.Second, 90*time.Minute+slack)
	s.commit(s.term(), s.starting(id, 0, on("m1")))
	s.requeues(id)
	between("after an attempt", -time.Second, slack)
	// A hold that began while the job ran ends after the wait began.
	mustExec(t, s.pool, `UPDATE jobs SET held = true, held_at = now() - interval '3 hours', alternatives_from = alternatives_from - interval '1 hour' WHERE id = $1`, id)
	s.release(id)
	between("after a suspension", -time.Second, slack)
}

func TestTheMachineGetsTheHardwareInForce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host", "boot")
	id := s.queued(func(j *spec.Job) { picky(j); j.Env = map[string]string{"LR": "1"} })
	grant := on("m0")
	grant.Epoch = a.epoch
	s.commit(s.term(), s.starting(id, 2, grant))
	c, err := a.claims(id, 1)
	if err != nil {
		t.Fatal(err)
	}
	if r := c.Spec.Resources; r.GPUs != 0 || r.GPUType != nil || r.ShmSize != 64 || c.Spec.Alternatives != nil {
		t.Errorf("the machine gets %+v, %+v", r, c.Spec.Alternatives)
	}
	if c.Spec.Env[spec.EnvAlternative] != "2" || c.Spec.Env["LR"] != "1" {
		t.Errorf("the environment is %v", c.Spec.Env)
	}
}

func TestEachElementHasTheAlternativesOfItsArray(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	array := s.array(2, picky)
	s.load(array)
	s.tend(array)
	one, two := s.element(array, 0), s.element(array, 1)
	s.load(one)
	s.load(two)
	s.commit(s.term(), s.starting(one, 1, on("m1", berth.DeviceShare{Index: 0, Milli: 1000})))
	s.got(one, 1)
	s.got(two, 0)
	// The version before inserts no alternatives; its format is 0.
	old := berth.NewJobID(time.Now())
	mustExec(t, s.pool, `INSERT INTO jobs (id, tenant, parent, array_index, name, class, priority, preemptible, run_limit_ms, grace_ms, lost_after_ms, actor)
		SELECT $1, tenant, id, 7, name, class, priority, preemptible, run_limit_ms, grace_ms, lost_after_ms, 'workflow' FROM jobs WHERE id = $2`, old, array)
	s.got(old, 0)
}

// A commit, a cancel and a hold of one job wait for its row: one of them comes first, and a start that
// comes later is refused. In no order the job has another alternative than its allocations.
func TestAStartWithAnAlternativeRacesWithOtherChanges(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	for range 10 {
		id := s.queued(picky)
		start := s.starting(id, 2, on("m1"))
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := s.db.Queue.CommitStarts(t.Context(), term, []berth.Start{start}); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if err := s.db.Jobs.Hold(t.Context(), "", id, "user:test"); err != nil && berth.CodeOf(err) != berth.CodeConflict {
				t.Error(err)
			}
		})
		wg.Wait()
		want := 0
		if s.job(id).Status == berth.Scheduled {
			want = 2
		}
		s.got(id, want)
		if n := one[int](s, `SELECT count(*) FROM allocations WHERE job = $1`, id); n != want/2 {
			t.Errorf("%d allocations, and alternative %d", n, want)
		}
		s.cancel(id)
		mustExec(t, s.pool, `UPDATE allocations SET state = 'released', released_at = now() WHERE job = $1`, id)
	}
}

// A deposed leader changes no alternative.
func TestAFormerLeaderPutsNoAlternativeInForce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old := s.term()
	id := s.queued(picky)
	start := s.starting(id, 2, on("m1"))
	s.expire()
	s.lead("next", time.Hour)
	if _, err := s.db.Queue.CommitStarts(t.Context(), old, []berth.Start{start}); err == nil {
		t.Error("a deposed leader has committed")
	}
	s.got(id, 0)
}

func TestARetryHasTheAlternativesOfItsFile(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.queued(picky)
	s.commit(s.term(), s.starting(id, 2, on("m1")))
	s.claim(id, 1, 0)
	s.run(id)
	s.cancel(id)
	s.exit(id, 1, 0, exited(143))
	s.settle(id, 1)
	again := s.retry(id, db.RetryOptions{Fresh: true})
	s.got(again.ID, 0)
	refusedTooOld(t, "alternatives", s.oldCopies(&id, nil, time.Time{}))
}

func TestTheVersionBeforeCopiesNoFileWithAlternatives(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	inner := graph(spec.FailFast, "a")
	step := s.spec(picky)
	step.Name = ""
	inner.Jobs["b"] = step
	raw, err := json.Marshal(inner)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]int{
		string(raw): 2, `{"alternatives": [{}]}`: 2, `{"jobs": {"a": {"jobs": {"b": {"alternatives": [{}]}}}}}`: 2,
		`{"network": {}}`: 1, `{"jobs": {"a": {"stall": {}}}}`: 1, `{"env": {"alternatives": ""}}`: 0,
	} {
		if got := one[int](s, `SELECT format_of($1::jsonb)`, file); got != want {
			t.Errorf("%s has format %d, want %d", file, got, want)
		}
	}
}
