package db_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
)

// The statements below are those of the version before migration 0037 that name a retired
// word, as that version sends them. Where a statement also reads or writes other things,
// only the parts around the word are kept.
const (
	oldSubmit = `
		WITH class AS (
			INSERT INTO classes (class, request)
			VALUES (@class, @request)
			ON CONFLICT DO NOTHING
		), j AS (
			INSERT INTO jobs (id, tenant, kind, name, class, priority, preemptible, run_limit_ms, grace_ms, mode,
				lost_after_ms, labels, actor)
			SELECT @id, 'default', 'job', 'old', @class, 500, @preemptible, 0, 30000, @mode, 90000, '{}', 'user:old'
			RETURNING *
		)
		INSERT INTO job_specs (job, spec)
		SELECT id, @spec FROM j`
	oldElements = `
		WITH p AS MATERIALIZED (
			SELECT j.*
			FROM jobs j
			WHERE j.id = @parent
		)
		INSERT INTO jobs (id, tenant, parent, array_index, name, class, priority, preemptible, run_limit_ms, grace_ms,
			mode, lost_after_ms, labels, actor)
		SELECT gen_random_uuid(), p.tenant, p.id, x.idx, p.name, p.class, p.priority, p.preemptible, p.run_limit_ms,
			p.grace_ms, p.mode, p.lost_after_ms, p.labels, 'workflow'
		FROM p, generate_series(0, 2) AS x (idx)
		ON CONFLICT ON CONSTRAINT jobs_array_element DO NOTHING`
	oldStart = `
		UPDATE jobs j
		SET state = 'scheduled', version = j.version + 1, attempt = s.attempt, actor = 'leader', reason = NULL
		FROM unnest(@job::uuid[], @attempt::int[]) AS s(job, attempt)
		WHERE j.id = s.job`
	oldAttempt = `
		INSERT INTO attempts (job, attempt, leader_epoch, resume_from)
		SELECT s.job, s.attempt, 1, NULL
		FROM unnest(@job::uuid[], @attempt::int[]) AS s(job, attempt)`
	oldAllocate = `
		INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli, port)
		SELECT s.job, s.attempt, 0, @machine, @epoch, 100, 100, 0, 1000, NULL
		FROM unnest(@job::uuid[], @attempt::int[]) AS s(job, attempt)`
	oldDevices = `
		INSERT INTO gpu_claims (alloc_id, machine_id, idx, milli)
		SELECT a.id, a.machine_id, s.idx, s.milli
		FROM unnest(@job::uuid[], @attempt::int[], @rank::int[], @idx::int[], @milli::bigint[])
			AS s(job, attempt, rank, idx, milli)
		JOIN allocations a ON a.job = s.job AND a.attempt = s.attempt AND a.rank = s.rank`
	oldStarted = `DELETE FROM earmarks WHERE beneficiary = ANY(@job::uuid[])`

	// takeable, and the devices of a claim.
	oldTakeable = `
		SELECT coalesce(string_agg(m.id || ' ' || g.uuid, ', '), '')
		FROM allocations a
		JOIN jobs j ON j.id = a.job
		JOIN machines m ON m.id = a.machine_id
		LEFT JOIN gpu_claims c ON c.alloc_id = a.id
		LEFT JOIN gpu_devices g ON g.machine_id = c.machine_id AND g.idx = c.idx
		WHERE j.id = @id AND a.state = 'reserved' AND a.machine_epoch = m.epoch AND j.attempt = a.attempt
			AND j.state IN ('scheduled', 'running') AND (j.mode <> 'exclusive' OR m.fence_ms > 0 AND NOT j.held)`
	oldPatience = `
		SELECT CASE
			WHEN j.mode <> 'exclusive' OR a.state <> 'active' THEN j.lost_after_ms
			WHEN m.fence_ms = 0 THEN 1e15
			ELSE greatest(j.lost_after_ms, greatest(a.fence_ms, m.fence_ms) + j.grace_ms)
		END::text
		FROM allocations a
		JOIN jobs j ON j.id = a.job
		JOIN machines m ON m.id = a.machine_id
		WHERE j.id = @id`
	oldHeld = `
		WITH live AS (
			SELECT id
			FROM jobs
			WHERE mode = 'exclusive' AND NOT held AND state NOT IN ('succeeded', 'failed', 'canceled')
			ORDER BY id
			FOR NO KEY UPDATE
		)
		SELECT count(*)::text FROM live`

	oldPreempt = `
		INSERT INTO earmarks AS e (beneficiary, machine_id, gpu_idx, milli, cpu_m, mem_mb, disk_mb, victim,
			victim_attempt, expires_at)
		SELECT @for, s.machine, s.idx, s.milli, s.cpu, s.mem, s.disk, s.victim, nullif(s.attempt, 0),
			coalesce(s.until, 'infinity')
		FROM unnest(@machine::text[], @idx::int[], @milli::bigint[], @cpu::bigint[], @mem::bigint[], @disk::bigint[],
			@victim::uuid[], @attempt::int[], @until::timestamptz[])
			AS s(machine, idx, milli, cpu, mem, disk, victim, attempt, until)
		ON CONFLICT ON CONSTRAINT earmarks_once DO UPDATE
		SET milli = greatest(e.milli, excluded.milli), cpu_m = greatest(e.cpu_m, excluded.cpu_m),
			mem_mb = greatest(e.mem_mb, excluded.mem_mb),
			disk_mb = greatest(e.disk_mb, excluded.disk_mb), victim_attempt = excluded.victim_attempt,
				expires_at = greatest(e.expires_at, excluded.expires_at)`
	oldNominated = `
		SELECT coalesce(string_agg(format('%s %s %s %s', e.machine_id, e.gpu_idx, e.milli, e.mem_mb), ', '
			ORDER BY e.beneficiary, e.machine_id, e.victim, e.gpu_idx), '')
		FROM earmarks e
		WHERE e.beneficiary = @id`
	oldKeepRoom = `
		INSERT INTO earmarks AS e (beneficiary, machine_id, gpu_idx, milli, cpu_m, mem_mb, disk_mb, victim,
			victim_attempt, expires_at)
		SELECT @job, k.machine_id, k.idx, sum(k.milli), sum(k.cpu_m), sum(k.mem_mb), sum(k.disk_mb), @job, @attempt,
			now() + @hold::interval
		FROM (
			SELECT a.machine_id, -1 AS idx, 0 AS milli, a.cpu_m, a.mem_mb, a.disk_mb
			FROM allocations a
			WHERE a.id = ANY(@survivors)
			UNION ALL
			SELECT c.machine_id, c.idx, c.milli, 0, 0, 0
			FROM gpu_claims c
			WHERE c.alloc_id = ANY(@survivors)
		) k
		JOIN machines m ON m.id = k.machine_id AND m.state = 'ready'
		GROUP BY k.machine_id, k.idx
		ORDER BY k.machine_id, k.idx
		ON CONFLICT ON CONSTRAINT earmarks_once DO UPDATE
		SET milli = excluded.milli, cpu_m = excluded.cpu_m, mem_mb = excluded.mem_mb, disk_mb = excluded.disk_mb,
		    victim_attempt = excluded.victim_attempt, expires_at = excluded.expires_at`
	oldSettleRoom = `DELETE FROM earmarks WHERE beneficiary = @job`
	oldGiveUp     = `
		WITH gone AS (
			DELETE FROM earmarks d
			WHERE d.id IN (
				SELECT e.id
				FROM earmarks e
				WHERE e.beneficiary = ANY(@gangs::uuid[]) AND e.victim = e.beneficiary
				ORDER BY e.id
				FOR UPDATE SKIP LOCKED)
			RETURNING d.beneficiary
		)
		SELECT count(DISTINCT beneficiary)::text FROM gone`
	oldArchiveDevices = `DELETE FROM gpu_claims c USING allocations a WHERE a.id = c.alloc_id AND a.job = ANY(@ids::uuid[])`
	oldArchiveLog     = `DELETE FROM earmark_log WHERE beneficiary = ANY(@ids::uuid[])`
)

