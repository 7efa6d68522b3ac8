package db_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
)

// jobWithID stores a job under an id of the test's choice.
func (s *stage) jobWithID(id, tenant, name string) berth.JobID {
	s.t.Helper()
	mustExec(s.t, s.pool, `INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
		VALUES ($1, $2, $3, 'c', 500, true, 0, 0, 'test')`, id, tenant, name)
	return berth.JobID(id)
}

// handle returns the handle that a read of the job shows.
func (s *stage) handle(id berth.JobID) string {
	s.t.Helper()
	return s.job(id).Handle
}

// means checks that an argument is resolved to a job, or that it is refused with a code and
// a text.
func (s *stage) means(tenant berth.TenantID, arg string, want berth.JobID, code berth.Code, says ...string) {
	s.t.Helper()
	got, err := s.db.Jobs.Resolve(s.t.Context(), tenant, arg)
	if got != want || berth.CodeOf(err) != code {
		s.t.Errorf("%q of tenant %q means %q, %v; want %q, code %q", arg, tenant, got, err, want, code)
	}
	for _, text := range says {
		if err == nil || !strings.Contains(err.Error(), text) {
			s.t.Errorf("%q: the refusal is %v, which lacks %q", arg, err, text)
		}
	}
}

func TestAHandleIsTheShortestEndThatNoOtherJobHas(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	first := s.jobWithID("0199a000-0000-7000-8000-1234567d3f9a", "default", "first")
	if h := s.handle(first); h != "7d3f9a" {
		t.Fatalf("the handle is %q", h)
	}
	s.means("default", "7d3f9a", first, "")
	s.means("default", "7D3F9A", first, "")
	s.means("default", "67d3f9a", first, "") // longer ends mean it as well
	s.means("default", "1234567d3f9a", first, "")
	s.means("default", "d3f9a", "", berth.CodeNotFound) // too short
	s.means("default", "87d3f9a", "", berth.CodeNotFound)
	s.means("b", "7d3f9a", "", berth.CodeNotFound) // another tenant's
	s.means("", "7d3f9a", first, "")

	// A job with the same end is added: both have longer handles, and the old one is refused
	// with both.
	second := s.jobWithID("0199a000-0000-7000-8000-1234587d3f9a", "default", "second")
	for id, want := range map[berth.JobID]string{first: "67d3f9a", second: "87d3f9a"} {
		if h := s.handle(id); h != want {
			t.Errorf("the handle of %s is %q, want %q", id, h, want)
		}
		s.means("default", want, id, "")
	}
	s.means("default", "7d3f9a", "", berth.CodeConflict, "67d3f9a (first, submitted)", "87d3f9a (second, submitted)")

	// A list shows the handles of single reads.
	list, _, err := s.db.Jobs.List(t.Context(), db.JobFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range list {
		if h := s.handle(j.ID); j.Handle != h {
			t.Errorf("the list shows %q for %s, a read %q", j.Handle, j.ID, h)
		}
	}
}

// A handle of digits that begins with 0 could be the beginning of an id.
func TestAHandleNeverBeginsAnID(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.jobWithID("0199a000-0000-7000-8000-1234500199a0", "default", "zero")
	if h := s.handle(id); h != "500199a0" {
		t.Errorf("the handle is %q", h)
	}
	s.means("default", "0199a0", id, "") // the beginning and the end of one job
	other := s.jobWithID("0199a012-0000-7000-8000-123456000001", "default", "other")
	s.means("default", "0199a0", "", berth.CodeConflict, "500199a0 (zero", s.handle(other)+" (other")
	for range 200 {
		job := s.submit(nil)
		if h := s.handle(job); strings.HasPrefix(h, "0") || !strings.HasSuffix(string(job), h) || len(h) > 7 {
			t.Errorf("the handle of %s is %q", job, h)
		}
	}
}

// A name may look like an end of an id. Neither is preferred in silence.
func TestAHandleThatIsANameIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.jobWithID("0199a000-0000-7000-8000-123456decade", "default", "first")
	s.means("default", "decade", id, "")
	s.jobWithID("0199a000-0000-7000-8000-1234567d3f9a", "b", "decade")
	s.means("default", "decade", id, "") // another tenant's name
	s.jobWithID("0199a001-0000-7000-8000-1234568d3f9a", "default", "decade")
	s.means("default", "decade", "", berth.CodeConflict, string(id)+" (first", "8d3f9a (decade")
	s.means("default", "6decade", id, "")
	s.means("b", "decade", "", berth.CodeNotFound) // a name alone is no id
}

// Archived jobs keep their handles, and their handles stay taken.
func TestTheHandleOfAnArchivedJobStaysTaken(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old := s.ended()
	was := s.handle(old)
	s.archiveAll()
	if h := s.handle(old); h != was {
		t.Errorf("the handle was %q and is %q in the archive", was, h)
	}
	s.means("default", was, old, "")
	other := "0199a000-0000-7000-8000-" + flipped(string(old))
	s.jobWithID(other, "default", "other")
	s.means("default", was, "", berth.CodeConflict, other[len(other)-7:]+" (other")
	from := len(old) - 7
	for old[from] == '0' { // a handle never begins with 0
		from--
	}
	longer := string(old[from:])
	if h := s.handle(old); h != longer {
		t.Errorf("the handle is %q after a job with the same end, want %q", h, longer)
	}
	list, _, err := s.db.Jobs.List(t.Context(), db.JobFilter{Status: []berth.State{s.job(old).Status}})
	if err != nil || len(list) != 1 || list[0].Handle != longer {
		t.Errorf("the list has %v, %v", list, err)
	}
}

