package db_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/db"
	"berth/db/dbtest"
)

func open(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return dbtest.New(t)
}

func mustExec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
}

// refuses runs sql and fails unless the database answers with this SQLSTATE.
func refuses(t *testing.T, pool *pgxpool.Pool, sqlstate, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != sqlstate {
		t.Errorf("got %v, want SQLSTATE %s\n%s", err, sqlstate, sql)
	}
}

const (
	jobA = "01900000-0000-7000-8000-00000000000a"
	jobB = "01900000-0000-7000-8000-00000000000b"
)

func insertJob(t *testing.T, pool *pgxpool.Pool, id string) {
	t.Helper()
	mustExec(t, pool, `INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
		VALUES ($1, 'default', 'x', 'c', 500, true, 0, 90000, 'user:test')`, id)
}

func insertMachine(t *testing.T, pool *pgxpool.Pool, id string, gpus int) {
	t.Helper()
	mustExec(t, pool, `INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb, gpu_milli) VALUES ($1, 'ready', 4000, 8192, 1000, $2)`, id, gpus*1000)
	for i := range gpus {
		mustExec(t, pool, `INSERT INTO gpu_devices (machine_id, idx, uuid, model, mem_mb) VALUES ($1, $2, $3, 'H100', 81920)`, id, i, fmt.Sprintf("%s-%d", id, i))
	}
}

// allocate inserts one allocation with devices in one transaction.
func allocate(t *testing.T, pool *pgxpool.Pool, job string, rank int, machine string, cpu, gpuMilli int, devices ...int) (int64, error) {
	t.Helper()
	var id int64
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(t.Context(), `INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
			VALUES ($1, 1, $2, $3, 1, $4, 1024, 0, $5) RETURNING id`, job, rank, machine, cpu, gpuMilli*len(devices)).Scan(&id)
		if err != nil {
			return err
		}
		for _, d := range devices {
			if _, err := tx.Exec(t.Context(), `INSERT INTO device_allocations VALUES ($1, $2, $3, $4)`, id, machine, d, gpuMilli); err != nil {
				return err
			}
		}
		return nil
	})
	return id, err
}

func used(t *testing.T, pool *pgxpool.Pool, machine string) (c berth.Capacity, gpus []int64) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `SELECT cpu_m_used, mem_mb_used, disk_mb_used, gpu_milli_used,
		(SELECT coalesce(array_agg(milli_used ORDER BY idx), '{}') FROM gpu_devices WHERE machine_id = machines.id)
		FROM machines WHERE id = $1`, machine).Scan(&c.CPUMilli, &c.MemoryMiB, &c.DiskMiB, &c.GPUMilli, &gpus)
	if err != nil {
		t.Fatal(err)
	}
	return c, gpus
}