// oldProgram sends the statements of the version before on one connection. The connection
// prepares each statement at its first use and keeps it, as that version's pool does.
type oldProgram struct {
	t    *testing.T
	conn *pgx.Conn
}

func (o oldProgram) exec(sql string, args pgx.NamedArgs) (rows int64) {
	o.t.Helper()
	tag, err := o.conn.Exec(o.t.Context(), sql, args)
	if err != nil {
		o.t.Fatalf("the version before: %v\n%s", err, sql)
	}
	return tag.RowsAffected()
}

func (o oldProgram) text(sql string, args pgx.NamedArgs) (value string) {
	o.t.Helper()
	if err := o.conn.QueryRow(o.t.Context(), sql, args).Scan(&value); err != nil {
		o.t.Fatalf("the version before: %v\n%s", err, sql)
	}
	return value
}

func (o oldProgram) submit(mode string) berth.JobID {
	o.t.Helper()
	s := spec.Job{Name: "old", Image: "busybox", Command: []string{"true"}}
	if mode == "exclusive" {
		s.Execution = spec.AtMostOne
	}
	s = s.WithDefaults()
	text, err := json.Marshal(s)
	if err != nil {
		o.t.Fatal(err)
	}
	id := berth.NewJobID(time.Now())
	request := s.Request()
	o.exec(oldSubmit, pgx.NamedArgs{"id": id, "class": request.Class(), "request": request, "spec": string(text),
		"mode": mode, "preemptible": *s.Preemptible})
	return id
}

