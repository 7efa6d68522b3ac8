package db_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

var (
	shell   = spec.NewSession{Kind: spec.SessionExec, Command: []string{"sh", "-c", "true"}, Reason: "looks after a hang"}
	asker   = db.Asker{Actor: "user:test", Token: "t1"}
	replica = db.SessionReplica{ID: "r1", URL: "http://r1"}
)

// entered is a running job on m0, its agent, and a session that a user has asked for.
func (s *stage) entered() (*agent, berth.JobID, wire.JobSession) {
	s.t.Helper()
	a, _ := s.register("host1", "agent1")
	id, attempt := s.started(nil)
	mustExec(s.t, s.pool, `UPDATE allocations SET phase = 'running', machine_epoch = $2 WHERE job = $1`, id, a.epoch)
	made, err := s.db.JobSessions.Ask(s.t.Context(), "default", id, asker, shell)
	if err != nil {
		s.t.Fatal(err)
	}
	if made.Attempt != attempt || made.Machine != "m0" || made.Member != 0 {
		s.t.Fatalf("asked for %+v", made)
	}
	return a, id, made
}

// acts returns the record of a session, one entry a line.
func (s *stage) acts(id string) string {
	s.t.Helper()
	return one[string](s, `SELECT coalesce(string_agg(concat_ws(' ', event, actor, command, reason, bytes_in, bytes_out, exit,
		cause), E'\n' ORDER BY id), '') FROM acts WHERE session = $1`, id)
}

// orders returns the sessions in the set of a machine.
func (a *agent) orders() []wire.SessionOrder {
	a.t.Helper()
	a.digest = ""
	r, err := a.sync(func(*wire.SyncRequest) {})
	if err != nil {
		a.t.Fatal(err)
	}
	return r.Sessions
}

func TestASessionIsPairedOnceAndRecorded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	a, id, made := s.entered()
	if list := a.orders(); len(list) != 0 {
		t.Fatalf("the machine has orders before the user has come: %+v", list)
	}
	if _, err := s.db.JobSessions.Await(ctx, made.ID, "t2", replica); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("another token connects: %v", err)
	}
	if _, err := s.db.JobSessions.Await(ctx, made.ID, "t1", replica); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.JobSessions.Await(ctx, made.ID, "t1", replica); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("a second connection of the user: %v", err)
	}
	list := a.orders()
	if len(list) != 1 || list[0].ID != made.ID || list[0].Alloc != a.alloc(id, 1) || list[0].Epoch != a.epoch ||
		list[0].Request.Command[2] != "true" {
		t.Fatalf("orders are %+v", list)
	}
	nonce := list[0].Nonce
	for name, join := range map[string]func() error{
		"wrong nonce":     func() error { return s.db.JobSessions.Join(ctx, made.ID, "m0", "x"+nonce, "r1") },
		"another machine": func() error { return s.db.JobSessions.Join(ctx, made.ID, "m1", nonce, "r1") },
		"another replica": func() error { return s.db.JobSessions.Join(ctx, made.ID, "m0", nonce, "r2") },
	} {
		if err := join(); berth.CodeOf(err) != berth.CodeNotFound {
			t.Errorf("%s joins: %v", name, err)
		}
	}
	// Of many connections with the right nonce one is taken.
	var taken atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if s.db.JobSessions.Join(ctx, made.ID, "m0", nonce, "r1") == nil {
				taken.Add(1)
			}
		})
	}
	all.Wait()
	if n := taken.Load(); n != 1 {
		t.Errorf("%d connections of the agent were taken", n)
	}
	if list := a.orders(); len(list) != 0 {
		t.Errorf("orders of an open session: %+v", list)
	}
	code := 3
	end := db.SessionEnd{BytesIn: 5, BytesOut: 7, Exit: &code, Cause: wire.CauseExited}
	for range 2 { // the second one changes nothing
		if err := s.db.JobSessions.End(ctx, made.ID, end); err != nil {
			t.Fatal(err)
		}
	}
	const command = "user:test sh -c true looks after a hang"
	if got, want := s.acts(made.ID), "asked "+command+" 0 0 \nbegan "+command+" 0 0 \nended "+command+" 5 7 3 exited"; got != want {
		t.Errorf("the record is\n%s\nwant\n%s", got, want)
	}
	history := one[string](s, `SELECT string_agg(kind || ' ' || actor || ' ' || detail, E'\n' ORDER BY seq)
		FROM job_events WHERE job = $1 AND kind IN ('entered', 'left')`, id)
	if want := "entered user:test exec in member 0: sh -c true\nleft user:test exec in member 0: sh -c true; exit 3"; history != want {
		t.Errorf("the history of the job is\n%s\nwant\n%s", history, want)
	}
	refuses(t, s.pool, "42501", `UPDATE acts SET actor = 'user:other'`)
	refuses(t, s.pool, "42501", `DELETE FROM acts`)
	refuses(t, s.pool, "42501", `TRUNCATE acts`)
}

