package db_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/wire"
)

// sessions returns a page of the sessions of a job as text, one a line.
func (s *stage) sessions(tenant berth.TenantID, job berth.JobID, f db.SessionFilter) (text []string, next string) {
	s.t.Helper()
	list, next, err := s.db.JobSessions.List(s.t.Context(), tenant, job, f)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, x := range list {
		exit := "none"
		if x.Exit != nil {
			exit = fmt.Sprint(*x.Exit)
		}
		text = append(text, fmt.Sprintf("%s %s %s %s: %s; %s; from %v to %v, exit %s %s, %d in, %d out", x.ID, x.Actor,
			x.Kind, x.State, x.Command, x.Reason, x.StartedAt != nil, x.EndedAt != nil, exit, x.Cause, x.BytesIn,
			x.BytesOut))
		if x.RequestedAt == nil || x.Attempt != 1 || x.Machine != "m0" {
			s.t.Errorf("%+v", x)
		}
	}
	return text, next
}

func TestTheRecordOfASessionFollowsItsStates(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	_, id, made := s.entered()
	is := func(tenant berth.TenantID, open bool, want ...string) {
		t.Helper()
		got, next := s.sessions(tenant, id, db.SessionFilter{Open: open})
		if diff := cmp.Diff(want, got); diff != "" || next != "" {
			t.Errorf("tenant %q, open %v: next %q, (-want +got)\n%s", tenant, open, next, diff)
		}
	}
	const what = ": sh -c true; looks after a hang; "
	line := func(state, rest string) string { return made.ID + " user:test exec " + state + what + rest }
	asked := line("waiting", "from false to false, exit none , 0 in, 0 out")
	is("default", false, asked)
	is("default", true, asked)
	is("", false, asked)
	is("other", false)
	is("other", true)
	if _, err := s.db.JobSessions.Await(ctx, made.ID, "t1", replica); err != nil {
		t.Fatal(err)
	}
	is("default", false, asked)
	nonce := one[string](s, `SELECT nonce FROM job_sessions WHERE job = $1`, id)
	if err := s.db.JobSessions.Join(ctx, made.ID, "m0", nonce, "r1"); err != nil {
		t.Fatal(err)
	}
	open := line("open", "from true to false, exit none , 0 in, 0 out")
	is("default", false, open)
	is("default", true, open)
	code := 0
	end := db.SessionEnd{BytesIn: 5, BytesOut: 7, Exit: &code, Cause: wire.CauseExited}
	if err := s.db.JobSessions.End(ctx, made.ID, end); err != nil {
		t.Fatal(err)
	}
	ended := line("ended", "from true to true, exit 0 exited, 5 in, 7 out")
	is("default", false, ended)
	is("default", true)
}

// A row that has been deleted without a record of its end, as by hand, is no open session.
func TestASessionWithoutARowHasEnded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, id, made := s.entered()
	mustExec(t, s.pool, `DELETE FROM job_sessions`)
	want := []string{made.ID + " user:test exec ended: sh -c true; looks after a hang; " +
		"from false to false, exit none , 0 in, 0 out"}
	if got, _ := s.sessions("default", id, db.SessionFilter{}); cmp.Diff(want, got) != "" {
		t.Errorf("%q", got)
	}
	if got, _ := s.sessions("default", id, db.SessionFilter{Open: true}); len(got) != 0 {
		t.Errorf("open: %q", got)
	}
}

// The request of a session may be deleted before its end: the rest of the record stays readable.
func TestARecordWithoutItsRequestIsShown(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const job, session = "0199a000-0000-7000-8000-00000000000a", "0199a000-0000-7000-8000-00000000000b"
	mustExec(t, s.pool, `
		INSERT INTO acts (event, session, tenant, actor, token, kind, job, attempt, member, machine_id, exit, cause)
		VALUES ('ended', $2, 'default', 'user:a', 't', 'exec', $1, 2, 1, 'm7', 1, 'exited')`, job, session)
	list, _, err := s.db.JobSessions.List(t.Context(), "default", job, db.SessionFilter{})
	if err != nil || len(list) != 1 || list[0].RequestedAt != nil || list[0].EndedAt == nil || *list[0].Exit != 1 ||
		list[0].State != wire.SessionEnded || list[0].Attempt != 2 || list[0].Member != 1 || list[0].Machine != "m7" {
		t.Errorf("%+v, %v", list, err)
	}
}