// start places the first attempt of a queued job on a machine, with one whole device.
func (o oldProgram) start(id berth.JobID, machine string, epoch int64, device int) {
	o.t.Helper()
	args := pgx.NamedArgs{"job": []berth.JobID{id}, "attempt": []int{1}, "rank": []int{0}, "machine": machine,
		"epoch": epoch, "idx": []int{device}, "milli": []int64{1000}}
	for _, sql := range []string{oldStart, oldAttempt, oldAllocate, oldDevices, oldStarted} {
		o.exec(sql, args)
	}
}

func (o oldProgram) nominate(beneficiary, victim berth.JobID, memory int64) {
	o.t.Helper()
	o.exec(oldPreempt, pgx.NamedArgs{"for": beneficiary, "machine": []string{"m0", "m0"}, "idx": []int{-1, 0},
		"milli": []int64{0, 1000}, "cpu": []int64{100, 0}, "mem": []int64{memory, 0}, "disk": []int64{0, 0},
		"victim": []berth.JobID{victim, victim}, "attempt": []int{1, 1}, "until": []*time.Time{nil, nil}})
}

// everything sends each statement once, so that the connection has prepared all of them.
func (o oldProgram) everything() {
	o.t.Helper()
	o.exec("BEGIN", nil)
	id := o.submit("exclusive")
	o.exec(`UPDATE jobs SET state = 'queued', version = version + 1 WHERE id = @id`, pgx.NamedArgs{"id": id})
	o.exec(oldElements, pgx.NamedArgs{"parent": id})
	o.start(id, "m0", 1, 0)
	for _, sql := range []string{oldTakeable, oldPatience, oldHeld, oldNominated} {
		o.text(sql, pgx.NamedArgs{"id": id})
	}
	o.nominate(id, id, 1)
	o.exec(oldKeepRoom, pgx.NamedArgs{"job": id, "attempt": 1, "survivors": []int64{1}, "hold": time.Minute})
	o.text(oldGiveUp, pgx.NamedArgs{"gangs": []berth.JobID{id}})
	o.exec(oldSettleRoom, pgx.NamedArgs{"job": id})
	o.exec(oldArchiveLog, pgx.NamedArgs{"ids": []berth.JobID{id}})
	o.exec(oldArchiveDevices, pgx.NamedArgs{"ids": []berth.JobID{berth.NewJobID(time.Now())}})
	o.exec("ROLLBACK", nil)
}

