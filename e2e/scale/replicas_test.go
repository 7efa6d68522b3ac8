package scale_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/e2e/rig"
)

// Bounds of the part replicas.
const (
	gapSettledMust  = 10.0 // s from the end of a process whose waiter is gone to its settled job
	leaderAfterMust = 5.0  // s from the loss of the leader to the next one
)

// endingName names the jobs that end while a replica is lost.
const endingName = "ending"

// loss describes how the replica that holds the waiters is lost. strike takes it
// away, mend brings it back. moved reports that the other replicas take its
// waiters up; a replica that was only out of reach keeps them.
type loss struct {
	name         string
	strike, mend func(*rig.Replica) error
	moved        bool
}

func (c *cell) losses() map[string]loss {
	never := func(f func(*rig.Replica)) func(*rig.Replica) error {
		return func(r *rig.Replica) error { f(r); return nil }
	}
	again := func(r *rig.Replica) error { return r.Start(c.t.Context()) }
	list := map[string]loss{}
	for _, l := range []loss{
		{"freeze", never((*rig.Replica).Freeze), never((*rig.Replica).Thaw), false},
		{"partition", never((*rig.Replica).Cut), never((*rig.Replica).Heal), false},
		{"drain", (*rig.Replica).Stop, again, true},
		{"kill", never(func(r *rig.Replica) { r.Process().Kill() }), again, true},
	} {
		list[l.name] = l
	}
	return list
}

// pair is a control plane of two replicas, of which one holds the waiters of all
// long jobs.
type pair struct {
	*cell
	parent     berth.JobID
	jobs       int
	singles    int           // at least, before and while a replica is lost
	holdFor    time.Duration // length of a freeze and a partition
	gap        time.Duration // longest wait for ended jobs before the replica comes back
	attachFor  time.Duration // longest wait for the waiters; 0: none
	ending     int           // jobs that end while a replica is lost
	endingRuns time.Duration // length of their processes
	quiet      []time.Duration
}

