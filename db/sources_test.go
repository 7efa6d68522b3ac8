package db_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// saves gives a job checkpoints, of which keep stay.
func saves(keep int) func(*spec.Job) {
	return func(j *spec.Job) { j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: keep} }
}

// from makes a job start from a checkpoint.
func from(job berth.JobID, step int64) func(*spec.Job) {
	return func(j *spec.Job) {
		saves(2)(j)
		j.Checkpoint.From = spec.StepRef{Job: job, Step: &step}.String()
	}
}

// saved stores verified steps of a job's attempt, with a part of each member.
func (s *stage) saved(id berth.JobID, attempt int, steps ...int64) {
	s.t.Helper()
	for _, step := range steps {
		mustExec(s.t, s.pool, `INSERT INTO checkpoints (job, step, attempt, ranks, state, bytes)
			SELECT $1, $2, $3, (spec ->> 'members')::int, 'verified', 9 FROM job_specs WHERE job = $1`, id, step, attempt)
		mustExec(s.t, s.pool, `INSERT INTO checkpoint_shards (job, step, attempt, rank, manifest, sha256, bytes)
			SELECT $1, $2::bigint, $3, r, 'm' || $2::bigint || '-' || r, 'x', 9 FROM job_specs, generate_series(0, (spec ->> 'members')::int - 1) r
			WHERE job = $1`, id, step, attempt)
	}
	mustExec(s.t, s.pool, `UPDATE jobs SET has_checkpoint = has_checkpoint OR $2 WHERE id = $1`, id, len(steps) > 0)
}

// fails runs a job that saves some steps and fails.
func (s *stage) fails(id berth.JobID, steps ...int64) berth.JobID {
	s.t.Helper()
	s.endsAs(id, exited(1), steps...)
	return id
}

// endsAs runs a job of one member that saves some steps and then ends with the given exit.
func (s *stage) endsAs(id berth.JobID, x failure.Exit, steps ...int64) {
	s.t.Helper()
	attempt := s.place(id, "m0")
	s.claim(id, attempt, 0)
	s.run(id)
	s.saved(id, attempt, steps...)
	s.exit(id, attempt, 0, x)
	s.settle(id, attempt)
}

func (s *stage) retry(id berth.JobID, o db.RetryOptions) wire.Job {
	s.t.Helper()
	job, _, err := s.db.Retries.Retry(s.t.Context(), "default", id, o, "user:test")
	if err != nil {
		s.t.Fatal(err)
	}
	return s.job(job.ID)
}

// wantSource compares the checkpoint from which a job started; "" for none.
func (s *stage) wantSource(what string, job wire.Job, want string) {
	s.t.Helper()
	got := ""
	if f := job.StartedFrom; f != nil {
		got = fmt.Sprintf("%s@%d of attempt %d", f.Job, f.Step, f.Attempt)
	}
	if got != want {
		s.t.Errorf("%s: job %s started from %q, want %q", what, job.ID, got, want)
	}
}

func at(job berth.JobID, step int64, attempt int) string {
	return fmt.Sprintf("%s@%d of attempt %d", job, step, attempt)
}

// Where the store did not return a step, another job starts from an older one.
func TestOtherJobsStartFromAPassedOverStepLast(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.fails(s.submit(saves(2)), 3, 5)
	mustExec(t, s.pool, `UPDATE checkpoints SET passed_over = step = 5 WHERE job = $1`, id)
	s.wantSource("a retry", s.retry(id, db.RetryOptions{}), at(id, 3, 1))
	started := s.submit(func(j *spec.Job) { saves(2)(j); j.Checkpoint.From = string(id) })
	s.wantSource("a start from the job", s.job(started), at(id, 3, 1))
	started = s.submit(from(id, 5))
	s.wantSource("a start from the step", s.job(started), at(id, 5, 1))
}

func TestARetryResumesWhateverEndedTheJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for what, end := range map[string]func(id berth.JobID){
		"dead letter": func(id berth.JobID) { s.endsAs(id, exited(1), 9, 17) },
		"time limit": func(id berth.JobID) {
			s.endsAs(id, failure.Exit{Cause: failure.CauseTimeLimit, Code: 143, StartedAt: ranAt, FinishedAt: ranAt}, 9, 17)
		},
		"canceled": func(id berth.JobID) {
			attempt := s.place(id, "m0")
			s.claim(id, attempt, 0)
			s.run(id)
			s.saved(id, attempt, 9, 17)
			s.cancel(id)
			s.exit(id, attempt, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 143, StartedAt: ranAt, FinishedAt: ranAt})
			s.settle(id, attempt)
		},
	} {
		id := s.submit(saves(2))
		end(id)
		if st := s.job(id).Status; !st.Terminal() || st == berth.Succeeded {
			t.Fatalf("%s: the job is %s", what, st)
		}
		job := s.retry(id, db.RetryOptions{})
		s.wantSource(what, job, at(id, 17, 1))
		events, err := s.db.Jobs.Events(t.Context(), "default", job.ID, 0, 10)
		if err != nil || len(events) != 2 || events[1].Kind != wire.EventStartsFrom || *events[1].Facts.Step != 17 || events[1].Facts.Job != id {
			t.Errorf("%s: events are %+v, %v", what, events, err)
		}
		if old := s.job(id); !old.Checkpoints[0].Used || old.Checkpoints[1].Used {
			t.Errorf("%s: checkpoints of the source are %+v", what, old.Checkpoints)
		}
	}
}

func TestAJobThatSucceededOrNeverSavedIsRetriedFromItsBeginning(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	done := s.submit(saves(2))
	s.endsAs(done, exited(0), 40)
	s.wantSource("succeeded", s.retry(done, db.RetryOptions{}), "")
	s.wantSource("never saved", s.retry(s.fails(s.submit(saves(2))), db.RetryOptions{}), "")
	s.wantSource("without checkpoints", s.retry(s.fails(s.submit(nil)), db.RetryOptions{}), "")
	s.wantSource("fresh", s.retry(s.fails(s.submit(saves(2)), 17), db.RetryOptions{Fresh: true}), "")
}

// A job whose checkpoints are gone must not start from nothing unless the user says so.
func TestARetryOfAJobWithoutAnIntactCheckpointIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	bad, archived := s.fails(s.submit(saves(2)), 17), s.fails(s.submit(saves(2)), 17)
	mustExec(t, s.pool, `UPDATE checkpoints SET state = 'bad' WHERE job = $1`, bad)
	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now() WHERE job = $1`, archived)
	s.archive(1)
	for what, id := range map[string]berth.JobID{"damaged": bad, "archived": archived} {
		_, _, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{}, "user:test")
		if berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "berth retry --fresh "+string(id)) {
			t.Errorf("%s: %v", what, err)
		}
		s.wantSource(what, s.retry(id, db.RetryOptions{Fresh: true}), "")
	}
}

func TestTheOptionsOfARetryAreItsIdentity(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.fails(s.submit(saves(2)), 17)
	resumed, fresh := s.retry(id, db.RetryOptions{}), s.retry(id, db.RetryOptions{Fresh: true})
	if resumed.ID == fresh.ID || *s.job(id).RetriedBy != fresh.ID {
		t.Errorf("retries are %s and %s; the job names %s", resumed.ID, fresh.ID, *s.job(id).RetriedBy)
	}
	for _, archived := range []bool{false, true} {
		if archived {
			for _, job := range []berth.JobID{resumed.ID, fresh.ID} {
				s.cancel(job)
			}
			mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now()`)
			s.archive(3)
		}
		if a, b := s.retry(id, db.RetryOptions{}), s.retry(id, db.RetryOptions{Fresh: true}); a.ID != resumed.ID || b.ID != fresh.ID {
			t.Errorf("archived %t: repeats are %s and %s", archived, a.ID, b.ID)
		}
	}

	// A version before this table recorded the one retry of a job in its row alone.
	earlier := s.fails(s.submit(saves(2)), 17)
	first := s.retry(earlier, db.RetryOptions{})
	mustExec(t, s.pool, `DELETE FROM job_retries WHERE job = $1`, earlier)
	if again := s.retry(earlier, db.RetryOptions{}); again.ID != first.ID {
		t.Errorf("a repeat is %s, want %s", again.ID, first.ID)
	}
	if f := s.retry(earlier, db.RetryOptions{Fresh: true}); f.ID == first.ID {
		t.Error("a fresh retry is the first one")
	}
}

