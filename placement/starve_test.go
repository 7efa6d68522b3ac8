package placement_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// stream keeps a number of a tenant's jobs waiting throughout the test.
type stream struct {
	tenant   berth.TenantID
	request  spec.Request
	priority int
	lasts    time.Duration
	waiting  int // number of jobs
}

// flow submits jobs until every stream has its number of waiting jobs.
func (a *arena) flow(streams []stream, draw func() time.Duration) {
	type kind struct {
		tenant berth.TenantID
		class  string
	}
	waits := map[kind]int{}
	for _, j := range a.jobs {
		waits[kind{j.Tenant, j.Class}]++
	}
	for _, s := range streams {
		for waits[kind{s.tenant, s.request.Class()}] < s.waiting {
			waits[kind{s.tenant, s.request.Class()}]++
			a.job(s.request, placement.Job{Tenant: s.tenant, Priority: s.priority, Preemptible: true, TimeLimit: s.lasts}, s.lasts-draw())
		}
	}
}

// ahead counts the waiting jobs that were submitted before a job.
func (a *arena) ahead(of placement.Job) int {
	n := 0
	for _, j := range a.jobs {
		if j.SubmittedAt.Before(of.SubmittedAt) || j.SubmittedAt.Equal(of.SubmittedAt) && j.ID < of.ID {
			n++
		}
	}
	return n
}

// longest is the longest run time of the streams' jobs and of the jobs that starve without Overdue.
const longest = 30 * time.Minute

// TestNothingStarves checks that a job starts within a bound known in advance, even under endless
// streams of later jobs. Once the job is overdue, its tenant's jobs make way. The job then waits for one
// run of the longest length per overdue job submitted before it, and one more. Where jobs cannot age
// across bands, all jobs have the same band.
func TestNothingStarves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.SampledFrom([]placement.Order{placement.Fair, placement.Fair, placement.Fair, placement.Priority, placement.FIFO, placement.SRSF}).Draw(t, "order")
		crosses := order != placement.SRSF && rapid.Bool().Draw(t, "crosses")
		const overdue = time.Hour
		p := placement.Policy{
			Order: order, BandWidth: 100, Overdue: overdue, Exponent: 1, Backfill: rapid.IntRange(1, 3).Draw(t, "backfill"), AssumeRun: longest,
			Preempt: order == placement.Fair && !crosses && rapid.Bool().Draw(t, "preempt"), PreemptAfter: 10 * time.Minute,
			HalfLife: time.Hour * time.Duration(rapid.IntRange(0, 1).Draw(t, "half life")), EntryPenalty: time.Minute,
		}
		if crosses {
			p.Aging, p.Cross = time.Minute, true
		}
		a := newArena(t, placement.Planner{Policy: p})
		gpus := 0
		machines := rapid.IntRange(1, 2).Draw(t, "machines")
		size := rapid.SampledFrom([]int{2, 4}).Draw(t, "gpus")
		for range machines {
			a.machine(size)
			gpus += size
		}
		tenants := rapid.IntRange(1, 4).Draw(t, "tenants")
		for i := range tenants {
			a.tenant(placement.Tenant{ID: berth.TenantID(fmt.Sprintf("t%d", i)), Weight: float64(rapid.IntRange(1, 3).Draw(t, "weight"))})
		}
		priority := func() int {
			if crosses {
				return 100 * rapid.IntRange(0, 3).Draw(t, "priority")
			}
			return 100
		}
		var streams []stream
		for i := range tenants {
			for range rapid.IntRange(1, 2).Draw(t, "streams") {
				streams = append(streams, stream{
					tenant: berth.TenantID(fmt.Sprintf("t%d", i)), request: gpuRequest(rapid.IntRange(1, 2).Draw(t, "asks for"), 1), priority: priority(),
					lasts: time.Minute * time.Duration(rapid.IntRange(10, 30).Draw(t, "lasts")), waiting: rapid.IntRange(1, 3).Draw(t, "waiting"),
				})
			}
		}
		early := func() time.Duration { return time.Minute * time.Duration(rapid.IntRange(0, 9).Draw(t, "early")) }
		for range rapid.IntRange(0, 6).Draw(t, "steps before") {
			a.flow(streams, early)
			a.enact(a.planner.Plan(a.s, a.now))
			a.advance()
		}
		request := gpuRequest(rapid.IntRange(1, size).Draw(t, "size"), rapid.IntRange(1, machines).Draw(t, "members"))
		a.job(request, placement.Job{
			Tenant: berth.TenantID(fmt.Sprintf("t%d", rapid.IntRange(0, tenants-1).Draw(t, "tenant"))), Priority: priority(), TimeLimit: longest,
		}, longest)
		waits := a.jobs[berth.JobID(fmt.Sprintf("j%02d", len(a.lasts)-1))]
		limit := time.Time{}
		for {
			if late := waits.SubmittedAt.Add(overdue + overdue/64); limit.IsZero() && !a.now.Before(late) {
				limit = a.now.Add(time.Duration(a.ahead(waits)+3) * (longest + time.Minute))
			}
			a.flow(streams, early)
			a.enact(a.planner.Plan(a.s, a.now))
			if _, still := a.jobs[waits.ID]; !still {
				return
			}
			if !limit.IsZero() && a.now.After(limit) {
				t.Fatalf("%s waits since %s, and still at %s", waits.ID, waits.SubmittedAt, a.now)
			}
			a.advance()
		}
	})
}

// TestWithoutOverdueSomeStarve checks that the bound depends on Overdue: without it, endless streams of
// small jobs of four tenants starve a job of a fifth tenant that asks for the whole machine.
func TestWithoutOverdueSomeStarve(t *testing.T) {
	t.Parallel()
	for _, overdue := range []time.Duration{0, time.Hour} {
		a := newArena(t, placement.Planner{Policy: placement.Policy{Overdue: overdue, Backfill: 1, AssumeRun: longest}})
		a.machine(8)
		var streams []stream
		for i := range 4 {
			id := berth.TenantID(fmt.Sprintf("t%d", i))
			a.tenant(placement.Tenant{ID: id})
			streams = append(streams, stream{tenant: id, request: gpuRequest(1, 1), lasts: longest, waiting: 3})
		}
		ends := 0
		stagger := func() time.Duration { ends++; return time.Duration(ends%7) * time.Minute }
		a.flow(streams, stagger)
		a.enact(a.planner.Plan(a.s, a.now))
		a.tenant(placement.Tenant{ID: "large"})
		a.job(gpuRequest(8, 1), placement.Job{Tenant: "large", TimeLimit: longest}, longest)
		id := berth.JobID(fmt.Sprintf("j%02d", len(a.lasts)-1))
		still := true
		for still && a.now.Before(epoch.Add(24*time.Hour)) {
			a.advance()
			a.flow(streams, stagger)
			a.enact(a.planner.Plan(a.s, a.now))
			_, still = a.jobs[id]
		}
		if still != (overdue == 0) {
			t.Errorf("with overdue %s: waits still %t", overdue, still)
		}
	}
}