// newPair starts long jobs on one replica, so that it holds all their waiters, and
// then adds the other one.
func (c *cell) newPair(p pair, limit time.Duration) *pair {
	c.t.Helper()
	p.cell = c
	p.parent = c.submitArray(longName, p.jobs, "sleep", "12h")
	if have := c.awaitRunning(p.parent, p.jobs, limit); have < p.jobs {
		c.t.Fatalf("%d of %d long jobs run", have, p.jobs)
	}
	second, err := c.AddReplica(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	first := c.Replicas()[0]
	c.Front(first, second)
	if _, missing := p.awaitWaiters(waitersWithin); missing > 0 {
		// A task that Temporal handed to a poll which had just ended is repeated after
		// wire.WaiterTimeout. The following steps are not to blame for it.
		c.table.Remark("before: %d running members have no waiter", missing)
	}
	p.quiet = p.oneByOne(p.singles)
	c.say("%d jobs run, with their waiters in %s; single jobs p50 %.0f ms, p99 %.0f ms", p.jobs, first.Name,
		rig.MS(rig.Quantile(p.quiet, 0.5)), rig.MS(rig.Quantile(p.quiet, 0.99)))
	return &p
}

// waitersWithin is how long after the start of its job a member may be without a
// waiter here.
const waitersWithin = 10 * time.Second

// waiters returns how many members each replica that answers waits for.
func (p *pair) waiters(ctx context.Context) (sum int, holder, other *rig.Replica, err error) {
	most := -1
	for _, r := range p.Replicas() {
		n, err := r.Waiters(ctx)
		if err != nil {
			return 0, nil, nil, err
		}
		sum += n
		if n > most {
			holder, other, most = r, holder, n
		} else {
			other = r
		}
	}
	return sum, holder, other, nil
}

// awaitWaiters waits until every long job has a waiter, and returns how long that
// took and how many are missing when the limit has passed.
func (p *pair) awaitWaiters(limit time.Duration) (took time.Duration, missing int) {
	p.t.Helper()
	began := time.Now()
	missing = p.jobs
	_ = rig.AwaitEvery(p.t.Context(), lookEvery, limit, func(ctx context.Context) error { // the caller judges the number
		n, _, _, err := p.waiters(ctx)
		if err == nil {
			if missing = max(0, p.jobs-n); missing > 0 {
				err = fmt.Errorf("%d waiters of %d", n, p.jobs)
			}
		}
		return err
	})
	return time.Since(began), missing
}

// term returns the present term of the leader, and whether its lease is valid.
func (p *pair) term(ctx context.Context) (n int64, err error) {
	err = p.DB.QueryRow(ctx, `SELECT coalesce(max(epoch), 0) FROM leases WHERE name = $1 AND expires_at > clock_timestamp()`, db.LeaseLeader).Scan(&n)
	return n, err
}

// watchTerm watches for the next term from now on. The function that it returns
// waits for the end of the watch and returns how many seconds after began the term
// came; NaN if it did not come within a minute.
func (p *pair) watchTerm(began time.Time) func() float64 {
	p.t.Helper()
	var was int64
	until(p.t, "a replica leads", rig.Patience, func(ctx context.Context) (err error) {
		if was, err = p.term(ctx); err == nil && was == 0 {
			err = errors.New("nobody does")
		}
		return err
	})
	after := make(chan float64, 1)
	go func() {
		err := rig.AwaitEvery(p.t.Context(), 50*time.Millisecond, time.Minute, func(ctx context.Context) error {
			now, err := p.term(ctx)
			if err == nil && now <= was {
				err = errors.New("the lead has not changed")
			}
			return err
		})
		if err != nil {
			after <- math.NaN()
			return
		}
		after <- time.Since(began).Seconds()
	}()
	return func() float64 { return <-after }
}

// lose takes away the replica that holds the waiters, and records the effect.
func (p *pair) lose(l loss) {
	p.t.Helper()
	var victim, survivor *rig.Replica
	until(p.t, "both replicas tell their waiters", rig.Patience, func(ctx context.Context) (err error) {
		_, victim, survivor, err = p.waiters(ctx)
		return err
	})
	leads := p.leads(victim)
	ending := p.submitArray(endingName, p.ending, "sleep", p.endingRuns.String())
	if have := p.awaitRunning(ending, p.ending, time.Minute); have < p.ending {
		p.table.Remark("%s: only %d of %d ending jobs ran at once", l.name, have, p.ending)
	}
	w := p.StartWatch(watchEvery, rig.Short{Name: endingName, Runs: p.endingRuns})
	began := time.Now()
	next := func() float64 { return math.NaN() }
	if leads {
		next = p.watchTerm(began)
	}
	p.Front(survivor)
	struck := make(chan error, 1)
	go func() { struck <- l.strike(victim) }()
	var singles []time.Duration
	for len(singles) < p.singles || time.Since(began) < p.holdFor {
		singles = append(singles, p.oneByOne(min(10, p.singles))...)
	}
	if err := <-struck; err != nil {
		p.t.Errorf("%s of %s: %v", l.name, victim.Name, err)
	}
	p.settle(endingName, p.gap)
	lasted := time.Since(began)
	if err := l.mend(victim); err != nil {
		p.t.Fatalf("end the %s of %s: %v", l.name, victim.Name, err)
	}
	p.Front(victim, survivor)
	_, left := p.settle(endingName, settleLimit)
	p.addLoss(l, victim.Name, singles, w.Stop(), left, lasted)
	if leads {
		p.table.Add(rig.Figure{Name: l.name + ": the next leader after", Value: next(), Unit: "s", Must: rig.Limit(leaderAfterMust)})
	}
	if p.attachFor == 0 {
		return
	}
	took, missing := p.awaitWaiters(p.attachFor)
	note := "kept, as the replica came back"
	if l.moved {
		note = fmt.Sprintf("the last came %.0f s after the loss", (lasted + took).Seconds())
	}
	p.table.Add(rig.Figure{Name: l.name + ": running members without a waiter", Value: float64(missing), Must: rig.Limit(0), Note: note})
	p.say("%s of %s: every running member but %d has a waiter, %.0f s after the loss", l.name, victim.Name, missing, (lasted + took).Seconds())
}

// leads reports whether a replica leads now.
func (p *pair) leads(r *rig.Replica) bool {
	p.t.Helper()
	var leads bool
	until(p.t, r.Name+" tells whether it leads", rig.Patience, func(ctx context.Context) (err error) {
		leads, err = r.Leads(ctx)
		return err
	})
	return leads
}

func (p *pair) addLoss(l loss, victim string, singles []time.Duration, seen rig.Seen, left int, lasted time.Duration) {
	p.t.Helper()
	for _, q := range []struct {
		name string
		part float64
	}{{"p50", 0.5}, {"p99", 0.99}} {
		now, was := rig.Quantile(singles, q.part), rig.Quantile(p.quiet, q.part)
		p.table.Add(rig.Figure{Name: fmt.Sprintf("%s: submit to start of a single job, %s", l.name, q.name), Value: float64(now) / float64(was), Unit: "x before",
			Must: rig.Limit(besideOverEmpty), Note: fmt.Sprintf("%.0f ms; before %.0f ms; worst of %d: %.0f ms", rig.MS(now), rig.MS(was), len(singles), rig.MS(rig.Quantile(singles, 1)))})
	}
	p.table.Add(rig.Figure{Name: l.name + ": ended process shown as running, longest", Value: seen.ShownRunning.Seconds(), Unit: "s", Must: rig.Limit(gapSettledMust),
		Note: fmt.Sprintf("%d jobs ended within %.0f s", p.ending, lasted.Seconds())})
	p.table.Add(rig.Figure{Name: l.name + ": ended jobs that do not settle", Value: float64(left), Must: rig.Limit(0)})
	p.table.Add(rig.Figure{Name: l.name + ": attempts spent", Value: float64(p.spent()), Must: rig.Limit(0)})
	p.addSilence(l.name, seen)
	p.say("%s of %s for %.0f s: single jobs p50 %.0f ms, p99 %.0f ms; shown as running for up to %.1f s", l.name, victim, lasted.Seconds(),
		rig.MS(rig.Quantile(singles, 0.5)), rig.MS(rig.Quantile(singles, 0.99)), seen.ShownRunning.Seconds())
}

// spent counts attempts beyond the first of any job, and long jobs that do not run.
func (p *pair) spent() int {
	p.t.Helper()
	var n int
	err := p.DB.QueryRow(p.t.Context(), `
		SELECT coalesce(sum(attempt - 1) FILTER (WHERE attempt > 1), 0)::int + count(*) FILTER (WHERE parent = $1 AND state <> 'running')::int
		FROM jobs`, p.parent).Scan(&n)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// run goes through the faults by name. rolling restarts both replicas, the one
// with the waiters first.
func (p *pair) run(faults string) {
	p.t.Helper()
	known := p.losses()
	for name := range strings.SplitSeq(faults, ",") {
		if name == "rolling" {
			first := known["drain"]
			first.name = "rolling restart, first"
			p.lose(first)
			first.name = "rolling restart, second"
			p.lose(first)
			continue
		}
		l, ok := known[name]
		if !ok {
			p.t.Fatalf("fault %q: allowed are freeze, partition, drain, rolling, kill", name)
		}
		p.lose(l)
	}
}

// BenchmarkReplicas loses the replica with the waiters of thousands of members in every way, and
// judges the effect on other callers.
func BenchmarkReplicas(b *testing.B) {
	began := time.Now()
	c := newCell(b, startWith(b, rig.Options{Linked: true, Programs: *programs}))
	defer func() { // also after a fault that could not be mended
		c.table.Remark("measured in %s on %d cores, load %s", time.Since(began).Round(time.Second), runtime.NumCPU(), rig.LoadAverage())
		c.table.Remark("%s", c.ApartText())
		c.table.Print(os.Stdout)
		if n := c.table.Missed(); n > 0 {
			b.Errorf("%d figures are outside their bounds", n)
		}
	}()
	c.measureJoin(*agents)
	list := numbers(b, *running)
	p := c.newPair(pair{
		jobs: list[len(list)-1], singles: *singles, ending: 20, endingRuns: 10 * time.Second, holdFor: *holdFor, gap: time.Minute, attachFor: *attachFor,
	}, *startFor)
	p.run(*faults)
	c.wantKept(false)
}

// Sizes of the small form.
const (
	pairAgents = 6
	pairLong   = 60
)

// After a kill waiters come again when their heartbeats are missed, which takes
// minutes; so the small form hands them over, and kills last without waiting. A task
// that Temporal loses on a crowded machine takes as long; so nearly all must come.
func TestLossOfTheReplicaWithAllWaitersSpendsNoAttempt(t *testing.T) {
	c := newCell(t, startWith(t, rig.Options{Linked: true, Programs: *programs}))
	c.measureJoin(pairAgents)
	p := c.newPair(pair{jobs: pairLong, singles: 5, ending: 6, endingRuns: 3 * time.Second, holdFor: 4 * time.Second, gap: 6 * time.Second}, settleLimit)
	p.run("freeze,drain")
	until(t, "the other replica has nearly all waiters", settleLimit, func(ctx context.Context) error {
		n, _, _, err := p.waiters(ctx)
		if err == nil && n < pairLong*8/10 {
			err = fmt.Errorf("%d waiters of %d", n, pairLong)
		}
		return err
	})
	p.run("kill")
	for _, f := range c.table.Figures {
		judged := strings.Contains(f.Name, "attempts spent") || strings.Contains(f.Name, "do not settle") ||
			strings.Contains(f.Name, "silent")
		if judged && f.Verdict() == "MISSED" {
			t.Errorf("%s: %v (%s)", f.Name, f.Value, f.Note)
		}
	}
	if _, err := c.API.Cancel(t.Context(), p.parent); err != nil {
		t.Fatal(err)
	}
	if _, left := c.settle("", settleLimit); left > 0 {
		t.Fatalf("%d jobs do not settle", left)
	}
	c.wantSucceeded(endingName, 3*p.ending)
	c.wantKept(true)
	c.table.Print(os.Stdout)
}
