package api_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/api"
	"berth/api/client"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/blob"
	"berth/placement"
	"berth/spec"
)

// readerLimit is the longest time of a call at the 99th percentile (docs/adr/0042-one-board-a-replica-for-reasons.md).
const readerLimit = 200 * time.Millisecond

// BenchmarkReadersOfAQueue measures list, queue and show with the reasons of 10,000 waiting
// jobs on 1,000 full machines, half of them with time limits. Of 50 readers, 5 of each of 10 tenants, each makes its next call
// half a second after the last. It reports the 50th and the 99th percentile of each call, and
// the number of answers without a reason. A 99th percentile above readerLimit, or an answer without a
// reason, is an error.
func BenchmarkReadersOfAQueue(b *testing.B) {
	const tenants, readers, pause, lasts = 10, 50, 500 * time.Millisecond, 20 * time.Second
	s := newCrowd(b, tenants)
	kinds := []string{"list", "queue", "show"}
	for b.Loop() {
		took := make([][]time.Duration, len(kinds))
		var mu sync.Mutex
		var all sync.WaitGroup
		without := 0
		end := time.Now().Add(lasts)
		for r := range readers {
			all.Go(func() {
				c, id := client.New(s.url, s.tokens[r%tenants]), s.jobs[r%tenants]
				time.Sleep(pause * time.Duration(r) / readers)
				for n := r; time.Now().Before(end); n++ {
					began := time.Now()
					reasons, err := ask(b.Context(), c, kinds[n%len(kinds)], id)
					d := time.Since(began)
					mu.Lock()
					took[n%len(kinds)] = append(took[n%len(kinds)], d)
					if without++; reasons {
						without--
					}
					mu.Unlock()
					if err != nil {
						b.Error(err)
						return
					}
					time.Sleep(pause)
				}
			})
		}
		all.Wait()
		for i, kind := range kinds {
			slices.Sort(took[i])
			for _, p := range []int{50, 99} {
				at := took[i][len(took[i])*p/100]
				b.ReportMetric(float64(at.Microseconds())/1000, fmt.Sprintf("%s-p%d-ms", kind, p))
				if p == 99 && at > readerLimit {
					b.Errorf("%s takes %s at the 99th percentile; the limit is %s", kind, at, readerLimit)
				}
			}
		}
		b.ReportMetric(float64(without), "without-reason")
		if without > 0 {
			b.Errorf("%d answers have no reason", without)
		}
	}
}

// ask makes one call of the kind, and reports whether every job of the answer has a reason, and in the queue an
// estimated start.
func ask(ctx context.Context, c *client.Client, kind string, id berth.JobID) (reasons bool, err error) {
	switch kind {
	case "list":
		list, err := c.Jobs(ctx, client.JobsQuery{Status: []berth.State{berth.Queued}, Limit: 50})
		for _, j := range list.Items {
			if j.Waiting == nil || j.Waiting.Code == "unknown" {
				return false, err
			}
		}
		return len(list.Items) == 50, err
	case "queue":
		queue, err := c.Queue(ctx, client.QueueQuery{Limit: 50})
		if err != nil || len(queue.Items) != 50 {
			return false, err
		}
		last := queue.Items[49].Waiting
		return last.Position > 0 && last.EstimatedStart != nil, nil
	}
	job, err := c.Job(ctx, id)
	return job.Waiting != nil && job.Waiting.Code != "unknown", err
}

// crowdSite is a server with 10,000 waiting jobs.
type crowdSite struct {
	url    string
	tokens []string      // a user's, by tenant
	jobs   []berth.JobID // one, by tenant
}

