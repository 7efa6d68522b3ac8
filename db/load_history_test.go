package db_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/db/history"
)

// More jobs and allocations than a page holds are all handed over, each with
// its machine, in the order of the ledger.
func TestHistoryIsReadWholeAndOnlyRead(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	d, err := db.Open(t.Context(), url, db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	pool := d.Pool()
	for i := range 3 {
		insertMachine(t, pool, fmt.Sprintf("m%d", i), 1)
	}
	const jobs = 1500
	mustExec(t, pool, `INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
		SELECT format('01900000-0000-7000-8000-%s', lpad(i::text, 12, '0'))::uuid, 'default', 'x', 'c', 500, true, 0, 90000, 'user:test'
		FROM generate_series(1, $1::int) i`, jobs)
	mustExec(t, pool, `INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
		SELECT j.id, 1, r, CASE r WHEN 0 THEN 'm2' ELSE 'm0' END, 1, 0, 0, 0, 0 FROM jobs j, generate_series(0, 1) r`)
	mustExec(t, pool, `UPDATE allocations SET state = 'released', released_at = now() - interval '1 day' WHERE machine_id = 'm0' AND job <> (SELECT min(id::text)::uuid FROM jobs)`)

	h, err := db.OpenHistory(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	var last berth.JobID
	n := 0
	if err := h.Jobs(t.Context(), time.Time{}, func(j history.Job) error {
		if n++; j.ID <= last || len(j.Events) != 1 || len(j.Allocations) != 2 || j.Members != 1 || j.HasSpec {
			return fmt.Errorf("job %s after %s: %+v", j.ID, last, j)
		}
		last = j.ID
		return nil
	}); err != nil || n != jobs {
		t.Errorf("read %d jobs: %v", n, err)
	}
	for since, want := range map[time.Time]string{{}: "m0 1500 m1 0 m2 1500 ", time.Now().Add(-time.Hour): "m0 1 m1 0 m2 1500 "} {
		h, err := db.OpenHistory(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := h.Machines(t.Context(), since, func(m history.Machine) error {
			got += fmt.Sprintf("%s %d ", m.ID, len(m.Allocations))
			if len(m.Events) != 2 || len(m.GPUs) != 1 {
				return fmt.Errorf("machine %s: %+v, %+v", m.ID, m.Events, m.GPUs)
			}
			for i, a := range m.Allocations {
				if a.Machine != m.ID || i > 0 && a.TakenSeq <= m.Allocations[i-1].TakenSeq || a.Counts() == (a.FreedSeq != 0) {
					return fmt.Errorf("machine %s: %+v", m.ID, a)
				}
			}
			return nil
		}); err != nil || got != want {
			t.Errorf("since %s: read %q, want %q: %v", since, got, want, err)
		}
		_ = h.Close()
	}
	var open, writing int
	if err := pool.QueryRow(t.Context(), `SELECT count(*), count(backend_xid) FROM pg_stat_activity
		WHERE application_name = 'berth-check' AND datname = current_database()`).Scan(&open, &writing); err != nil || open == 0 || writing != 0 {
		t.Errorf("%d readers, %d of them with a transaction id that would hold back the feed: %v", open, writing, err)
	}
}

// Each way in which capacity becomes free leaves its number, and on whose word.
func TestRowsSayWhoFreedCapacity(t *testing.T) {
	t.Parallel()
	pool := open(t)
	insertJob(t, pool, jobA)
	insertMachine(t, pool, "m1", 2)
	unclaimed, err := allocate(t, pool, jobA, 0, "m1", 100, 1000, 0)
	if err != nil {
		t.Fatal(err)
	}
	silent, err := allocate(t, pool, jobA, 1, "m1", 100, 1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, pool, `UPDATE allocations SET state = 'released' WHERE id = $1`, unclaimed)
	mustExec(t, pool, `UPDATE allocations SET state = 'orphaned' WHERE id = $1`, silent)
	mustExec(t, pool, `UPDATE machines SET state = 'lost' WHERE id = 'm1'`)
	mustExec(t, pool, `UPDATE allocations SET state = 'released', freed_by = 'operator' WHERE id = $1`, silent)
	mustExec(t, pool, `UPDATE machines SET cpu_m_used = cpu_m_used WHERE id = 'm1'`)
	refuses(t, pool, "23514", `UPDATE allocations SET freed_by = 'time' WHERE id = $1`, silent)
	var got string
	err = pool.QueryRow(t.Context(), `
		SELECT string_agg(what, ', ' ORDER BY seq)
		FROM (
			SELECT taken_seq AS seq, 'taken ' || rank AS what FROM allocations
			UNION ALL SELECT orphaned_seq, 'silent ' || rank FROM allocations WHERE orphaned_seq IS NOT NULL
			UNION ALL SELECT freed_seq, format('freed %s by %s from %s', rank, freed_by, freed_from) FROM allocations
			UNION ALL SELECT seq, 'machine ' || state FROM machine_events WHERE gpu IS NULL
			UNION ALL SELECT seq, format('gpu %s %s', gpu, state) FROM machine_events WHERE gpu IS NOT NULL
		) x`).Scan(&got)
	if err != nil {
		t.Fatal(err)
	}
	if want := "machine ready, gpu 0 healthy, gpu 1 healthy, taken 0, taken 1, freed 0 by unclaimed from reserved, silent 1, machine lost, freed 1 by operator from orphaned"; got != want {
		t.Errorf("the ledger says\n%s, want\n%s", got, want)
	}
}

// A reader shows the name of its program, and ends if it stops between two queries. It reads the clock of a primary.
func TestHistoryReadersHaveNamesAndALimit(t *testing.T) {
	t.Parallel()
	h, err := db.OpenHistoryAs(t.Context(), dbtest.URL(t), "berth-sim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	for name, want := range map[string]string{"application_name": "berth-sim", "idle_in_transaction_session_timeout": "10min", "default_transaction_read_only": "on"} {
		if got, err := h.Setting(t.Context(), name); err != nil || got != want {
			t.Errorf("%s is %q, want %q: %v", name, got, want, err)
		}
	}
	if now, err := h.Now(t.Context()); err != nil || time.Since(now).Abs() > time.Hour {
		t.Errorf("now is %s: %v", now, err)
	}
}
