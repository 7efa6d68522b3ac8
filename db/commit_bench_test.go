package db_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/devstack/postgres"
)

// durable starts a PostgreSQL with default durability: the figures below are
// worth nothing without fsync.
func durable(b *testing.B) *db.DB {
	b.Helper()
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		b.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	c, err := postgres.Start(b.Context(), postgres.Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = c.Stop(context.Background())
		_ = os.RemoveAll(dir)
	})
	if err := c.CreateDatabase(b.Context(), "bench"); err != nil {
		b.Fatal(err)
	}
	if err := db.Migrate(b.Context(), c.URL("bench")); err != nil {
		b.Fatal(err)
	}
	d, err := db.Open(b.Context(), c.URL("bench"), db.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(d.Close)
	var fsync, sync string
	if err := d.Pool().QueryRow(b.Context(), `SELECT current_setting('fsync'), current_setting('synchronous_commit')`).Scan(&fsync, &sync); err != nil {
		b.Fatal(err)
	}
	if fsync != "on" || sync != "on" {
		b.Fatalf("fsync %s, synchronous_commit %s: not durable", fsync, sync)
	}
	return d
}

// fillQueue inserts n queued jobs of one CPU and returns their ids.
func fillQueue(b *testing.B, d *db.DB, n int) []berth.JobID {
	b.Helper()
	ids := make([]berth.JobID, n)
	for i := range ids {
		ids[i] = berth.NewJobID(time.Now())
	}
	for _, sql := range []string{`
		INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
		SELECT id, 'default', 'bench', 'c', 500, true, 30000, 90000, 'user:bench' FROM unnest($1::uuid[]) AS id`,
		`UPDATE jobs SET state = 'queued', version = 2 WHERE id = ANY($1::uuid[])`,
	} {
		if _, err := d.Pool().Exec(b.Context(), sql, ids); err != nil {
			b.Fatal(err)
		}
	}
	return ids
}

func BenchmarkCommitStarts(b *testing.B) {
	for _, size := range []int{1, 10, 200, 1000} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			d := durable(b)
			const machines = 1000
			if _, err := d.Pool().Exec(b.Context(), `
				INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb)
				SELECT 'm' || i, 'ready', 1000000000, 1000000000, 1000000000 FROM generate_series(0, $1 - 1) i`, machines); err != nil {
				b.Fatal(err)
			}
			lease := d.Leader.OpenLease(db.LeaseLeader, "bench")
			term, ok, err := lease.Acquire(b.Context(), time.Hour)
			if !ok || err != nil {
				b.Fatalf("lease: %v %v", ok, err)
			}
			ids := fillQueue(b, d, size*b.N)
			if _, err := d.Pool().Exec(b.Context(), `VACUUM ANALYZE`); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for n := 0; n < b.N; n++ {
				starts := make([]berth.Start, size)
				for i := range starts {
					starts[i] = berth.Start{Job: ids[n*size+i], Version: 2, Attempt: 1, Ranks: []berth.Grant{{
						// Packing fills machine after machine: 64 jobs on each.
						Machine: berth.MachineID(fmt.Sprintf("m%d", (n*size+i)/64%machines)), Epoch: 1,
						Capacity: berth.Capacity{CPUMilli: 1000, MemoryMiB: 2048},
					}}}
				}
				c, err := d.Queue.CommitStarts(b.Context(), term, starts)
				if err != nil || len(c.Started) != size {
					b.Fatalf("started %d of %d: %v %v", len(c.Started), size, c.Refused, err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(size*b.N)/b.Elapsed().Seconds(), "placements/s")
		})
	}
}