// share opens a database as it is during an upgrade: the version before has used it, this
// version has migrated it, and both go on.
func share(t *testing.T) (*stage, oldProgram, berth.JobID) {
	t.Helper()
	pool, url := oldDatabase(t)
	for _, m := range []string{"m0", "m1", "m2"} {
		insertMachine(t, pool, m, 2)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	o := oldProgram{t, conn}
	o.everything()
	early := o.submit("exclusive")
	if err := db.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	return stageOn(t, url, db.Options{}), o, early
}

func TestTwoVersionsAgreeOnExecution(t *testing.T) {
	t.Parallel()
	s, o, early := share(t)
	term := s.term()
	for name, id := range map[string]berth.JobID{"before the migration": early, "after it": o.submit("exclusive")} {
		s.load(id)
		s.mustRefuse(term, s.start(id, on("m0")), "cannot fence")
		if got := one[string](s, `SELECT execution FROM jobs WHERE id = $1`, id); got != "at_most_one" {
			t.Errorf("submitted %s: it is %s", name, got)
		}
	}
	usual := o.submit("fenced")
	s.load(usual)
	if c := s.commit(term, s.start(usual, on("m1"))); len(c.Started) != 1 {
		t.Errorf("a usual job of the version before: %+v", c.Refused)
	}

	// A job of this version: the version before neither offers it to a machine that cannot
	// fence it, nor gives it up early, nor forgets to hold it after a restore.
	a, _ := s.register("host1", "agent1")
	id := s.queued(alone)
	if n := o.text(oldHeld, nil); n != "3" {
		t.Errorf("the version before holds %s jobs after a restore, want 3", n)
	}
	o.start(id, "m0", a.epoch, 0)
	if got := o.text(oldTakeable, pgx.NamedArgs{"id": id}); got != "" {
		t.Errorf("the version before offers it to %s", got)
	}
	s.fences("m0", 2*time.Minute)
	if got := o.text(oldTakeable, pgx.NamedArgs{"id": id}); got != "m0 m0-0" {
		t.Errorf("the version before offers %q", got)
	}
	if claim := a.mustClaim(id, 1); len(claim.GPUs) != 1 || claim.GPUs[0] != "m0-0" {
		t.Errorf("its claim has the devices %v", claim.GPUs)
	}
	if got := o.text(oldPatience, pgx.NamedArgs{"id": id}); got != "180000" {
		t.Errorf("the version before waits %s ms for a silent machine", got)
	}

	// Elements that the version before creates of an array of this version.
	array := s.submit(func(j *spec.Job) { alone(j); j.Array = &spec.Array{Size: 3} })
	if n := o.exec(oldElements, pgx.NamedArgs{"parent": array}); n != 3 {
		t.Errorf("%d elements", n)
	}
	if n := one[int](s, `SELECT count(*) FROM jobs WHERE parent = $1 AND execution = 'at_most_one'`, array); n != 3 {
		t.Errorf("%d of 3 elements are at_most_one", n)
	}
}

func TestTwoVersionsAgreeOnDevicesAndNominations(t *testing.T) {
	t.Parallel()
	s, o, _ := share(t)
	term := s.term()
	s.register("host1", "agent1")
	victim, waiting := o.submit("fenced"), s.queued(nil)
	s.load(victim)
	epoch := one[int64](s, `SELECT epoch FROM machines WHERE id = 'm0'`)
	o.start(victim, "m0", epoch, 0)
	if list, err := s.db.Cluster.Miscounts(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("counters after a placement by the version before: %+v, %v", list, err)
	}
	grant := on("m0", whole(0))
	grant.Epoch = epoch
	s.mustRefuse(term, s.start(waiting, grant), "GPU")

	// Nominations of the version before, which those of this version replace, and back.
	o.nominate(waiting, victim, 100)
	o.nominate(waiting, victim, 200)
	marks := s.loadQueue().Nominations
	if len(marks) != 1 || !marks[0].Asleep || marks[0].Capacity.MemoryMiB != 200 || len(marks[0].GPUs) != 1 {
		t.Fatalf("this version reads %+v", marks)
	}
	p := s.preemption(waiting, victim)
	p.Nominations[0].Capacity.MemoryMiB = 300
	if why := s.giveWay(term, p); why != "" {
		t.Fatal(why)
	}
	if got := o.text(oldNominated, pgx.NamedArgs{"id": waiting}); got != "m0 -1 0 300, m0 0 1000 0, m0 1 1000 0" {
		t.Errorf("the version before reads %s", got)
	}
	s.exit(victim, 1, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 143})
	if r := s.settle(victim, 1); r.Next != berth.Retrying {
		t.Fatalf("the victim is %s", r.Next)
	}
	grant = on("m0", whole(0), whole(1))
	grant.Epoch = epoch
	s.mustRefuse(term, s.start(victim, grant), "kept for a job that others gave way to")
	o.start(waiting, "m0", epoch, 0)
	if n := len(s.loadQueue().Nominations); n != 0 {
		t.Errorf("%d nominations outlive a placement by the version before", n)
	}
	if n := one[int](s, `SELECT count(*) FROM nomination_log WHERE until_seq > from_seq`); n != 5 {
		t.Errorf("%d nominations are on record, want 2 of the version before and 3 of this one", n)
	}
	if list, err := s.db.Cluster.Miscounts(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("counters: %+v, %v", list, err)
	}
}

