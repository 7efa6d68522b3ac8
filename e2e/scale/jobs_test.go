package scale_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/api/client"
	"berth/e2e/rig"
	"berth/internal/check"
	"berth/spec"
)

// Names of jobs, by which the rows of a part are found.
const (
	longName   = "long"
	shortName  = "short"
	singleName = "single"
	peakName   = "peak"
	floodName  = "flood"
	smallName  = "small"
)

// shortRuns is how long the process of a short job runs.
const shortRuns = time.Second

// spec is a small job that is spread over the machines, so that each has its
// part of the load.
func jobSpec(name string, command ...string) spec.Job {
	cpus, memory, grace := spec.MilliCPU(100), spec.MiB(64), spec.Duration(time.Second)
	return spec.Job{
		Name: name, Image: "testprog", Command: command, StopGrace: &grace,
		Resources: spec.Resources{CPUs: &cpus, Memory: &memory},
		Placement: spec.Placement{Strategy: "spread"},
	}
}

// cell is a stack with the state that its parts share.
type cell struct {
	*rig.Stack
	t      testing.TB
	table  *rig.Table
	ledger *rig.Ledger
}

func newCell(t testing.TB, s *rig.Stack) *cell {
	t.Helper()
	l, err := rig.OpenLedger(s.LedgerPath("harness"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &cell{Stack: s, t: t, table: &rig.Table{}, ledger: l}
}

// submit submits a job under a key, which makes it safe to repeat the call.
func (c *cell) submit(api *client.Client, tenant berth.TenantID, j spec.Job) berth.JobID {
	c.t.Helper()
	id, err := c.trySubmit(c.t.Context(), api, tenant, j)
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

func (c *cell) trySubmit(ctx context.Context, api *client.Client, tenant berth.TenantID, j spec.Job) (berth.JobID, error) {
	key := berth.NewSecret()
	job, _, err := api.Submit(ctx, j, key)
	if err != nil {
		return "", fmt.Errorf("submit %s: %w", j.Name, err)
	}
	return job.ID, c.ledger.Add(check.Accepted{Tenant: tenant, Key: key, Job: job.ID})
}

// submitArray submits an array of so many elements.
func (c *cell) submitArray(name string, n int, command ...string) berth.JobID {
	c.t.Helper()
	j := jobSpec(name, command...)
	j.Array = &spec.Array{Size: n}
	return c.submit(c.API, "default", j)
}

// lookEvery is the pause between two counts of jobs, which read all of them.
const lookEvery = 500 * time.Millisecond

// starts returns when the elements of a parent started, in that order.
func (c *cell) starts(parent berth.JobID) []time.Time {
	c.t.Helper()
	rows, err := c.DB.Query(c.t.Context(), `
		SELECT started_at
		FROM jobs
		WHERE parent = $1 AND started_at IS NOT NULL
		ORDER BY started_at`, parent)
	if err != nil {
		c.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil {
		c.t.Fatal(err)
	}
	return list
}

// awaitRunning waits until so many elements of a parent are running, and
// returns how many are when the limit has passed.
func (c *cell) awaitRunning(parent berth.JobID, n int, limit time.Duration) int {
	c.t.Helper()
	have := 0
	_ = rig.AwaitEvery(c.t.Context(), lookEvery, limit, func(ctx context.Context) error { // the caller judges the number
		err := c.DB.QueryRow(ctx, `SELECT count(*) FROM jobs WHERE parent = $1 AND state = 'running'`, parent).Scan(&have)
		if err == nil && have < n {
			err = fmt.Errorf("%d of %d jobs run", have, n)
		}
		return err
	})
	return have
}

// live counts the jobs of this name that have not ended, and their parents.
func (c *cell) live(ctx context.Context, name string) (n int, err error) {
	err = c.DB.QueryRow(ctx, `
		SELECT count(*)
		FROM jobs
		WHERE name LIKE $1 || '%' AND state NOT IN ('succeeded', 'failed', 'canceled')`, name).Scan(&n)
	return n, err
}

// settle waits until no job of this name is live; an empty name is any. It
// returns how long that took and how many are left when the limit has passed.
func (c *cell) settle(name string, limit time.Duration) (took time.Duration, left int) {
	c.t.Helper()
	began := time.Now()
	left = 1                                                                              // at least, until it is read
	_ = rig.AwaitEvery(c.t.Context(), lookEvery, limit, func(ctx context.Context) error { // the caller judges the number
		n, err := c.live(ctx, name)
		if err != nil {
			return err // at the limit, or the database is busy: the last number stands
		}
		if left = n; left > 0 {
			err = fmt.Errorf("%d jobs are live", left)
		}
		return err
	})
	return time.Since(began), left
}

// settledBetween counts the jobs of this name that came to their end in a span
// of time.
func (c *cell) settledBetween(name string, from, to time.Time) int {
	c.t.Helper()
	var n int
	if err := c.DB.QueryRow(c.t.Context(), `
		SELECT count(*)
		FROM jobs
		WHERE name LIKE $1 || '%' AND kind = 'job' AND state IN ('succeeded', 'failed', 'canceled') AND finished_at >= $2 AND finished_at < $3`,
		name, from, to).Scan(&n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// wantSucceeded fails the test if a job of this name ended otherwise.
func (c *cell) wantSucceeded(name string, n int) {
	c.t.Helper()
	rows, err := c.DB.Query(c.t.Context(), `SELECT state, count(*)::int FROM jobs WHERE name LIKE $1 || '%' AND kind = 'job' GROUP BY state`, name)
	if err != nil {
		c.t.Fatal(err)
	}
	by := map[string]int{}
	var state string
	var count int
	if _, err := pgx.ForEachRow(rows, []any{&state, &count}, func() error { by[state] = count; return nil }); err != nil {
		c.t.Fatal(err)
	}
	if len(by) != 1 || by["succeeded"] != n {
		c.t.Errorf("jobs named %s ended as %v, want %d succeeded", name, by, n)
	}
}

// waits returns the times from submit to start of the jobs of this name that
// were submitted in a span of time, by the database's clock.
func (c *cell) waits(name string, from, to time.Time) []time.Duration {
	c.t.Helper()
	return c.hop(name, "submitted_at", "started_at", from, to)
}

// unstarted counts the jobs of this name that were submitted in a span of time and have not started.
func (c *cell) unstarted(ctx context.Context, name string, from, to time.Time) (n int, err error) {
	err = c.DB.QueryRow(ctx, `
		SELECT count(*)
		FROM jobs
		WHERE name = $1 AND submitted_at >= $2 AND submitted_at < $3 AND started_at IS NULL`, name, from, to).Scan(&n)
	return n, err
}

// hops are the parts of the time from submit to start: the columns of the job row
// between which each lies.
var hops = []struct{ name, from, to string }{
	{"workflow", "submitted_at", "queued_at"}, // until its first step queued the job
	{"placement", "queued_at", "scheduled_at"},
	{"machine", "scheduled_at", "started_at"},
}

// hopsText describes the p50 and p99 of each hop of the started jobs of this name.
func (c *cell) hopsText(name string, from, to time.Time) string {
	c.t.Helper()
	var parts []string
	for _, h := range hops {
		took := c.hop(name, h.from, h.to, from, to)
		parts = append(parts, fmt.Sprintf("%s %.0f, %.0f", h.name, rig.MS(rig.Quantile(took, 0.5)),
			rig.MS(rig.Quantile(took, 0.99))))
	}
	return strings.Join(parts, "; ") + " ms (p50, p99)"
}

// hop returns the times between two columns of the rows of started jobs.
func (c *cell) hop(name, column, until string, from, to time.Time) []time.Duration {
	c.t.Helper()
	rows, err := c.DB.Query(c.t.Context(), `
		SELECT extract(epoch FROM `+until+` - `+column+`)::float8
		FROM jobs
		WHERE name = $1 AND submitted_at >= $2 AND submitted_at < $3 AND started_at IS NOT NULL`, name, from, to)
	if err != nil {
		c.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[float64])
	if err != nil {
		c.t.Fatal(err)
	}
	var all []time.Duration
	for _, s := range list {
		all = append(all, time.Duration(s*float64(time.Second)))
	}
	return all
}

// oneByOne submits single jobs, each after the end of the one before, and
// returns their times from submit to start.
func (c *cell) oneByOne(n int) []time.Duration {
	c.t.Helper()
	from := c.now()
	for range n {
		id := c.submit(c.API, "default", jobSpec(singleName, "exit", "0"))
		ctx, cancel := context.WithTimeout(c.t.Context(), rig.Patience)
		_, err := c.API.Wait(ctx, id)
		cancel()
		if err != nil {
			c.t.Fatalf("a single job: %v", err)
		}
	}
	return c.waits(singleName, from, c.now())
}

// now is the database's clock, by which rows are selected.
func (c *cell) now() (at time.Time) {
	c.t.Helper()
	if err := c.DB.QueryRow(c.t.Context(), `SELECT clock_timestamp()`).Scan(&at); err != nil {
		c.t.Fatal(err)
	}
	return at
}

// submitters call at once where a part submits as fast as it can.
const submitters = 16

// peakRate submits n jobs at once and returns how many came to their end a
// second, from the first submit to the last end.
func (c *cell) peakRate(n int, limit time.Duration) (rate float64, left int) {
	c.t.Helper()
	began := c.now()
	next := make(chan struct{})
	var all sync.WaitGroup
	for range submitters {
		all.Go(func() {
			for range next {
				if _, err := c.trySubmit(c.t.Context(), c.API, "default", jobSpec(peakName, "exit", "0")); err != nil {
					c.t.Error(err)
				}
			}
		})
	}
	for range n {
		next <- struct{}{}
	}
	close(next)
	all.Wait()
	_, left = c.settle(peakName, limit)
	var ended time.Time
	if err := c.DB.QueryRow(c.t.Context(), `SELECT coalesce(max(finished_at), clock_timestamp()) FROM jobs WHERE name = $1`, peakName).Scan(&ended); err != nil {
		c.t.Fatal(err)
	}
	return float64(n-left) / ended.Sub(began).Seconds(), left
}

// tenantToken creates a token for a tenant.
func (c *cell) tenantToken(name berth.TenantID) string {
	c.t.Helper()
	token, err := c.API.CreateToken(c.t.Context(), spec.NewToken{Name: string(name), Tenant: name})
	if err != nil {
		c.t.Fatal(err)
	}
	return token.Secret
}

// wantKept checks that no accepted job was lost and none ran twice at once.
func (c *cell) wantKept(settled bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
	defer cancel()
	if err := c.Check(ctx, settled, c.LedgerPath("harness"), c.LedgerPath(generatorHelper), c.LedgerPath(rig.ProbeHelper)); err != nil {
		c.t.Error(err)
	}
}

// Waits and looks of the small form, which runs on machines that are busy.
const (
	settleLimit = rig.Patience
	watchEvery  = 250 * time.Millisecond
)

// noShort watches machines only.
var noShort = rig.Short{}

// wantForgotten waits until no machine holds anything of any job.
func (c *cell) wantForgotten() {
	c.t.Helper()
	until(c.t, "no machine holds anything", settleLimit, func(ctx context.Context) error {
		var n int
		err := c.DB.QueryRow(ctx, `SELECT count(*) FROM allocations WHERE forgotten_at IS NULL`).Scan(&n)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d allocations are not forgotten", n)
		}
		return err
	})
}

// wantLossSeen proves that the verdict on lost jobs can fail: it claims a job
// that never was.
func (c *cell) wantLossSeen() {
	c.t.Helper()
	path := c.LedgerPath("lost")
	l, err := rig.OpenLedger(path)
	if err == nil {
		err = errors.Join(l.Add(check.Accepted{Tenant: "default", Key: "lost", Job: berth.NewJobID(time.Now())}), l.Close())
	}
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.Check(c.t.Context(), true, path); err == nil {
		c.t.Error("berth-check does not see that an accepted job is lost")
	}
}