func TestDatabaseHoldsTheSameStateMachine(t *testing.T) {
	t.Parallel()
	pool := open(t)
	var got []string
	if err := pool.QueryRow(t.Context(), `SELECT job_transitions()`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, tr := range berth.Transitions {
		if tr.From != "" {
			want = append(want, string(tr.From)+">"+string(tr.To))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("berth.Transitions and job_transitions() differ (-code +database):\n%s", diff)
	}
}

func TestGuardRefusesWhatTheTableDoesNotList(t *testing.T) {
	t.Parallel()
	pool := open(t)
	insertJob(t, pool, jobA)
	refuses(t, pool, "BT004", `UPDATE jobs SET state = 'running', version = version + 1 WHERE id = $1`, jobA)
	refuses(t, pool, "BT003", `UPDATE jobs SET state = 'queued' WHERE id = $1`, jobA)
	refuses(t, pool, "BT002", `UPDATE jobs SET attempt = 2 WHERE id = $1`, jobA)
	refuses(t, pool, "BT005", `DELETE FROM jobs WHERE id = $1`, jobA)
	mustExec(t, pool, `UPDATE jobs SET state = 'canceled', version = version + 1, actor = 'user:test' WHERE id = $1`, jobA)
	refuses(t, pool, "BT001", `UPDATE jobs SET state = 'queued', version = version + 1 WHERE id = $1`, jobA)
	refuses(t, pool, "BT001", `UPDATE jobs SET reason = '{"code":"oom"}' WHERE id = $1`, jobA)
	mustExec(t, pool, `UPDATE jobs SET retried_by = $2 WHERE id = $1`, jobA, jobB)
}

func TestEachChangeOfStateIsOneEventWithoutGaps(t *testing.T) {
	t.Parallel()
	pool := open(t)
	insertJob(t, pool, jobA)
	for _, s := range []string{"queued", "scheduled", "running", "succeeded"} {
		mustExec(t, pool, `UPDATE jobs SET state = $2, version = version + 1, actor = 'workflow' WHERE id = $1`, jobA, s)
	}
	rows, err := pool.Query(t.Context(), `SELECT seq::text || ' ' || coalesce(from_state, '-') || '>' || to_state || ' ' || actor FROM job_events WHERE job = $1 ORDER BY seq`, jobA)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"1 ->submitted user:test", "2 submitted>queued workflow", "3 queued>scheduled workflow", "4 scheduled>running workflow", "5 running>succeeded workflow"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCapacityFollowsAllocations(t *testing.T) {
	t.Parallel()
	pool := open(t)
	insertJob(t, pool, jobA)
	insertMachine(t, pool, "m1", 2)
	whole, err := allocate(t, pool, jobA, 0, "m1", 1500, 1000, 0)
	if err != nil {
		t.Fatal(err)
	}
	share, err := allocate(t, pool, jobA, 1, "m1", 500, 250, 1)
	if err != nil {
		t.Fatal(err)
	}
	c, gpus := used(t, pool, "m1")
	if want := (berth.Capacity{CPUMilli: 2000, MemoryMiB: 2048, GPUMilli: 1250}); c != want || !slices.Equal(gpus, []int64{1000, 250}) {
		t.Errorf("after two allocations: %+v %v", c, gpus)
	}
	mustExec(t, pool, `UPDATE allocations SET state = 'orphaned' WHERE id = $1`, whole)
	mustExec(t, pool, `UPDATE allocations SET state = 'exited' WHERE id = $1`, share)
	c, gpus = used(t, pool, "m1")
	if want := (berth.Capacity{CPUMilli: 1500, MemoryMiB: 1024, GPUMilli: 1000}); c != want || !slices.Equal(gpus, []int64{1000, 0}) {
		t.Errorf("an orphan counts, an exited one does not: %+v %v", c, gpus)
	}
	mustExec(t, pool, `UPDATE allocations SET state = 'released' WHERE id = ANY($1)`, []int64{whole, share})
	if c, gpus = used(t, pool, "m1"); c != (berth.Capacity{}) || !slices.Equal(gpus, []int64{0, 0}) {
		t.Errorf("after release: %+v %v", c, gpus)
	}
	refuses(t, pool, "BT007", `UPDATE allocations SET state = 'active' WHERE id = $1`, whole)
	refuses(t, pool, "BT006", `UPDATE allocations SET cpu_m = 1 WHERE id = $1`, whole)
}

func TestNothingIsGivenTwice(t *testing.T) {
	t.Parallel()
	pool := open(t)
	insertMachine(t, pool, "m1", 1)
	const writers = 16
	var wg sync.WaitGroup
	var mu sync.Mutex
	granted := 0
	for i := range writers {
		id := strings.Replace(jobA, "00000000000a", "0000000000"+string("0123456789abcdef"[i])+"0", 1)
		insertJob(t, pool, id)
		wg.Go(func() {
			_, err := allocate(t, pool, id, 0, "m1", 100, 1000, 0)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				granted++
			} else if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "23514" {
				t.Errorf("got %v, want a check violation", err)
			}
		})
	}
	wg.Wait()
	if granted != 1 {
		t.Errorf("one GPU was given to %d jobs", granted)
	}
}

func TestOneLiveRankOfAJob(t *testing.T) {
	t.Parallel()
	pool := open(t)
	insertJob(t, pool, jobA)
	insertMachine(t, pool, "m1", 0)
	if _, err := allocate(t, pool, jobA, 0, "m1", 100, 0); err != nil {
		t.Fatal(err)
	}
	refuses(t, pool, "23505", `INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
		VALUES ($1, 2, 0, 'm1', 1, 1, 1, 0, 0)`, jobA)
}

func TestFiveRacingMigrationsAllSucceed(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if err := db.Migrate(context.WithoutCancel(t.Context()), url); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestHintsReachOtherProcesses(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(cancel)
	process := func() *db.DB {
		d, err := db.Open(ctx, url, db.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		wg.Go(func() { _ = d.Hub().Run(ctx) })
		return d
	}
	a, b := process(), process()
	sub := b.Hub().Subscribe(db.TopicMachine, "m1")
	defer sub.Close()
	all := b.Hub().Subscribe(db.TopicMachine, "*")
	defer all.Close()
	// The listener may not be connected yet, and hints may be lost: repeat.
	for {
		a.Hub().Publish(db.TopicMachine, "m1")
		if _, err := a.Pool().Exec(ctx, `SELECT 1`); err != nil {
			t.Fatal(err)
		}
		select {
		case <-sub.C:
			<-all.C
			if keys := all.Keys(); !slices.Contains(keys, "m1") {
				t.Errorf("keys %v lack m1", keys)
			}
			return
		default:
		}
	}
}

// Each retired name that the schema still has is there for the version before, or has a
// reason in docs/adr/0039-two-names-for-one-version.md. A new one is a mistake.
func TestSchemaHasNoOtherRetiredNames(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	rows, err := pool.Query(t.Context(), `
		SELECT name
		FROM (
			SELECT c.table_name || '.' || c.column_name AS name
			FROM information_schema.columns c
			JOIN information_schema.tables t USING (table_schema, table_name)
			WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE'
				AND c.column_name ~ '(^|_)(mb|mode|earmark|fenced|exclusive|child|tend|worth)(_|$)'
			UNION ALL
			SELECT table_name FROM information_schema.tables
			WHERE table_schema = 'public' AND table_name ~ '(earmark|claim|outlook|intake|vow|purse|lure|prey)'
		) x
		ORDER BY name COLLATE "C"`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"allocations.disk_mb", "allocations.mem_mb", "earmark_log", "earmarks", "earmarks.disk_mb", "earmarks.mem_mb",
		"gpu_claims", "gpu_devices.mem_mb", "jobs.mode",
		"machine_events.disk_mb", "machine_events.mem_mb",
		"machines.disk_mb", "machines.disk_mb_used", "machines.mem_mb", "machines.mem_mb_used",
		"tenant_log.limit_mem_mb", "tenants.guarantee_mem_mb", "tenants.limit_mem_mb", "tenants.used_mem_mb_s",
		"usage_charges.mem_mb",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("retired names (-want +got):\n%s", diff)
	}
}
