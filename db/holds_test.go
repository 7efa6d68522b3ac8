package db_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// holds asks to hold failed attempts for half an hour, and allows two attempts.
func holds(j *spec.Job) {
	j.HoldOnFailure = spec.Duration(30 * time.Minute)
	j.Retry.MaxAttempts = 2
	j.Resources.GPUs = 1000
	j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 2}
}

// debugOf returns the debug job that holds an attempt of a job, "" for none.
func (s *stage) debugOf(id berth.JobID) berth.JobID {
	s.t.Helper()
	return berth.JobID(one[string](s, `SELECT coalesce((SELECT max(debug::text) FROM holds WHERE job = $1), '')`, id))
}

// held is a job whose first attempt failed on m0, with the debug job that holds it.
func (s *stage) held() (id, debug berth.JobID) {
	s.t.Helper()
	id, attempt := s.started(holds)
	s.exit(id, attempt, 0, exited(3))
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		s.t.Fatalf("settled as %+v", r)
	}
	if debug = s.debugOf(id); debug == "" {
		s.t.Fatal("no debug job holds the attempt")
	}
	return id, debug
}

// debugging is held with a debug job that runs on m0.
func (s *stage) debugging() (id, debug berth.JobID) {
	s.t.Helper()
	id, debug = s.held()
	s.claim(debug, s.place(debug, "m0"), 0)
	s.run(debug)
	return id, debug
}

func TestAFailedAttemptIsHeldByADebugJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `UPDATE tenants SET max_queued = 1 WHERE id = 'default'`) // a hold is nothing that the user queues
	id, debug := s.held()
	s.freed() // of the failed member
	if got, want := s.ranks(id, 1)[0], `released {"keep": true, "forget": true}`; got != want {
		t.Errorf("the failed member is %s, want %s", got, want)
	}
	d := s.job(debug)
	if d.Name != "x-debug" || d.Status != berth.Submitted || d.Tenant != "default" || d.SubmittedBy != "user:test" {
		t.Errorf("the debug job is %s %s of %s, by %s", d.Name, d.Status, d.Tenant, d.SubmittedBy)
	}
	if c := d.Spec; c.Members != 1 || c.Entrypoint[0] != "sleep" || c.Command[0] != "1800" || c.Checkpoint != nil ||
		c.Placement.Constraint != `machine.id == "m0"` || c.Resources.GPUs != 1000 || !*c.Preemptible || c.Retry.MaxAttempts != 1 {
		t.Errorf("its spec is %+v", c)
	}
	failed := s.job(id)
	if len(failed.HeldAttempts) != 1 || failed.HeldAttempts[0].Job != debug || failed.HeldAttempts[0].Machine != "m0" || failed.HeldAttempts[0].Seconds != 1800 ||
		failed.HeldAttempts[0].Until != nil || failed.HeldAttempts[0].Status != berth.Submitted {
		t.Errorf("the job shows %+v", failed.HeldAttempts)
	}
	if d.HoldOf == nil || d.HoldOf.Job != id || d.HoldOf.Attempt != 1 {
		t.Errorf("the debug job shows %+v", d.HoldOf)
	}
	events := one[string](s, `SELECT string_agg(kind || ' ' || detail, E'\n' ORDER BY seq) FROM job_events WHERE job = $1 AND kind <> 'state'`, id)
	if want := fmt.Sprintf("hold_begins job %s keeps the files of member 0 on m0, and a shell in its image, for 30m", debug); events != want {
		t.Errorf("the events are %q, want %q", events, want)
	}

	// The retry has its own attempt, at the time that it would have had.
	s.claim(debug, s.place(debug, "m0"), 0)
	s.run(debug)
	attempt := s.place(id, "m1")
	s.claim(id, attempt, 0)
	s.run(id)
	s.exit(id, attempt, 0, exited(3))
	if r := s.settle(id, attempt); r.Next != berth.Failed {
		t.Fatalf("the second attempt is %+v", r)
	}
	if n := one[int](s, `SELECT count(*) FROM holds`); n != 1 {
		t.Errorf("%d holds of one job", n)
	}
	if got := s.ranks(id, attempt)[0]; strings.Contains(got, "keep") {
		t.Errorf("the member of the second attempt is %s", got)
	}
	if until := s.job(id).HeldAttempts[0].Until; until == nil || time.Until(*until) < 25*time.Minute {
		t.Errorf("held until %v", until)
	}

	// The hold ends by itself.
	s.exit(debug, 1, 0, exited(0))
	if r := s.settle(debug, 1); r.Next != berth.Succeeded {
		t.Errorf("the debug job ended as %+v", r)
	}
	s.freed()
}