func TestARetriedFileResumesToo(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.fails(s.submit(saves(2)), 17)
	as := *s.job(id).Spec
	as.Command = []string{"fixed"}
	job := s.retry(id, db.RetryOptions{Spec: &as})
	s.wantSource("a fixed file", job, at(id, 17, 1))
	if again := s.retry(id, db.RetryOptions{Spec: &as}); again.ID != job.ID {
		t.Errorf("a repeat is %s", again.ID)
	}
	fresh := s.retry(id, db.RetryOptions{Spec: &as, Fresh: true})
	s.wantSource("fresh", fresh, "")
	if fresh.ID == job.ID {
		t.Error("the fresh retry is the first one")
	}
	other := s.fails(s.submit(saves(2)), 3)
	moved := *s.job(id).Spec
	from(other, 3)(&moved)
	s.wantSource("a file that names another checkpoint", s.retry(s.fails(s.submit(saves(2)), 17), db.RetryOptions{Spec: &moved}), at(other, 3, 1))
	wide := *s.job(id).Spec
	wide.Members = 2
	_, _, err := s.db.Retries.Retry(t.Context(), "default", s.fails(s.submit(saves(2)), 17), db.RetryOptions{Spec: &wide}, "user:test")
	if !berth.IsSlug(err, db.SlugNoCheckpoint) || !strings.Contains(err.Error(), "1 member, and this job has 2") {
		t.Errorf("another number of members: %v", err)
	}
}

// Retries of retries: the work of the whole chain counts, and damage leads to older steps.
func TestARetryOfARetryResumesAlongTheChain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	first := s.fails(s.submit(saves(3)), 5, 9, 17)
	second := s.retry(first, db.RetryOptions{})
	s.fails(second.ID)
	third := s.retry(second.ID, db.RetryOptions{})
	s.wantSource("a retry that saved nothing", third, at(first, 17, 1))

	a, _ := s.register("host1", "agent1")
	attempt := s.place(third.ID, "m0")
	c := a.mustClaim(third.ID, attempt)
	want := []wire.RestorePoint{{Job: first, Step: 17, Attempt: 1, Manifest: "m17-0", SHA256: "x"}}
	if d := cmp.Diff(want, c.Restore); d != "" || !c.HadCheckpoint {
		t.Fatalf("had %t, restore points (-want +got):\n%s", c.HadCheckpoint, d)
	}
	damaged := wire.CheckpointReport{AgentBoot: a.boot, Epoch: a.epoch, Alloc: s.alloc(third.ID, attempt), Job: third.ID, Attempt: attempt,
		Step: 17, OfJob: first, OfAttempt: 1, Bad: "sha256 differs"}
	other := damaged
	other.Step = 9 // it started from step 17 alone
	for _, p := range []wire.CheckpointReport{other, damaged} {
		if _, err := s.db.Objects.RegisterCheckpoint(t.Context(), a.machine, p); err != nil {
			t.Fatal(err)
		}
	}
	states := map[int64]berth.CheckpointState{}
	for _, p := range s.job(first).Checkpoints {
		states[p.Step] = p.State
	}
	if d := cmp.Diff(map[int64]berth.CheckpointState{5: "verified", 9: "verified", 17: "bad"}, states); d != "" {
		t.Errorf("checkpoints of the source (-want +got):\n%s", d)
	}
	for _, id := range []berth.JobID{first, third.ID} {
		if e := lastEvent(s, id); e.Kind != wire.EventCheckpointRejected || !strings.Contains(e.Detail, "step 17 of attempt 1") {
			t.Errorf("last event of %s is %+v", id, e)
		}
	}
	if c := a.mustClaim(third.ID, attempt); len(c.Restore) != 0 || !c.HadCheckpoint {
		t.Errorf("to be restored are %+v", c.Restore)
	}
	s.exit(third.ID, attempt, 0, failure.Exit{Cause: failure.CauseCheckpointCorrupt, Message: "none verifies"})
	s.settle(third.ID, attempt)
	fourth := s.retry(third.ID, db.RetryOptions{})
	s.wantSource("after damage", fourth, at(first, 9, 1))
	s.fails(fourth.ID, 10)
	s.wantSource("its own step comes first", s.retry(fourth.ID, db.RetryOptions{}), at(fourth.ID, 10, 1))
}