// newCrowd fills 1,000 machines with 2,000 running jobs, and queues 10,000 jobs of 20 requests behind these. All
// running jobs and half of the waiting jobs have a time limit. 4,096 jobs have ended.
func newCrowd(b *testing.B, tenants int) *crowdSite {
	b.Helper()
	d := dbtest.DB(b, db.Options{})
	exec := func(sql string, args ...any) {
		if _, err := d.Pool().Exec(context.Background(), sql, args...); err != nil {
			b.Fatalf("%v\n%s", err, sql)
		}
	}
	store, err := blob.Open(b.Context(), "mem://")
	if err != nil {
		b.Fatal(err)
	}
	server, err := api.New(api.Deps{
		DB: d, Control: d.Jobs, Agent: api.AgentDeps{Blobs: store}, Logger: slog.New(slog.DiscardHandler),
		Version: "test",
		Rate:    1e6, Burst: 1e6, Policy: placement.Policy{Order: placement.Fair, BandWidth: 100, Backfill: 8},
	})
	if err != nil {
		b.Fatal(err)
	}
	web := httptest.NewServer(server.Handler())
	b.Cleanup(func() { server.Close(); web.CloseClientConnections(); web.Close(); server.Wait() })
	exec(`INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb) SELECT 'n' || n, 'ready', 32000, 65536, 1000 FROM generate_series(0, 999) n`)
	exec(`INSERT INTO machine_leases (machine_id, epoch, until) SELECT id, 1, now() + interval '1 day' FROM machines`)
	s := &crowdSite{url: web.URL}
	for n := range tenants {
		tenant := berth.TenantID(fmt.Sprint("t", n))
		token, err := d.Tokens.Create(b.Context(),
			spec.NewToken{Name: string(tenant), Tenant: tenant, Role: spec.RoleUser}, "operator:test")
		if err != nil {
			b.Fatal(err)
		}
		s.tokens = append(s.tokens, token.Secret)
		submitCopies(b, d, tenant, "runs", 16, 2000/tenants)
	}
	startAll(b, d)
	for n := range tenants {
		tenant := berth.TenantID(fmt.Sprint("t", n))
		var id berth.JobID
		for cores := range 20 {
			id = submitCopies(b, d, tenant, "waits", 2+cores, 50)
		}
		s.jobs = append(s.jobs, id)
	}
	exec(`UPDATE jobs SET run_limit_ms = 600000 * (1 + abs(hashtext(id::text)) % 100), version = version + 1
		WHERE name = 'waits' AND abs(hashtext(id::text || 'limit')) % 2 = 0`)
	exec(`INSERT INTO jobs (id, tenant, name, class, priority, preemptible, state, grace_ms, lost_after_ms, actor, finished_at, ran_ms)
		SELECT gen_random_uuid(), j.tenant, j.name, j.class, 500, true, 'succeeded', 0, 0, 'test', now(), 1000 * (60 + 7 * n)
		FROM (SELECT tenant, name, class FROM jobs GROUP BY tenant, name, class LIMIT 128) j, generate_series(1, 32) n`)
	exec(`ANALYZE`)
	for range 20 { // the first reading reads all rows
		if _, err := client.New(s.url, s.tokens[0]).Queue(b.Context(), client.QueueQuery{}); err == nil {
			return s
		}
	}
	b.Fatal("the queue cannot be read")
	return nil
}

// submitCopies queues equal jobs of one tenant and returns the id of one.
func submitCopies(b *testing.B, d *db.DB, tenant berth.TenantID, name string, cores, copies int) berth.JobID {
	b.Helper()
	jobSpec := spec.Job{Name: name, Image: "busybox"}
	cpus := spec.MilliCPU(1000 * cores)
	jobSpec.Resources.CPUs = &cpus
	job, _, err := d.Jobs.Submit(b.Context(),
		db.Submission{Tenant: tenant, Spec: jobSpec.WithDefaults(), Actor: "user:test"})
	if err != nil {
		b.Fatal(err)
	}
	for _, sql := range []string{
		`UPDATE jobs SET state = 'queued', version = version + 1, actor = 'workflow' WHERE id = $1`,
		`INSERT INTO jobs (id, tenant, name, class, priority, preemptible, run_limit_ms, grace_ms, lost_after_ms, labels, actor, idem_hash, state)
		SELECT gen_random_uuid(), tenant, name, class, priority, preemptible, run_limit_ms, grace_ms, lost_after_ms, labels, actor, idem_hash, 'queued'
		FROM jobs, generate_series(2, ` + fmt.Sprint(copies) + `) WHERE id = $1`,
	} {
		if _, err := d.Pool().Exec(b.Context(), sql, job.ID); err != nil {
			b.Fatalf("%v\n%s", err, sql)
		}
	}
	return job.ID
}

// startAll starts the 2,000 waiting jobs, two on each machine, which they fill. They end by their time limits,
// between 4 and 30 hours from now.
func startAll(b *testing.B, d *db.DB) {
	b.Helper()
	term, ok, err := d.Leader.OpenLease(db.LeaseLeader, "test").Acquire(b.Context(), time.Hour)
	if err != nil || !ok {
		b.Fatal(ok, err)
	}
	rows, err := d.Pool().Query(b.Context(), `SELECT id, version FROM jobs WHERE state = 'queued'`)
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	starts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s berth.Start, err error) {
		s.Attempt, s.Ranks = 1, []berth.Grant{{Machine: berth.MachineID(fmt.Sprint("n", n/2)), Epoch: 1,
			Capacity: berth.Capacity{CPUMilli: 16000, MemoryMiB: 2048}}}
		n++
		return s, row.Scan(&s.Job, &s.Version)
	})
	if err != nil {
		b.Fatal(err)
	}
	for batch := range slices.Chunk(starts, 100) {
		if c, err := d.Queue.CommitStarts(b.Context(), term, batch); err != nil || len(c.Started) != len(batch) {
			b.Fatalf("%d of %d jobs started, %v: %+v", len(c.Started), len(batch), err, c.Refused)
		}
	}
	for _, sql := range []string{
		`UPDATE allocations SET state = 'active', phase = 'running', claimed_at = now(), started_at = now()`,
		`UPDATE attempts SET started_at = now() - interval '1 hour' * (abs(hashtext(job::text)) % 20)`,
		`UPDATE jobs SET state = 'running', version = version + 1, run_limit_ms = 3600000 * (24 + abs(hashtext(id::text)) % 7)
		WHERE state = 'scheduled'`,
	} {
		if _, err := d.Pool().Exec(b.Context(), sql); err != nil {
			b.Fatalf("%v\n%s", err, sql)
		}
	}
}