func TestOnlyFailuresOfTheProgramAreHeld(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ended := func(cause failure.ExitCause, code int) failure.Exit {
		return failure.Exit{Cause: cause, Code: code, StartedAt: ranAt, FinishedAt: ranAt}
	}
	for claim, c := range map[string]struct {
		act  func(id berth.JobID, attempt int)
		held bool
	}{
		"an exit code":  {func(id berth.JobID, a int) { s.exit(id, a, 0, ended(failure.CauseExited, 1)) }, true},
		"a hang":        {func(id berth.JobID, a int) { s.exit(id, a, 0, ended(failure.CauseStalled, 137)) }, true},
		"a time limit":  {func(id berth.JobID, a int) { s.exit(id, a, 0, ended(failure.CauseTimeLimit, 143)) }, true},
		"a success":     {func(id berth.JobID, a int) { s.exit(id, a, 0, ended(failure.CauseExited, 0)) }, false},
		"a lost member": {func(id berth.JobID, a int) { s.orphan(id, a, 0) }, false},
		"a full disk":   {func(id berth.JobID, a int) { s.exit(id, a, 0, ended(failure.CauseDiskLimit, 137)) }, false},
		"a bad command": {func(id berth.JobID, a int) {
			s.exit(id, a, 0, failure.Exit{Cause: failure.CauseBadCommand, FinishedAt: ranAt})
		}, false},
		"a cancel": {func(id berth.JobID, a int) {
			s.cancel(id)
			s.exit(id, a, 0, ended(failure.CauseExited, 1))
		}, false},
		"a preemption": {func(id berth.JobID, a int) {
			s.move(id, berth.Preempting)
			s.exit(id, a, 0, ended(failure.CauseExited, 1))
		}, false},
		"a drain": {func(id berth.JobID, a int) {
			mustExec(t, s.pool, `UPDATE machines SET state = 'draining' WHERE id = 'm0'`)
			s.exit(id, a, 0, ended(failure.CauseExited, 1))
		}, false},
	} {
		id, attempt := s.started(holds)
		c.act(id, attempt)
		s.settle(id, attempt)
		if held := s.debugOf(id) != ""; held != c.held {
			t.Errorf("%s is held: %t", claim, held)
		}
		mustExec(t, s.pool, `UPDATE machines SET state = 'ready'`)
		mustExec(t, s.pool, `UPDATE allocations SET state = 'released' WHERE state = 'orphaned'`)
	}
	id, attempt := s.started(nil)
	s.exit(id, attempt, 0, exited(1))
	s.settle(id, attempt)
	if s.debugOf(id) != "" {
		t.Error("a job is held that does not ask for it")
	}
}

func TestOfAGangTheFirstMemberThatFailedIsHeld(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(func(j *spec.Job) {
		holds(j)
		j.Members = 3
	})
	attempt := s.place(id, "m0", "m1", "m2")
	s.claim(id, attempt, 0, 1, 2)
	s.run(id)
	at := func(cause failure.ExitCause, code int, after time.Duration) failure.Exit {
		return failure.Exit{Cause: cause, Code: code, StartedAt: ranAt, FinishedAt: ranAt.Add(after)}
	}
	s.exit(id, attempt, 0, at(failure.CauseOrdered, 143, time.Second))
	s.exit(id, attempt, 1, at(failure.CauseExited, 1, 3*time.Second))
	s.exit(id, attempt, 2, at(failure.CauseExited, 7, 2*time.Second))
	s.settle(id, attempt)
	if got := s.job(id).HeldAttempts; len(got) != 1 || got[0].Member != 2 || got[0].Machine != "m2" {
		t.Errorf("held is %+v", got)
	}
	if d := s.job(s.debugOf(id)); d.Spec.Members != 1 || d.Spec.Placement.Constraint != `machine.id == "m2"` {
		t.Errorf("the debug job is %+v", d.Spec)
	}
}

