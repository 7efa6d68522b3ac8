package bench_test

import (
	"context"
	"fmt"

	"berth"
	"berth/db"
	"berth/internal/control/scheduler"
)

// pokes drops all notifications: these jobs have no workflows.
type pokes struct{}

func (pokes) Poke(...berth.JobID) {}
func (pokes) Healthy() bool       { return true }

// measurePlacement gives a leader of its own, on a database of its own in the same cluster, a
// backlog of jobs of one CPU, and counts its commits a second: feed, plan, commit and
// notifications together.
func (s *stack) measurePlacement(t *table, rounds, jobs int) {
	var rates []float64
	for i := range rounds {
		rates = append(rates, s.placeBacklog(fmt.Sprintf("backlog_%d", i), jobs))
		fmt.Printf("round %d: %.0f placements/s\n", i+1, rates[i])
	}
	t.add(figure{name: "durable placements per second of the leader", value: median(rates), unit: "/s", must: 10_000, aim: 10_000, high: true,
		note: fmt.Sprintf("%d jobs, batches of 1,000", jobs)})
}

func (s *stack) placeBacklog(name string, jobs int) float64 {
	s.must(s.postgres.CreateDatabase(s.b.Context(), name))
	s.must(db.Migrate(s.b.Context(), s.postgres.URL(name)))
	d, err := db.Open(s.b.Context(), s.postgres.URL(name), db.Options{})
	s.must(err)
	defer d.Close()
	_, _, err = d.Jobs.Submit(s.b.Context(), db.Submission{Tenant: "default", Spec: jobSpec(fake, "testprog").WithDefaults(), Actor: "user:bench"})
	s.must(err)
	for _, sql := range []string{
		`INSERT INTO machines (id, state, labels, cpu_m, mem_mb, disk_mb)
		SELECT 'm' || i, 'ready', '{"engine":"fake"}', 6400, 1 << 20, 1 << 20 FROM generate_series(0, $1::int / 64) i`,
		`INSERT INTO machine_leases (machine_id, epoch, until, seen_at)
		SELECT id, 1, now() + interval '1 day', now() + interval '1 day' FROM machines WHERE $1::int > 0`,
		`INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
		SELECT gen_random_uuid(), 'default', 'bench', class, 500, true, 30000, 90000, 'user:bench'
		FROM jobs, generate_series(2, $1::int)`,
	} {
		_, err := d.Pool().Exec(s.b.Context(), sql, jobs)
		s.must(err)
	}
	for _, sql := range []string{
		`UPDATE jobs SET state = 'queued', version = version + 1`, `VACUUM ANALYZE`, `CHECKPOINT`,
	} {
		_, err := d.Pool().Exec(s.b.Context(), sql)
		s.must(err)
	}
	leader := scheduler.New(scheduler.Options{DB: d, Poker: pokes{}, Logger: s.log})
	stop := s.run("leader of "+name, func(ctx context.Context) error { return leader.Run(ctx) })
	s.until("the backlog is placed", func() bool {
		var left bool
		s.must(d.Pool().QueryRow(s.b.Context(), `SELECT EXISTS (SELECT 1 FROM jobs WHERE state = 'queued')`).Scan(&left))
		return !left
	})
	stop()
	// The first batch starts the clock, so it is not counted.
	var rate float64
	s.must(d.Pool().QueryRow(s.b.Context(), `
		SELECT (count(*) FILTER (WHERE placed_at > first))::float8 / extract(epoch FROM max(placed_at) - min(first))::float8
		FROM attempts, (SELECT min(placed_at) AS first FROM attempts) x`).Scan(&rate))
	if wrong, err := d.Cluster.Miscounts(s.b.Context()); err != nil || len(wrong) > 0 {
		s.b.Fatalf("counters do not add up: %v, %v", wrong, err)
	}
	return rate
}