func TestASessionOfAStaleMemberIsNotJoined(t *testing.T) {
	t.Parallel()
	for name, stale := range map[string]string{
		"another epoch":    `UPDATE machines SET epoch = epoch + 1 WHERE id = 'm0'`,
		"the member ended": `UPDATE allocations SET state = 'exited', exited_at = now(), phase = 'exited' WHERE job = $1`,
		"another attempt":  `UPDATE jobs SET attempt = attempt + 1 WHERE id = $1`,
		"expired":          `UPDATE job_sessions SET expires_at = now() - interval '1 second' WHERE job = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			_, id, made := s.entered()
			if _, err := s.db.JobSessions.Await(t.Context(), made.ID, "t1", replica); err != nil {
				t.Fatal(err)
			}
			nonce := one[string](s, `SELECT nonce FROM job_sessions WHERE job = $1`, id)
			if strings.Contains(stale, "$1") {
				mustExec(t, s.pool, stale, id)
			} else {
				mustExec(t, s.pool, stale)
			}
			if err := s.db.JobSessions.Join(t.Context(), made.ID, "m0", nonce, "r1"); berth.CodeOf(err) != berth.CodeNotFound {
				t.Errorf("joined: %v", err)
			}
			if n := one[int](s, `SELECT count(*) FROM job_events WHERE job = $1 AND kind = 'entered'`, id); n != 0 {
				t.Error("the history says that the job was entered")
			}
		})
	}
}

// A job that has ended has no further events: a replica may end the session of a lost replica a minute
// later.
func TestASessionThatOutlastsItsJobIsInTheActsAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	a, id, made := s.entered()
	if _, err := s.db.JobSessions.Await(ctx, made.ID, "t1", replica); err != nil {
		t.Fatal(err)
	}
	nonce := one[string](s, `SELECT nonce FROM job_sessions WHERE job = $1`, id)
	if err := s.db.JobSessions.Join(ctx, made.ID, "m0", nonce, "r1"); err != nil {
		t.Fatal(err)
	}
	s.exit(id, 1, 0, exited(0))
	if r := s.settle(id, 1); r.Next != berth.Succeeded {
		t.Fatalf("job is %s", r.Next)
	}
	events := one[int](s, `SELECT count(*) FROM job_events WHERE job = $1`, id)
	if err := s.db.JobSessions.End(ctx, made.ID, db.SessionEnd{Cause: wire.CauseReplicaFails}); err != nil {
		t.Fatal(err)
	}
	if n := one[int](s, `SELECT count(*) FROM job_events WHERE job = $1`, id); n != events {
		t.Errorf("the history of the job has %d events more", n-events)
	}
	if got := s.acts(made.ID); !strings.HasSuffix(got, " replica_lost") || len(a.orders()) > 0 {
		t.Errorf("the record is\n%s", got)
	}
}

// TestActsArePrunedByAge checks that the leader deletes old acts only, and that no one else does.
func TestActsArePrunedByAge(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	for _, age := range []string{"100 days", "40 days", "2 days", "1 hour"} {
		mustExec(t, s.pool, `
			INSERT INTO acts (at, event, session, tenant, actor, token, kind, job, attempt, member, machine_id)
			VALUES (now() - $1::interval, 'asked', gen_random_uuid(), 'default', 'user:a', 't', 'exec', gen_random_uuid(), 1, 0, 'm0')`, age)
	}
	prunes := func(retention time.Duration, want, left int) {
		t.Helper()
		n, err := s.db.JobSessions.PruneActs(t.Context(), term, retention, 2)
		if err != nil || n != want {
			t.Errorf("pruned %d acts, %v; want %d", n, err, want)
		}
		if n := one[int](s, `SELECT count(*) FROM acts`); n != left {
			t.Errorf("%d acts are left, want %d", n, left)
		}
	}
	refuses(t, s.pool, "42501", `DELETE FROM acts WHERE at < now() - interval '50 days'`)
	prunes(90*24*time.Hour, 1, 3)
	prunes(30*24*time.Hour, 1, 2)
	prunes(time.Minute, 1, 1) // the last day stays
	refuses(t, s.pool, "42501", `DELETE FROM acts`)
	refuses(t, s.pool, "42501", `WITH x AS (SELECT set_config('berth.prune_acts_before', '2999-01-01', true)) DELETE FROM acts USING x`)
}

func TestAnOpenSessionIsRenewedWhileItsMemberRuns(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	_, id, made := s.entered()
	if _, err := s.db.JobSessions.Await(ctx, made.ID, "t1", replica); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `INSERT INTO step_results (job, tenant, key, image) VALUES ($1, 'default', 'k', '')`, id)
	nonce := one[string](s, `SELECT nonce FROM job_sessions WHERE job = $1`, id)
	if err := s.db.JobSessions.Join(ctx, made.ID, "m0", nonce, "r1"); err != nil {
		t.Fatal(err)
	}
	if n := one[int](s, `SELECT count(*) FROM step_results WHERE job = $1`, id); n != 0 {
		t.Error("the result of an entered step can be reused")
	}
	if runs, err := s.db.JobSessions.Renew(ctx, made.ID); err != nil || !runs {
		t.Fatalf("renewed: %v, %v", runs, err)
	}
	if n, err := s.db.JobSessions.EndExpired(ctx, 10); err != nil || n != 0 {
		t.Fatalf("%d live sessions expired, %v", n, err)
	}
	mustExec(t, s.pool, `UPDATE allocations SET state = 'exited', exited_at = now(), phase = 'exited' WHERE job = $1`, id)
	if runs, err := s.db.JobSessions.Renew(ctx, made.ID); err != nil || runs {
		t.Errorf("renewed after the end of the member: %v, %v", runs, err)
	}
	mustExec(t, s.pool, `UPDATE job_sessions SET expires_at = now() - interval '1 minute'`)
	if n, err := s.db.JobSessions.EndExpired(ctx, 10); err != nil || n != 1 {
		t.Errorf("%d sessions expired, %v", n, err)
	}
	if got := s.acts(made.ID); !strings.HasSuffix(got, " replica_lost") {
		t.Errorf("the record is\n%s", got)
	}
}

func TestOnlyARunningMemberIsEntered(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	ask := func(tenant berth.TenantID, id berth.JobID, edit func(*spec.NewSession)) error {
		req := shell
		if edit != nil {
			edit(&req)
		}
		_, err := s.db.JobSessions.Ask(ctx, tenant, id, asker, req)
		return err
	}
	waits := s.queued(nil)
	if err := ask("default", waits, nil); berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "queued") {
		t.Errorf("a waiting job: %v", err)
	}
	_, id, _ := s.entered()
	for name, c := range map[string]struct {
		edit func(*spec.NewSession)
		code berth.Code
	}{
		"no such member":  {func(n *spec.NewSession) { n.Member = 7 }, berth.CodeNotFound},
		"another attempt": {func(n *spec.NewSession) { n.Attempt = 9 }, berth.CodeConflict},
	} {
		if err := ask("default", id, c.edit); berth.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	mustExec(t, s.pool, `UPDATE allocations SET phase = 'prepared' WHERE job = $1`, id)
	if err := ask("default", id, nil); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a member that is prepared: %v", err)
	}
}

func TestSessionsHaveCaps(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, id, first := s.entered()
	mustExec(t, s.pool, `INSERT INTO job_sessions
		SELECT (jsonb_populate_record(s, jsonb_build_object('id', gen_random_uuid()))).*
		FROM job_sessions s, generate_series(1, 63)`)
	_, err := s.db.JobSessions.Ask(t.Context(), "default", id, asker, shell)
	if berth.CodeOf(err) != berth.CodeCapacity || !strings.Contains(err.Error(), "machine m0 has 64 sessions") {
		t.Errorf("one too many: %v", err)
	}
	if err := s.db.JobSessions.End(t.Context(), first.ID, db.SessionEnd{Cause: wire.CauseClientGone}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.JobSessions.Ask(t.Context(), "default", id, asker, shell); err != nil {
		t.Errorf("after the end of one: %v", err)
	}
	mustExec(t, s.pool, `UPDATE job_sessions SET expires_at = now() - interval '1 minute'`)
	if n, err := s.db.JobSessions.EndExpired(t.Context(), 500); err != nil || n != 64 {
		t.Errorf("%d sessions expired, %v", n, err)
	}
}