// TestOneElementOfAnArrayIsHeldAtATime settles many elements at once: their settlements take turns.
func TestOneElementOfAnArrayIsHeldAtATime(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `UPDATE machines SET cpu_m = 1000000, mem_mb = 1000000`)
	const elements = 8
	array := s.array(elements, func(j *spec.Job) {
		holds(j)
		j.Resources.GPUs = 0
	})
	s.load(array)
	s.tend(array)
	// fails begins the next attempt of an element, and lets it fail.
	fails := func(id berth.JobID, attempt int) {
		t.Helper()
		s.load(id)
		s.move(id, berth.Scheduled)
		mustExec(t, s.pool, `UPDATE jobs SET attempt = $2 WHERE id = $1`, id, attempt)
		mustExec(t, s.pool, `INSERT INTO attempts (job, attempt, leader_epoch) VALUES ($1, $2, 1)`, id, attempt)
		mustExec(t, s.pool, `INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
			VALUES ($1, $2, 0, 'm0', 1, 10, 10, 0, 0)`, id, attempt)
		s.claim(id, attempt, 0)
		s.run(id)
		s.exit(id, attempt, 0, exited(1))
	}
	var ids []berth.JobID
	for i := range elements {
		id := s.element(array, i)
		fails(id, 1)
		ids = append(ids, id)
	}
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() {
			if _, err := s.db.Attempts.Settle(t.Context(), id, 1); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := one[int](s, `SELECT count(*) FROM holds`); n != 1 {
		t.Errorf("%d elements are held", n)
	}
	// Once that hold has ended, the next failure is held.
	s.cancel(berth.JobID(one[string](s, `SELECT debug::text FROM holds`)))
	fails(ids[0], 2)
	s.settle(ids[0], 2)
	if n := one[int](s, `SELECT count(*) FROM holds`); n != 2 {
		t.Errorf("%d holds after the first one has ended", n)
	}
}

func TestADebugJobRunsOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, debug := s.debugging()
	s.orphan(debug, 1, 0)
	if r := s.settle(debug, 1); r.Next != berth.Failed {
		t.Errorf("a lost debug job is %+v", r)
	}
	if j := s.job(debug); j.Reason == nil || j.Reason.Code != berth.ReasonMachineLost {
		t.Errorf("its reason is %+v", j.Reason)
	}
	mustExec(t, s.pool, `UPDATE allocations SET state = 'released' WHERE state = 'orphaned'`)
	_, _, err := s.db.Retries.Retry(t.Context(), "default", debug, db.RetryOptions{}, "user:test")
	if berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), string(id)) {
		t.Errorf("a debug job is retried: %v", err)
	}
}

func TestADebugJobGivesWayForGood(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, debug := s.debugging()
	waiting := s.queued(func(j *spec.Job) { j.Resources.GPUs = 2000 })
	if row := s.row(debug); !row.Debug {
		t.Error("the leader does not learn that it is a debug job")
	}
	p := s.preemption(waiting, debug)
	p.Nominations = nil
	if why := s.giveWay(s.term(), p); why != "" {
		t.Fatal(why)
	}
	if j := s.job(debug); j.Status != berth.Canceling || j.Reason.Code != wire.ReasonHoldEnded {
		t.Errorf("the victim is %s, %+v", j.Status, j.Reason)
	}
	s.exit(debug, 1, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 137, StartedAt: ranAt, FinishedAt: ranAt})
	if r := s.settle(debug, 1); r.Next != berth.Canceled {
		t.Errorf("it ended as %+v", r)
	}
	s.freed()
}

func TestDrainsAndQuotasEndHolds(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, debug := s.debugging()
	_, other := s.debugging()
	term := s.term()
	end := func(ends ...db.HoldEnd) int {
		t.Helper()
		ended, err := s.db.Holds.EndDue(t.Context(), term, ends, 100)
		if err != nil {
			t.Fatal(err)
		}
		return len(ended)
	}
	if n := end(); n != 0 {
		t.Errorf("%d holds end without a cause", n)
	}
	if n := end(db.HoldEnd{Debug: debug, Quota: "above"}); n != 1 {
		t.Errorf("%d holds end for a quota, want the named one", n)
	}
	if j := s.job(debug); j.Status != berth.Canceling || !strings.Contains(j.Reason.Message, "a quota of tenant above counts this hold") {
		t.Errorf("it is %s, %+v", j.Status, j.Reason)
	}
	if j := s.job(other); j.Status != berth.Running {
		t.Errorf("another hold is %s, %+v", j.Status, j.Reason)
	}
	if n := end(db.HoldEnd{Debug: debug, Quota: "above"}); n != 0 {
		t.Errorf("%d holds end twice", n)
	}
	s.exit(debug, 1, 0, exited(137))
	s.settle(debug, 1)
	_, waiting := s.held()
	if n := end(db.HoldEnd{Debug: waiting, Quota: "above"}); n != 0 {
		t.Errorf("%d holds without capacity end for a quota", n)
	}
	mustExec(t, s.pool, `UPDATE machines SET state = 'draining' WHERE id = 'm0'`)
	if n := end(); n != 2 {
		t.Errorf("%d holds end with a drain", n)
	}
	if j := s.job(waiting); j.Status != berth.Canceled || !strings.Contains(j.Reason.Message, "draining") {
		t.Errorf("a waiting hold is %s, %+v", j.Status, j.Reason)
	}
}

