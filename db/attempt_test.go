package db_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// stage is a database with a few machines on which a test plays the leader and
// the agents by hand.
type stage struct {
	t    *testing.T
	db   *db.DB
	pool *pgxpool.Pool
	side func() *pgxpool.Pool // see beside
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := stageOf(t, dbtest.DB(t, db.Options{}))
	for _, m := range []string{"m0", "m1", "m2"} {
		insertMachine(t, s.pool, m, 2)
	}
	return s
}

// stageOn returns a stage on the database at url.
func stageOn(t *testing.T, url string, o db.Options) *stage {
	t.Helper()
	return stageOf(t, dbtest.Open(t, url, o))
}

// stageOf returns a stage on an open database. Its pool is that of the database, since each connection plans all
// statements anew.
func stageOf(t *testing.T, d *db.DB) *stage {
	side := sync.OnceValue(func() *pgxpool.Pool { return dbtest.Beside(t, d) })
	return &stage{t: t, db: d, pool: d.Pool(), side: side}
}

// beside returns another pool, for a test that holds a lock while calls wait for it; see dbtest.Beside.
func (s *stage) beside() *pgxpool.Pool { return s.side() }

// submit stores a job; edit may change its spec.
func (s *stage) submit(edit func(*spec.Job)) berth.JobID {
	s.t.Helper()
	job, _, err := s.db.Jobs.Submit(s.t.Context(), db.Submission{Tenant: "default", Spec: s.spec(edit), Actor: "user:test"})
	if err != nil {
		s.t.Fatal(err)
	}
	return job.ID
}

func (s *stage) spec(edit func(*spec.Job)) spec.Job {
	jobSpec := spec.Job{Name: "x", Image: "busybox", Command: []string{"true"}}.WithDefaults()
	if edit != nil {
		edit(&jobSpec)
	}
	return jobSpec
}

// place begins the next attempt with one rank and one GPU on each machine.
func (s *stage) place(id berth.JobID, machines ...string) (attempt int) {
	s.t.Helper()
	s.load(id)
	err := s.db.Pool().QueryRow(s.t.Context(), `UPDATE jobs SET state = 'scheduled', version = version + 1, attempt = attempt + 1, actor = 'leader', reason = NULL
		WHERE id = $1 RETURNING attempt`, id).Scan(&attempt)
	if err != nil {
		s.t.Fatal(err)
	}
	mustExec(s.t, s.db.Pool(), `INSERT INTO attempts (job, attempt, leader_epoch) VALUES ($1, $2, 1)`, id, attempt)
	for rank, m := range machines {
		mustExec(s.t, s.db.Pool(), `WITH a AS (
			INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
			VALUES ($1, $2, $3, $4, 1, 1000, 1024, 0, 1000) RETURNING id)
			SELECT id FROM a`, id, attempt, rank, m)
		mustExec(s.t, s.db.Pool(), `INSERT INTO device_allocations (alloc_id, machine_id, idx, milli)
			SELECT a.id, a.machine_id, (SELECT min(idx) FROM gpu_devices g WHERE g.machine_id = a.machine_id AND g.milli_used = 0), 1000
			FROM allocations a WHERE job = $1 AND attempt = $2 AND rank = $3`, id, attempt, rank)
	}
	return attempt
}

// claim is the machine taking a rank; run starts the job.
func (s *stage) claim(id berth.JobID, attempt int, ranks ...int) {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE allocations SET state = 'active', phase = 'running', claimed_at = now(), started_at = now(),
		fence_ms = (SELECT fence_ms FROM machines WHERE id = machine_id)
		WHERE job = $1 AND attempt = $2 AND rank = ANY($3)`, id, attempt, ranks)
}

func (s *stage) run(id berth.JobID) {
	s.t.Helper()
	s.move(id, berth.Running)
}

func (s *stage) move(id berth.JobID, to berth.State) {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE jobs SET state = $2, version = version + 1, actor = 'leader' WHERE id = $1`, id, to)
}

// exit is a rank's end, reported and sealed.
func (s *stage) exit(id berth.JobID, attempt, rank int, e failure.Exit) {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE allocations SET state = 'exited', phase = 'sealed', exit = $4, exited_at = now(), sealed_at = now()
		WHERE job = $1 AND attempt = $2 AND rank = $3`, id, attempt, rank, e)
}

func (s *stage) orphan(id berth.JobID, attempt, rank int) {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE allocations SET state = 'orphaned', orphaned_at = now(), orders = orders || '{"kill":true}'
		WHERE job = $1 AND attempt = $2 AND rank = $3`, id, attempt, rank)
}

// started begins an attempt with one running rank.
func (s *stage) started(edit func(*spec.Job)) (berth.JobID, int) {
	s.t.Helper()
	id := s.submit(edit)
	attempt := s.place(id, "m0")
	s.claim(id, attempt, 0)
	s.run(id)
	return id, attempt
}

func (s *stage) load(id berth.JobID) wire.JobView {
	s.t.Helper()
	v, err := s.db.Jobs.Load(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

func (s *stage) settle(id berth.JobID, attempt int) wire.SettleResult {
	s.t.Helper()
	r, err := s.db.Attempts.Settle(s.t.Context(), id, attempt)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *stage) job(id berth.JobID) wire.Job {
	s.t.Helper()
	j, err := s.db.Jobs.Get(s.t.Context(), "", id)
	if err != nil {
		s.t.Fatal(err)
	}
	return j
}

// ranks shows each rank of an attempt as state and orders.
func (s *stage) ranks(id berth.JobID, attempt int) []string {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `SELECT state || ' ' || orders::text FROM allocations WHERE job = $1 AND attempt = $2 ORDER BY rank`, id, attempt)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	var list []string
	for rows.Next() {
		var r string
		if err := rows.Scan(&r); err != nil {
			s.t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

// one reads a single value.
func one[T any](s *stage, sql string, args ...any) T {
	s.t.Helper()
	var v T
	if err := s.pool.QueryRow(s.t.Context(), sql, args...).Scan(&v); err != nil {
		s.t.Fatalf("%v\n%s", err, sql)
	}
	return v
}

// freed fails unless no machine has anything in use.
func (s *stage) freed() {
	s.t.Helper()
	if n := one[int64](s, `SELECT sum(cpu_m_used + mem_mb_used + gpu_milli_used)::bigint + (SELECT sum(milli_used)::bigint FROM gpu_devices) FROM machines`); n != 0 {
		s.t.Errorf("%d units are still in use", n)
	}
}

var ranAt = time.Now().Add(-time.Minute).UTC()

// exited is the end of a process by itself.
func exited(code int) failure.Exit {
	return failure.Exit{Cause: failure.CauseExited, Code: code, StartedAt: ranAt, FinishedAt: ranAt.Add(time.Second)}
}

func hears(t *testing.T, sub *db.Subscription) bool {
	t.Helper()
	select {
	case <-sub.C:
		return true
	default:
		return false
	}
}

func lastEvent(s *stage, id berth.JobID) wire.Event {
	s.t.Helper()
	events, err := s.db.Jobs.Events(s.t.Context(), "", id, 0, 100)
	if err != nil {
		s.t.Fatal(err)
	}
	for i, e := range events {
		if e.Seq != int64(i+1) {
			s.t.Fatalf("event %d has seq %d", i+1, e.Seq)
		}
	}
	if len(events) == 0 {
		s.t.Fatal(fmt.Errorf("job %s has no events", id))
	}
	return events[len(events)-1]
}