func TestAJobFileNamesACheckpoint(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `INSERT INTO tenants (id) VALUES ('other') ON CONFLICT DO NOTHING`)
	source := s.fails(s.submit(saves(3)), 5, 9, 17)
	gang := s.submit(func(j *spec.Job) { saves(3)(j); j.Members = 2 })
	s.saved(gang, 1, 3)
	foreign, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "other", Spec: s.spec(saves(2)), Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	s.saved(foreign.ID, 1, 3)
	archived := s.fails(s.submit(saves(2)), 3)
	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now() WHERE job = $1`, archived)
	s.archive(1)
	array := s.array(2, saves(2))
	none := berth.JobID("01920000-0000-7000-8000-00000000000a")
	newest := func(id berth.JobID) func(*spec.Job) {
		return func(j *spec.Job) { saves(2)(j); j.Checkpoint.From = string(id) }
	}
	for what, c := range map[string]struct {
		edit func(*spec.Job)
		want string
		code berth.Code
		says string
	}{
		"the newest":            {newest(source), at(source, 17, 1), "", ""},
		"a step":                {from(source, 9), at(source, 9, 1), "", ""},
		"a running gang's":      {func(j *spec.Job) { newest(gang)(j); j.Members = 2 }, at(gang, 3, 1), "", ""},
		"fewer members":         {newest(gang), "", berth.CodeInvalid, "2 members, and this job has 1"},
		"a step that is not":    {from(source, 10), "", berth.CodeInvalid, "no verified checkpoint of step 10"},
		"an array":              {newest(array), "", berth.CodeInvalid, "is of kind array"},
		"no checkpoint at all":  {newest(s.submit(nil)), "", berth.CodeInvalid, "has no verified checkpoint"},
		"an archived job":       {newest(archived), "", berth.CodeInvalid, "was archived"},
		"no job":                {newest(none), "", berth.CodeNotFound, "no such job " + string(none)},
		"a job of other tenant": {newest(foreign.ID), "", berth.CodeNotFound, "no such job " + string(foreign.ID)},
	} {
		before := one[int](s, `SELECT count(*) FROM jobs`)
		job, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: s.spec(c.edit), Actor: "user:test", IdemKey: what})
		if c.code == "" {
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			s.wantSource(what+", answer", job, c.want)
			s.wantSource(what, s.job(job.ID), c.want)
			continue
		}
		e, _ := errors.AsType[*berth.Error](err)
		if berth.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) || len(e.Fields) != 1 || e.Fields[0].Field != "checkpoint.from" {
			t.Errorf("%s: %v, %+v", what, err, e)
		}
		if n := one[int](s, `SELECT count(*) FROM jobs`); n != before {
			t.Errorf("%s: %d jobs were stored", what, n-before)
		}
	}
	// The key of a job is looked up before a refusal: its checkpoint may be gone by now.
	first, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: s.spec(from(source, 9)), Actor: "user:test", IdemKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `UPDATE checkpoints SET state = 'bad' WHERE job = $1`, source)
	again, created, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: s.spec(from(source, 9)), Actor: "user:test", IdemKey: "k"})
	if err != nil || created || again.ID != first.ID {
		t.Errorf("a repeat is %s, created %t, %v", again.ID, created, err)
	}
}

// registered registers a step of a running job as its agent does.
func (s *stage) registered(a *agent, id berth.JobID, step int64) {
	s.t.Helper()
	attempt := s.job(id).Attempt
	if _, err := s.db.Objects.RegisterCheckpoint(s.t.Context(), a.machine, wire.CheckpointReport{AgentBoot: a.boot, Epoch: a.epoch,
		Alloc: s.alloc(id, attempt), Job: id, Attempt: attempt, OfAttempt: attempt, Step: step,
		Manifest: manifestKey(id, attempt, 0, step), SHA256: "x", Bytes: 1}); err != nil {
		s.t.Fatal(err)
	}
}

// verifiedSteps lists the verified steps of a job, newest first.
func (s *stage) verifiedSteps(id berth.JobID) string {
	s.t.Helper()
	return one[string](s, `SELECT coalesce(string_agg(step::text, ' ' ORDER BY step DESC), '') FROM checkpoints WHERE job = $1 AND state = 'verified'`, id)
}

func TestAStepThatALiveJobStartedFromIsNotPruned(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	source := s.submit(saves(1))
	a.mustClaim(source, s.place(source, "m0"))
	s.registered(a, source, 1)
	live := s.submit(from(source, 1))
	s.registered(a, source, 2)
	mustExec(t, s.pool, `UPDATE checkpoints SET pinned_at = now() WHERE step = 2`)
	s.registered(a, source, 3)
	s.registered(a, source, 4)
	if got := s.verifiedSteps(source); got != "4 2 1" {
		t.Errorf("verified are %s; want the used 1, the pinned 2 and the newest", got)
	}
	// The rule holds for every statement, also of a version without it.
	mustExec(t, s.pool, `UPDATE checkpoints SET state = 'pruned' WHERE job = $1`, source)
	if got := s.verifiedSteps(source); got != "2 1" {
		t.Errorf("verified are %s after a careless statement", got)
	}
	if _, err := s.pool.Exec(t.Context(), `DELETE FROM checkpoints WHERE job = $1 AND step = 1`, source); err == nil || !strings.Contains(err.Error(), "is kept") {
		t.Errorf("the used step is deleted: %v", err)
	}
	s.cancel(live)
	mustExec(t, s.pool, `UPDATE checkpoints SET pinned_at = NULL`)
	s.registered(a, source, 5)
	if got := s.verifiedSteps(source); got != "5" {
		t.Errorf("verified are %s once nothing keeps them", got)
	}
}

func TestTheArchiveLeavesOutJobsWithKeptSteps(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	source, pinned, other := s.fails(s.submit(saves(2)), 5, 9), s.fails(s.submit(saves(2)), 5), s.fails(s.submit(saves(2)), 5)
	live := s.submit(from(source, 9))
	mustExec(t, s.pool, `UPDATE checkpoints SET pinned_at = now() WHERE job = $1`, pinned)
	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now()`)
	s.archive(1)
	if n := one[int](s, `SELECT count(*) FROM archived_jobs WHERE id = $1`, other); n != 1 {
		t.Error("the job without a kept step is not archived")
	}
	// A damaged source is a fact that its job still needs.
	mustExec(t, s.pool, `UPDATE checkpoints SET state = 'bad' WHERE job = $1 AND step = 9`, source)
	s.archive(0)
	s.cancel(live)
	s.archive(2)
	if got := s.job(live); got.StartedFrom == nil || got.StartedFrom.Job != source {
		t.Errorf("the archived job forgot its source: %+v", got)
	}
}