// A version without holds archives a debug job and leaves the row of its hold.
func TestHoldsOfArchivedDebugJobsAreSwept(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, kept := s.debugging()
	id, debug := s.debugging()
	s.cancel(id)
	s.cancel(debug)
	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now()`)
	mustExec(t, s.pool, `INSERT INTO holds (debug, scope, job, attempt, rank, alloc, machine_id, hold_ms)
		SELECT gen_random_uuid(), scope, job, attempt, rank, alloc, machine_id, hold_ms FROM holds WHERE debug = $1`, debug)
	n, err := s.db.Holds.Sweep(t.Context(), s.term())
	if err != nil || n != 1 {
		t.Errorf("%d rows are swept, %v", n, err)
	}
	if left := one[string](s, `SELECT string_agg(debug::text, ' ' ORDER BY debug) FROM holds`); left != string(kept)+" "+string(debug) {
		t.Errorf("left are %s, want %s and %s", left, kept, debug)
	}
}

func TestAHoldIsReleasedByTheJobThatEnded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, debug := s.debugging()
	release := func(tenant berth.TenantID) berth.JobID {
		t.Helper()
		got, err := s.db.Holds.Release(t.Context(), tenant, id, "user:test")
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := release("default"); got != "" {
		t.Error("the release of a job that waits for its retry ended the hold of its first attempt")
	}
	s.cancel(id)
	if got := release("other"); got != "" {
		t.Error("another tenant ended the hold")
	}
	if got := release("default"); got != debug {
		t.Errorf("released %q, want %q", got, debug)
	}
	if j := s.job(debug); j.Status != berth.Canceling {
		t.Errorf("the debug job is %s", j.Status)
	}
}

func TestAHoldIsReleasedByTheArrayOfItsElement(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, debug := s.debugging()
	array := s.array(1, nil)
	mustExec(t, s.pool, `UPDATE holds SET scope = $1`, array) // as of an element
	s.cancel(id)
	if got, err := s.db.Holds.Release(t.Context(), "default", array, "user:test"); err != nil || got != debug {
		t.Errorf("released %q, %v, want %q", got, err, debug)
	}
}

// rejects makes the database reject each change of a table for which a condition is true.
func (s *stage) rejects(table, change, when string) {
	s.t.Helper()
	mustExec(s.t, s.pool, `CREATE FUNCTION rejected() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'rejected'; END $$`)
	mustExec(s.t, s.pool, `CREATE TRIGGER rejected BEFORE `+change+` ON `+table+` FOR EACH ROW WHEN (`+when+`) EXECUTE FUNCTION rejected()`)
}

func TestAHoldThatCannotEndKeepsNoOther(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, first := s.debugging()
	_, second := s.debugging()
	s.rejects("jobs", "UPDATE", fmt.Sprintf("NEW.id = '%s'", first))
	mustExec(t, s.pool, `UPDATE machines SET state = 'draining' WHERE id = 'm0'`)
	ended, err := s.db.Holds.EndDue(t.Context(), s.term(), nil, 100)
	if !db.IsDataError(err) || len(ended) != 1 || ended[0] != second {
		t.Errorf("ended %v, %v, want %s and a data error", ended, err, second)
	}
}

func TestAHoldThatCannotBeMadeChangesNoSettlement(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(s *stage, id berth.JobID){
		"the hold is rejected": func(s *stage, _ berth.JobID) { s.rejects("holds", "INSERT", "true") },
		"the spec is unreadable": func(s *stage, id berth.JobID) {
			mustExec(s.t, s.pool, `UPDATE job_specs SET spec = spec || '{"labels": 7}' WHERE job = $1`, id)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			id, attempt := s.started(holds)
			spoil(s, id)
			s.exit(id, attempt, 0, exited(3))
			if r := s.settle(id, attempt); r.Next != berth.Retrying {
				t.Errorf("settled as %+v", r)
			}
			s.freed()
			if got, want := s.ranks(id, 1)[0], `released {"forget": true}`; got != want {
				t.Errorf("the failed member is %s, want %s", got, want)
			}
			if n := one[int](s, `SELECT count(*)::int FROM jobs WHERE debug`); n != 0 {
				t.Errorf("%d debug jobs", n)
			}
			if n := one[int](s, `SELECT count(*)::int FROM job_events WHERE kind = 'hold_begins'`); n != 0 {
				t.Errorf("%d events of a hold", n)
			}
		})
	}
}

func TestADebugJobTakesNoPlaceOfTheQuotaOfWaitingJobs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(func(j *spec.Job) {
		holds(j)
		j.Retry.MaxAttempts = 1
	})
	s.exit(id, attempt, 0, exited(3))
	s.settle(id, attempt)
	if d := s.job(s.debugOf(id)); d.Status != berth.Submitted {
		t.Fatalf("the debug job is %s", d.Status)
	}
	mustExec(t, s.pool, `UPDATE tenants SET max_queued = 1 WHERE id = 'default'`)
	array := s.array(1, nil)
	s.load(array)
	s.tend(array)
	s.cancel(s.element(array, 0))
	s.submit(nil)
}

// TestAClaimOfADebugJobNamesTheFiles checks that an agent that knows no holds is refused, since it would start the
// container with an empty folder, and that a report of the failed member does not abandon it.
func TestAClaimOfADebugJobNamesTheFiles(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id, debug := s.held()
	attempt := s.place(debug, "m0")
	mustExec(t, s.pool, `UPDATE allocations SET machine_epoch = $1`, a.epoch)
	if _, err := a.claims(debug, attempt); berth.CodeOf(err) != berth.CodeUnavailable {
		t.Errorf("an agent of the version before claims: %v", err)
	}
	c, err := a.db.Agents.Claim(t.Context(), a.machine, wire.ClaimRequest{AgentBoot: a.boot, Epoch: a.epoch,
		Alloc: a.alloc(debug, attempt), Job: debug, Attempt: attempt, Holds: true})
	if err != nil {
		t.Fatal(err)
	}
	if c.Held == nil || c.Held.Alloc != a.alloc(id, 1) || c.Held.Checkpoint != "/checkpoint" {
		t.Errorf("the claim names %+v", c.Held)
	}
	r, err := a.sync(func(q *wire.SyncRequest) {
		x := exited(3)
		q.Reports = []wire.RankReport{{Alloc: a.alloc(id, 1), Job: id, Attempt: 1, Phase: berth.PhaseSealed, Exit: &x}}
	})
	if err != nil || len(r.Stale) != 0 {
		t.Errorf("the late report of a failed member: stale %v, %v", r.Stale, err)
	}
}

func TestASessionOfAFailedJobEntersItsHold(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, debug := s.held()
	ask := func(edit func(*spec.NewSession)) (wire.JobSession, error) {
		req := shell
		if edit != nil {
			edit(&req)
		}
		return s.db.JobSessions.Ask(t.Context(), "default", id, asker, req)
	}
	if _, err := ask(nil); berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "try again") {
		t.Errorf("a hold that does not run yet: %v", err)
	}
	s.claim(debug, s.place(debug, "m0"), 0)
	s.run(debug)
	for name, edit := range map[string]func(*spec.NewSession){
		"the job does not run": nil,
		"by the attempt":       func(n *spec.NewSession) { n.Attempt = 1 },
	} {
		if made, err := ask(edit); err != nil || made.Job != debug || made.Attempt != 1 || made.Machine != "m0" {
			t.Errorf("%s: %+v, %v", name, made, err)
		}
	}
	for name, edit := range map[string]func(*spec.NewSession){
		"an attempt that is not held": func(n *spec.NewSession) { n.Attempt = 2 },
		"a member that is not held":   func(n *spec.NewSession) { n.Member = 1 },
	} {
		if _, err := ask(edit); berth.CodeOf(err) != berth.CodeConflict {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The next attempt is entered by default, and the held one by its number.
	attempt := s.place(id, "m1")
	s.claim(id, attempt, 0)
	s.run(id)
	if made, err := ask(nil); err != nil || made.Job != id || made.Attempt != 2 {
		t.Errorf("the running attempt: %+v, %v", made, err)
	}
	if made, err := ask(func(n *spec.NewSession) { n.Attempt = 1 }); err != nil || made.Job != debug {
		t.Errorf("the held attempt of a running job: %+v, %v", made, err)
	}
}
