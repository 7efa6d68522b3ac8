package scheduler_test

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/devstack/postgres"
)

// durable is a rig on a PostgreSQL with default durability.
func durable(b *testing.B) *rig {
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
	return newRigAt(b, c.URL("bench"))
}

// fleet makes machines of 64 CPUs with room for n jobs of one CPU.
func (r *rig) fleet(n int) {
	r.t.Helper()
	machines := n/64 + 1
	r.exec(`INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb)
		SELECT 'm' || i, 'ready', 64000, 1 << 20, 1 << 20 FROM generate_series(1, $1) i`, machines)
	r.exec(`INSERT INTO machine_leases (machine_id, epoch, until, seen_at)
		SELECT id, 1, now() + interval '1 day', now() + interval '1 day' FROM machines`)
}

// BenchmarkBacklog places a backlog of jobs of one CPU through the whole
// leader: feed, plan, commit, hints.
func BenchmarkBacklog(b *testing.B) {
	const jobs = 20_000
	var rates []float64
	for b.Loop() {
		b.StopTimer()
		r := durable(b)
		r.fleet(jobs)
		first := r.queued(nil)
		r.exec(`INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
			SELECT gen_random_uuid(), 'default', 'bench', class, 500, true, 30000, 90000, 'user:bench' FROM jobs, generate_series(2, $1) WHERE id = $2`, jobs, first)
		r.exec(`UPDATE jobs SET state = 'queued', version = version + 1 WHERE state = 'submitted'`)
		r.exec(`VACUUM ANALYZE`)
		r.exec(`CHECKPOINT`)
		b.StartTimer()
		stop := r.lead(nil)
		for poll := time.NewTicker(100 * time.Millisecond); value[int](r, `SELECT count(*) FROM jobs WHERE state = 'queued'`) > 0; {
			<-poll.C
		}
		b.StopTimer()
		stop()
		rates = append(rates, value[float64](r, `SELECT ($1 - 1000) / extract(epoch FROM max(placed_at) - min(placed_at))::float8 FROM attempts`, jobs))
		r.sound()
		b.StartTimer()
	}
	slices.Sort(rates)
	b.ReportMetric(rates[len(rates)/2], "placements/s")
}

// BenchmarkIdle measures one job from the moment it is queued until it is
// placed, on a leader with nothing else to do.
func BenchmarkIdle(b *testing.B) {
	r := durable(b)
	r.fleet(100_000)
	r.lead(nil)
	r.awaitState(r.queued(nil), berth.Scheduled)
	var waits []time.Duration
	for b.Loop() {
		b.StopTimer()
		id := r.submitted(nil)
		placed := r.db.Hub().Subscribe(db.TopicJob, string(id))
		b.StartTimer()
		if _, err := r.db.Jobs.Load(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		queued := time.Now()
		<-placed.C // it is queued
		<-placed.C
		waits = append(waits, time.Since(queued))
		placed.Close()
	}
	slices.Sort(waits)
	b.ReportMetric(float64(waits[len(waits)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(waits[len(waits)*99/100].Microseconds())/1000, "p99-ms")
}