func TestTwoVersionsAgreeOnTheRoomOfAGang(t *testing.T) {
	t.Parallel()
	s, o, _ := share(t)
	g := &gangStage{stage: s, term: s.term()}
	id := g.gang(2, nil)
	attempt := g.begin(id, on("m1", whole(0)), on("m2", whole(0)))
	survivors := one[[]int64](s, `SELECT array_agg(id) FROM allocations WHERE job = $1 AND machine_id = 'm2'`, id)
	keep := pgx.NamedArgs{"job": id, "attempt": attempt, "survivors": survivors, "hold": time.Minute}
	for range 2 { // the second one updates the rows of the first
		o.exec(oldKeepRoom, keep)
	}
	if got := g.nominated(id); got != "m2" {
		t.Errorf("room of the version before is kept on %q", got)
	}
	if n, err := s.db.Queue.GiveUpRepairs(t.Context(), g.term, []berth.JobID{id}); n != 1 || err != nil {
		t.Errorf("%d gangs gave up their room, %v", n, err)
	}
	if got := o.text(oldNominated, pgx.NamedArgs{"id": id}); got != "" {
		t.Errorf("the version before still reads %s", got)
	}
	o.exec(oldKeepRoom, keep)
	if n := o.text(oldGiveUp, pgx.NamedArgs{"gangs": []berth.JobID{id}}); n != "1" || g.nominated(id) != "" {
		t.Errorf("the version before gave up %s, left is %q", n, g.nominated(id))
	}
	o.exec(oldKeepRoom, keep)
	if n := o.exec(oldSettleRoom, pgx.NamedArgs{"job": id}); n != 2 || g.nominated(id) != "" {
		t.Errorf("the version before deleted %d, left is %q", n, g.nominated(id))
	}
	if n := o.exec(oldArchiveLog, pgx.NamedArgs{"ids": []berth.JobID{id}}); n != 6 {
		t.Errorf("the version before archived %d records", n)
	}
}

// The views leave no row of a table out and store nothing of their own.
func TestNewNamesAreTheRowsOfTheOldOnes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for view, table := range map[string]string{"nominations": "earmarks", "nomination_log": "earmark_log", "device_allocations": "gpu_claims"} {
		var columns, of int
		err := s.pool.QueryRow(t.Context(), `
			SELECT count(*) FILTER (WHERE table_name = $1 AND is_updatable = 'YES'), count(*) FILTER (WHERE table_name = $2)
			FROM information_schema.columns`, view, table).Scan(&columns, &of)
		if err != nil || columns == 0 || columns != of {
			t.Errorf("%s has %d columns that can be written, %s has %d: %v", view, columns, table, of, err)
		}
		def := one[string](s, `SELECT pg_get_viewdef($1::regclass)`, view)
		if strings.Contains(def, "WHERE") {
			t.Errorf("%s leaves rows out: %s", view, def)
		}
	}
}