// manySessions records ended sessions of jobs, n each: the first one is of the first job.
func (s *stage) manySessions(n int, jobs ...berth.JobID) {
	s.t.Helper()
	for _, job := range jobs {
		mustExec(s.t, s.pool, `
			INSERT INTO acts (event, session, tenant, actor, token, kind, job, attempt, member, machine_id, cause)
			SELECT e, ('0199a000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'default', 'user:a', 't', 'exec',
				$1, 1, 0, 'm0', CASE e WHEN 'ended' THEN 'exited' ELSE '' END
			FROM generate_series(1, $2::int) n, unnest(ARRAY['asked', 'began', 'ended']) e`, job, n)
	}
	mustExec(s.t, s.pool, `ANALYZE acts`)
}

// Pages end at an id, so that sessions that are requested meanwhile are on no later page.
func TestPagesOfSessionsStayWhileNewOnesCome(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const job berth.JobID = "0199a000-0000-7000-8000-00000000000a"
	s.manySessions(25, job)
	seen, cursor := map[string]bool{}, ""
	for page := 1; ; page++ {
		list, next := s.sessions("default", job, db.SessionFilter{Paging: db.Paging{Limit: 10, Cursor: cursor}})
		for _, x := range list {
			if id, _, _ := strings.Cut(x, " "); seen[id] {
				t.Errorf("page %d has %s again", page, id)
			} else {
				seen[id] = true
			}
		}
		mustExec(t, s.pool, `
			INSERT INTO acts (event, session, tenant, actor, token, kind, job, attempt, member, machine_id)
			VALUES ('asked', ('0199a001-0000-7000-8000-' || lpad($2::text, 12, '0'))::uuid, 'default', 'user:a', 't',
				'exec', $1, 1, 0, 'm0')`, job, fmt.Sprint(page))
		if cursor = next; cursor == "" {
			break
		}
	}
	if len(seen) != 25 {
		t.Errorf("%d of 25 sessions are on the pages", len(seen))
	}
	for _, bad := range []string{"x", "WyIiXQ", "WyJ4Il0", "WzFd"} { // no base64, [""], ["x"], [1]
		f := db.SessionFilter{Paging: db.Paging{Cursor: bad}}
		_, _, err := s.db.JobSessions.List(t.Context(), "default", job, f)
		if berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("cursor %q: %v", bad, err)
		}
	}
}

// A page costs as much as its sessions, whatever the number of sessions in this job and in others.
func TestAPageOfSessionsReadsNoOthers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const job, other berth.JobID = "0199a000-0000-7000-8000-00000000000a", "0199a000-0000-7000-8000-00000000000c"
	s.manySessions(3000, job, other)
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, plan := range []string{"force_generic_plan", "force_custom_plan"} {
		if _, err := conn.Exec(t.Context(), `SET plan_cache_mode = `+plan); err != nil {
			t.Fatal(err)
		}
		for _, before := range []string{"ffffffff-ffff-ffff-ffff-ffffffffffff",
			"0199a000-0000-7000-8000-000000000100"} {
			args := pgx.NamedArgs{"job": job, "tenant": "default", "before": before, "limit": 11}
			// The scans of the page and of its acts read three rows for each of 11 sessions.
			if found, read := rowsRead(t, conn.Conn(), db.SessionsOfJob(false), args); found != 11 || read > 120 {
				t.Errorf("%s, before %s: %d sessions, read %d rows", plan, before, found, read)
			}
			if found, read := rowsRead(t, conn.Conn(), db.SessionsOfJob(true), args); found != 0 || read > 0 {
				t.Errorf("%s, open: %d sessions, read %d rows", plan, found, read)
			}
		}
	}
}

// The index of the list is built after the migrations, and again if it is missing.
func TestMigrateBuildsTheIndexOfSessions(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	s := dbtest.Open(t, url, db.Options{})
	valid := func() (ok bool) {
		t.Helper()
		err := s.Pool().QueryRow(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_index WHERE indisvalid
			AND indexrelid = to_regclass('acts_by_session'))`).Scan(&ok)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !valid() {
		t.Error("a new database lacks the index")
	}
	mustExec(t, s.Pool(), `DROP INDEX IF EXISTS acts_by_session`)
	if err := db.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	if !valid() {
		t.Error("the index is not built again")
	}
}