// TestASubmitAndAPruneAgree checks both orders of a submit and of a prune, a removal or an archive of its checkpoint:
// whichever comes second sees the first.
func TestASubmitAndAPruneAgree(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	source := s.fails(s.submit(saves(2)), 5, 9)
	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now()`)
	type answer struct {
		job wire.Job
		err error
	}
	done := make(chan answer, 1)
	newest := s.spec(func(j *spec.Job) { saves(2)(j); j.Checkpoint.From = string(source) })
	submit := func() {
		job, _, err := s.db.Jobs.Submit(context.WithoutCancel(t.Context()), db.Submission{Tenant: "default", Spec: newest, Actor: "user:test"})
		done <- answer{job, err}
	}
	// while runs statements about the source in a transaction, starts a submit that has to wait
	// for it, and commits.
	while := func(statements ...string) answer {
		t.Helper()
		if err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
			for _, sql := range statements {
				if _, err := tx.Exec(t.Context(), sql, source); err != nil {
					return fmt.Errorf("%s: %w", sql, err)
				}
			}
			go submit()
			s.blocked(1)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return <-done
	}
	first := while(`SELECT 1 FROM jobs WHERE id = $1 FOR NO KEY UPDATE`,
		`UPDATE checkpoints SET state = 'pruned' WHERE job = $1 AND step = 9`)
	if first.err != nil {
		t.Fatal(first.err)
	}
	s.wantSource("the submit after a prune", first.job, at(source, 5, 1))

	// The archive does not wait for a submit, and does not take its job.
	s.cancel(first.job.ID)
	s.holding(`SELECT 1 FROM jobs WHERE id = '`+string(source)+`' FOR NO KEY UPDATE`, func() {
		s.archive(1) // the canceled job alone
	})
	last := while(`SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE`, `DELETE FROM checkpoints WHERE job = $1`,
		`INSERT INTO archived_jobs (id, tenant, name, state, labels, submitted_at, finished_at, job, events)
			SELECT id, tenant, name, state, labels, submitted_at, finished_at, '{}', '[]' FROM jobs WHERE id = $1`,
		`DELETE FROM jobs WHERE id = $1`)
	if !berth.IsSlug(last.err, db.SlugNoCheckpoint) || !strings.Contains(last.err.Error(), "archived") {
		t.Errorf("the submit after an archive: %v", last.err)
	}
}

func TestAMachineReadsTheSourceOfItsJobAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	source := s.fails(s.submit(saves(2)), 9, 17)
	id := s.retry(source, db.RetryOptions{}).ID
	attempt := s.place(id, "m0")
	ok := db.ObjectAccess{Tenant: "default", Job: source, Attempt: 1, Rank: 0, Step: 17, Session: a.session()}
	if err := s.db.Objects.Authorize(t.Context(), "m0", ok); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("before the claim: %v", err)
	}
	a.mustClaim(id, attempt)
	for _, c := range []struct {
		name    string
		machine berth.MachineID
		edit    func(*db.ObjectAccess)
		refused bool
	}{
		{"the source", "m0", func(*db.ObjectAccess) {}, false},
		{"another step", "m0", func(o *db.ObjectAccess) { o.Step = 9 }, true},
		{"another attempt", "m0", func(o *db.ObjectAccess) { o.Attempt = 2 }, true},
		{"another member", "m0", func(o *db.ObjectAccess) { o.Rank = 1 }, true},
		{"its log", "m0", func(o *db.ObjectAccess) { o.Step = -1 }, true},
		{"a write", "m0", func(o *db.ObjectAccess) { o.Write = true }, true},
		{"another machine", "m1", func(*db.ObjectAccess) {}, true},
		{"another tenant", "m0", func(o *db.ObjectAccess) { o.Tenant = "other" }, true},
	} {
		o := ok
		c.edit(&o)
		if err := s.db.Objects.Authorize(t.Context(), c.machine, o); (err != nil) != c.refused {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	a.report(id, attempt, berth.PhaseSealed, withExit(0))
	if err := s.db.Objects.Authorize(t.Context(), "m0", ok); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("after the end: %v", err)
	}
}

// An agent of the version before would take the source's manifest for a damaged one.
func TestAnAgentThatCannotRestoreASourceDoesNotGetTheJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.retry(s.fails(s.submit(saves(2)), 17), db.RetryOptions{}).ID
	attempt := s.place(id, "m0")
	req := wire.ClaimRequest{AgentBoot: a.boot, Epoch: a.epoch, Alloc: s.alloc(id, attempt), Job: id, Attempt: attempt}
	if _, err := s.db.Agents.Claim(t.Context(), a.machine, req); berth.CodeOf(err) != berth.CodeUnavailable || !strings.Contains(err.Error(), "upgrade the agent") {
		t.Errorf("the claim of an old agent: %v", err)
	}
	a.mustClaim(id, attempt)
}

func TestAnAttemptIsPlacedWithTheStepOfItsSource(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.register("host1", "agent1")
	id := s.retry(s.fails(s.submit(saves(2)), 17), db.RetryOptions{}).ID
	s.load(id)
	s.commit(s.term(), s.start(id, on("m0")))
	if j := s.job(id); len(j.Attempts) != 1 || j.Attempts[0].ResumeFrom == nil || *j.Attempts[0].ResumeFrom != 17 {
		t.Fatalf("attempts are %+v", j.Attempts)
	}
	s.saved(id, 1, 5) // its count begins anew: its own steps come first all the same
	a := &agent{stage: s, machine: "m0", boot: "agent1", epoch: one[int64](s, `SELECT epoch FROM machines WHERE id = 'm0'`)}
	points := a.mustClaim(id, 1).Restore
	for i := range points {
		points[i].Manifest, points[i].SHA256 = "", ""
	}
	if d := cmp.Diff([]int64{5, 17}, []int64{points[0].Step, points[1].Step}); d != "" || points[0].Job != "" || points[1].Job == "" {
		t.Errorf("restore points are %+v", points)
	}
}

func TestRetriedElementsAndStepsResume(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	array := s.array(3, saves(2))
	s.tend(array)
	s.endsAs(s.element(array, 0), exited(0), 40)
	s.fails(s.element(array, 1), 17)
	s.fails(s.element(array, 2))
	s.tend(array)
	again := s.retry(array, db.RetryOptions{Failed: true})
	s.tend(again.ID)
	s.wantSource("element 1", s.job(s.element(again.ID, 1)), at(s.element(array, 1), 17, 1))
	s.wantSource("element 2", s.job(s.element(again.ID, 2)), "")
	whole := s.retry(array, db.RetryOptions{})
	if whole.ID == again.ID {
		t.Fatal("a retry of the whole array is the retry of its failed elements")
	}
	s.tend(whole.ID)
	s.wantSource("element 0 of all", s.job(s.element(whole.ID, 0)), "")
	s.wantSource("element 1 of all", s.job(s.element(whole.ID, 1)), at(s.element(array, 1), 17, 1))
	alone := s.retry(s.element(array, 1), db.RetryOptions{})
	s.wantSource("element 1 alone", alone, at(s.element(array, 1), 17, 1))

	p := graph(spec.Continue, "prep", "fit: prep", "tune")
	for _, name := range []string{"fit", "tune"} {
		j := p.Jobs[name]
		saves(2)(&j)
		p.Jobs[name] = j
	}
	run, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: p.WithDefaults(), Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	s.tend(run.ID)
	s.finish(s.step(run.ID, "prep"), 0)
	s.tend(run.ID)
	s.fails(s.step(run.ID, "fit"), 9)
	s.endsAs(s.step(run.ID, "tune"), exited(0), 40)
	s.tend(run.ID)
	rest := s.retry(run.ID, db.RetryOptions{Failed: true})
	s.wantSource("step fit", s.job(s.step(rest.ID, "fit")), at(s.step(run.ID, "fit"), 9, 1))
	all := s.retry(run.ID, db.RetryOptions{})
	s.wantSource("step fit of all", s.job(s.step(all.ID, "fit")), at(s.step(run.ID, "fit"), 9, 1))
	s.wantSource("step tune of all", s.job(s.step(all.ID, "tune")), "")
	fresh := s.retry(run.ID, db.RetryOptions{Failed: true, Fresh: true})
	s.wantSource("step fit, fresh", s.job(s.step(fresh.ID, "fit")), "")
}

// TestEveryElementAndStepStartsFromTheCheckpointOfItsFile checks arrays and pipelines whose file names a checkpoint.
func TestEveryElementAndStepStartsFromTheCheckpointOfItsFile(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	source := s.fails(s.submit(saves(2)), 5, 9)
	array := s.array(2, from(source, 5))
	s.tend(array)
	for i := range 2 {
		e := s.job(s.element(array, i))
		s.wantSource(fmt.Sprint("element ", i), e, at(source, 5, 1))
		if !one[bool](s, `SELECT has_checkpoint FROM jobs WHERE id = $1`, e.ID) {
			t.Errorf("element %d may start from nothing", i)
		}
	}
	p := graph(spec.FailFast, "a", "b: a")
	j := p.Jobs["b"]
	from(source, 9)(&j)
	p.Jobs["b"] = j
	run, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: p.WithDefaults(), Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	s.wantSource("step b", s.job(s.step(run.ID, "b")), at(source, 9, 1))
	from(source, 7)(&j)
	p.Jobs["b"] = j
	_, _, err = s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: p.WithDefaults(), Actor: "user:test"})
	if e, _ := errors.AsType[*berth.Error](err); !berth.IsSlug(err, db.SlugNoCheckpoint) || e.Fields[0].Field != "jobs.b.checkpoint.from" {
		t.Errorf("a step without its checkpoint: %v", err)
	}
	if d := cmp.Diff(2, one[int](s, `SELECT count(*) FROM job_sources WHERE array_index = -1 AND job IN (SELECT id FROM jobs WHERE parent IS NOT NULL AND array_index IS NOT NULL)`)); d != "" {
		t.Errorf("rows of elements (-want +got):\n%s", d)
	}
}