// flipped returns the last 12 digits of an id with another digit before the last six, 1 or 2.
func flipped(id string) string {
	end := []byte(id[len(id)-12:])
	if end[5] = '1'; id[len(id)-7] == '1' {
		end[5] = '2'
	}
	return string(end)
}

// A restore loses jobs, and their handles must not come back with new ones. The last six
// digits of the ids of two incarnations differ, for any other digits.
func TestTheHandleOfAJobThatARestoreLostNeverComesBack(t *testing.T) {
	t.Parallel()
	for first := range int64(40) {
		for later := first + 1; later < first+15; later++ {
			for _, last := range []string{"00000", "fffff", "d3f9a", "0000f"} {
				if a, b := db.TailDigit(last, first), db.TailDigit(last, later); a == b || a == '0' || b == '0' {
					t.Fatalf("%c%s is an end in the incarnations %d and %d", a, last, first, later)
				}
			}
		}
	}
	s := newStage(t)
	check := func(id berth.JobID) {
		t.Helper()
		last := string(id[len(id)-5:])
		if want := db.TailDigit(last, s.incarnation()); id[len(id)-6] != want {
			t.Errorf("%s was made in incarnation %d, whose digit before %s is %c", id, s.incarnation(), last, want)
		}
	}
	all := func() {
		t.Helper()
		check(s.submit(nil))
		array := s.array(3, nil)
		s.tend(array)
		for i := range 3 {
			check(s.element(array, i))
		}
		pipeline := s.pipeline("fail_fast", "a", "b: a")
		check(pipeline)
		check(s.step(pipeline, "b"))
		failed := s.submit(nil)
		s.cancel(failed)
		retry, _, err := s.db.Retries.Retry(t.Context(), "", failed, db.RetryOptions{}, "user:a")
		if err != nil {
			t.Fatal(err)
		}
		check(retry.ID)
	}
	all()
	if _, _, err := s.db.Leader.Incarnate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.ago(`UPDATE cluster SET system = 'another/1'`)
	if _, leapt, err := s.db.Leader.Incarnate(t.Context()); err != nil || !leapt {
		t.Fatalf("leapt %v, %v", leapt, err)
	}
	all()
}

// The work of one resolution and of one handle does not grow with the number of jobs.
func TestHandlesReadFewRows(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `
		INSERT INTO jobs (id, tenant, name, class, priority, preemptible, state, grace_ms, lost_after_ms, actor)
		SELECT gen_random_uuid(), 'default', 'common', 'c', 500, true, 'succeeded', 0, 0, 'test' FROM generate_series(1, 5000)`)
	mustExec(t, s.pool, `ANALYZE jobs`)
	conn, err := s.beside().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `SET plan_cache_mode = force_generic_plan`); err != nil {
		t.Fatal(err)
	}
	const most = 40
	for _, arg := range []string{"7d3f9a", "decade", "019ab3"} {
		sql, args := db.ResolveQuery("default", arg)
		if _, read := rowsRead(t, conn.Conn(), sql, args); read > most {
			t.Errorf("%s: read %d rows; at most %d should do", arg, read, most)
		}
	}
}

// The build of an index that was interrupted leaves an invalid one, which the next start
// builds again. Several processes may start at once.
func TestMigrateBuildsAnInterruptedIndexAgain(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	s := dbtest.Open(t, url, db.Options{})
	valid := func() (n int) {
		t.Helper()
		err := s.Pool().QueryRow(t.Context(), `SELECT count(*) FROM pg_index WHERE indisvalid AND indexrelid IN
			(to_regclass('jobs_by_tail'), to_regclass('archived_jobs_by_tail'))`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	mustExec(t, s.Pool(), `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'jobs_by_tail'::regclass`)
	mustExec(t, s.Pool(), `DROP INDEX archived_jobs_by_tail`)
	if n := valid(); n != 0 {
		t.Fatalf("%d indexes are valid", n)
	}
	results := make(chan error)
	for range 5 {
		go func() { results <- db.Migrate(context.WithoutCancel(t.Context()), url) }()
	}
	for range 5 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if n := valid(); n != 2 {
		t.Errorf("%d of 2 indexes are valid", n)
	}
}

// Ten ids that end alike are more than a refusal lists.
func TestAnAmbiguousEndListsEightJobs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for i := range 10 {
		id := s.jobWithID(fmt.Sprintf("0199a000-0000-7000-8000-12345%x7d3f9a", i+1), "default", fmt.Sprintf("j%d", i))
		mustExec(t, s.pool, `UPDATE jobs SET submitted_at = now() + $2 WHERE id = $1`, id, time.Duration(i)*time.Minute)
	}
	s.means("default", "7d3f9a", "", berth.CodeConflict, "27d3f9a (j1, submitted)", " and others")
}
