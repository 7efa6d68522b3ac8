package scheduler

import (
	"context"
	"slices"
	"time"

	"berth"
	"berth/db"
	"berth/internal/lib/failpoint"
	"berth/internal/lib/overload"
	"berth/placement"
)

// Timing of the loop that places.
const (
	tick        = 2 * time.Second       // look, whether or not a hint came
	maxPause    = 50 * time.Millisecond // between two looks while hints keep coming
	minPause    = 5 * time.Millisecond
	behindPause = 50 * time.Millisecond // before the next look while the feed waits for a transaction
	reloadEvery = 5 * time.Minute
	batchSize   = 1000
	commitLimit = 10 * time.Second
)

// placer is the loop that places jobs: read the feed, plan, commit. While a commit is under way
// the next batch is planned, on a snapshot in which the starts of the first one already count.
//
// Preemptions, which are rare, are committed at once, before the starts.
//
//	hint ──► read ──► plan ──► assume ──► commit ──► poke
//	           ▲                            │
//	           └──── drop, read again ◄─────┘
type placer struct {
	*Scheduler
	term   db.Term
	mirror *mirror
	engine placement.Planner

	next    []berth.Start             // planned and assumed, not yet being committed
	more    bool                      // the latest plan was cut off
	held    bool                      // the gate let fewer starts pass than a batch holds
	flying  []berth.Start             // being committed
	since   map[berth.JobID]time.Time // start of their wait, kept for the metric: landed jobs may have left the mirror
	landing chan landing
	landed  [][]berth.Start // committed or not; assumed until they are read again
	again   db.Hinted       // rows to read again
	asks    chan ask

	barred barred // jobs whose last preemption the database has rejected

	yieldAfter time.Time // next try, after a hold that could not be ended

	reloaded  time.Time
	paused    bool
	fruitless int       // commits in a row that were refused as a whole
	stalledAt time.Time // when the tenants were read that stall has seen
}

// landing is the result of a commit.
type landing struct {
	starts    []berth.Start
	committed db.Committed
	err       error
}

// newPlacer returns the placer of a term, with the mirror that this process kept as a standby.
func newPlacer(s *Scheduler, term db.Term, marks *marks) *placer {
	return &placer{
		Scheduler: s, term: term,
		mirror:  s.takeWarm(marks),
		engine:  placement.Planner{MaxStarts: batchSize, Pack: placement.LeastFragmentation, Policy: s.Policy},
		landing: make(chan landing, 1),
		asks:    make(chan ask),
	}
}

// run places jobs until the term ends or a read fails. It waits for the last commit before it
// returns, since the commit's goroutine writes to landing.
func (p *placer) run(ctx context.Context) error {
	hints := p.DB.Hub().Subscribe(db.TopicQueue, "*")
	defer hints.Close()
	defer func() {
		if p.flying != nil {
			<-p.landing // its goroutine is ours
		}
	}()
	if p.mirror.snapshot == nil {
		if err := p.mirror.load(ctx); err != nil {
			return err
		}
	}
	p.reloaded = time.Now()
	for {
		began := time.Now()
		behind, err := p.cycle(ctx, hints.Keys())
		if err != nil {
			return err
		}
		took := time.Since(began)
		p.Metrics.cycle.Observe(took.Seconds())
		// A plan that was cut off has left jobs that may fit: plan again at once.
		if p.more && p.next == nil {
			continue
		}
		if err := p.wait(ctx, hints, began, took, behind); err != nil {
			return err
		}
	}
}

// cycle reads, plans and starts a commit. behind reports that the feed waits for a
// transaction.
func (p *placer) cycle(ctx context.Context, keys []string) (behind bool, err error) {
	hinted := hintedRows(keys)
	hinted.Jobs = append(hinted.Jobs, p.again.Jobs...)
	hinted.Machines = append(hinted.Machines, p.again.Machines...)
	// A machine's row is read after a commit on it. It is correct only together with
	// the jobs of the other commits on the machine.
	hinted.Jobs = append(hinted.Jobs, jobsBeside(p.landed, p.flying, p.next)...)
	// The rows of these starts are among the rows read below, which now count in their place.
	for _, starts := range p.landed {
		p.mirror.drop(starts)
	}
	if behind, err = p.mirror.read(ctx, hinted); err != nil {
		return false, err
	}
	if time.Since(p.mirror.tenantAt) > tenantsEvery || slices.Contains(keys, db.KeyTenants) {
		if err := p.mirror.readTenants(ctx); err != nil {
			return false, err
		}
	}
	p.landed, p.again = nil, db.Hinted{}
	if p.flying == nil && p.next == nil && time.Since(p.reloaded) > reloadEvery {
		p.reloaded = time.Now()
		if err := p.mirror.reload(ctx); err != nil {
			return false, err
		}
	}
	p.mirror.remark()
	if p.next == nil {
		p.more = false
	}
	if room := p.room(); p.next == nil && room > 0 && p.placing() {
		engine := p.engine
		engine.MaxStarts, engine.Barred = room, p.barred.present(p.mirror.snapshot, time.Now())
		plan := engine.Plan(p.mirror.snapshot, p.mirror.clock())
		p.pass(plan.Start)
		if err := p.fail(ctx, plan.Fail); err != nil {
			return false, err
		}
		if len(plan.Start) > 0 {
			p.mirror.assume(plan.Start)
			p.next = plan.Start
		}
		for _, m := range plan.Near {
			p.Logger.Debug("chose a machine that holds the job's data", "job_id", m.Job,
				"machine_id", m.Machine, "mib", m.MiB, "instead_of", m.Instead)
		}
		p.more = plan.More && !p.held
		if err := p.displace(ctx, plan); err != nil {
			return false, err
		}
		if err := p.stall(ctx, plan); err != nil {
			return false, err
		}
		if err := p.yieldHolds(ctx, plan); err != nil {
			return false, err
		}
	}
	if p.flying == nil && p.next != nil {
		p.flying, p.next = p.next, nil
		p.since = p.waiting(p.flying)
		go p.commit(ctx, p.flying)
	}
	return behind, nil
}

// waiting returns the time since which each job could have started.
func (p *placer) waiting(starts []berth.Start) map[berth.JobID]time.Time {
	since := make(map[berth.JobID]time.Time, len(starts))
	for _, s := range starts {
		if j, ok := p.mirror.snapshot.Job(s.Job); ok {
			since[s.Job] = j.SubmittedAt
			if j.EligibleAt.After(j.SubmittedAt) {
				since[s.Job] = j.EligibleAt
			}
		}
	}
	return since
}

// jobsBeside returns the jobs of batches that have a member on a machine with a landed start.
func jobsBeside(landed [][]berth.Start, batches ...[]berth.Start) []berth.JobID {
	machines := map[berth.MachineID]bool{}
	for _, s := range slices.Concat(landed...) {
		for _, r := range s.Ranks {
			machines[r.Machine] = true
		}
	}
	var jobs []berth.JobID
	for _, s := range slices.Concat(batches...) {
		if slices.ContainsFunc(s.Ranks, func(r berth.Grant) bool { return machines[r.Machine] }) {
			jobs = append(jobs, s.Job)
		}
	}
	return jobs
}

// maxHinted bounds the rows read because of hints. Beyond that number the feed delivers the rows
// soon enough.
const maxHinted = 200

// hintedRows sorts the keys of hints into rows to read.
func hintedRows(keys []string) db.Hinted {
	var h db.Hinted
	if len(keys) > maxHinted {
		return h
	}
	for _, k := range keys {
		if id, err := berth.ParseJobID(k); err == nil {
			h.Jobs = append(h.Jobs, id)
		} else if id, err := berth.ParseMachineID(k); err == nil {
			h.Machines = append(h.Machines, id)
		}
	}
	return h
}

// placing reports whether workflows can run new placements.
func (p *placer) placing() bool {
	healthy := p.Poker.Healthy()
	if healthy == p.paused {
		p.paused = !healthy
		if healthy {
			p.Logger.Info("placement resumed, Temporal is reachable")
		} else {
			p.Logger.Error("not placing jobs: Temporal is unreachable")
		}
	}
	return healthy
}

// room returns the number of starts that the next plan may hold: fewer than a batch while ended
// processes wait to be settled, none while admission is paused.
func (p *placer) room() int {
	p.held = false
	if p.Gate == nil {
		return batchSize
	}
	room := p.Gate.Placements.Room()
	p.held = room < batchSize
	return min(room, batchSize)
}

// pass counts starts that the gate lets through.
func (p *placer) pass(starts []berth.Start) {
	if p.Gate != nil {
		p.Gate.Placements.Pass(len(starts))
	}
}

// fail ends jobs past their queue deadline.
func (p *placer) fail(ctx context.Context, due []placement.Fail) error {
	if len(due) == 0 {
		return nil
	}
	ids := make([]berth.JobID, 0, len(due))
	for _, f := range due[:min(len(due), batchSize)] {
		ids = append(ids, f.Job)
	}
	failed, err := p.DB.Jobs.FailExpired(ctx, p.term, ids, batchSize)
	if err != nil {
		return err
	}
	for _, id := range failed {
		p.mirror.snapshot.RemoveJob(id)
	}
	p.again.Jobs = append(p.again.Jobs, ids...)
	p.Metrics.expired.Add(float64(len(failed)))
	p.Poker.Poke(failed...)
	return nil
}

// commit writes a batch, fenced by the term, and notifies machines and workflows. It runs concurrently
// with the loop and shares no data with it.
func (p *placer) commit(ctx context.Context, starts []berth.Start) {
	ctx, cancel := context.WithTimeout(ctx, commitLimit)
	defer cancel()
	began := time.Now()
	c, err := p.writes.starts.CommitStarts(overload.As(ctx, overload.End), p.term, starts)
	p.Metrics.commit.Observe(time.Since(began).Seconds())
	p.announce(c.Started)
	if err == nil {
		// Here and in no decorator, since the notification of everybody is no single call.
		err = failpoint.Hit("leader.poke.after")
	}
	p.landing <- landing{starts, c, err}
}

// announce notifies machines, workflows and waiting callers of committed starts.
func (p *placer) announce(started []berth.Start) {
	if len(started) == 0 {
		return
	}
	p.Metrics.placed.Add(float64(len(started)))
	jobs, keys := make([]berth.JobID, 0, len(started)), make([]string, 0, len(started))
	var machines []string
	seen := map[berth.MachineID]bool{}
	for _, s := range started {
		jobs, keys = append(jobs, s.Job), append(keys, string(s.Job))
		for _, r := range s.Ranks {
			if !seen[r.Machine] {
				seen[r.Machine] = true
				machines = append(machines, string(r.Machine))
			}
		}
	}
	p.DB.Hub().Publish(db.TopicMachine, machines...) // first: they start the work, workflows only wait for it
	p.Poker.Poke(jobs...)
	p.DB.Hub().Publish(db.TopicJob, keys...)
}

// wait returns at the time of the next cycle: at a hint, at the end of a commit, when the gate
// opens, or after a tick.
func (p *placer) wait(ctx context.Context, hints *db.Subscription, began time.Time, took time.Duration,
	behind bool) error {
	until := tick
	if behind {
		until = behindPause
	}
	var opened <-chan struct{}
	if p.held {
		opened, until = p.Gate.Placements.Changed(), min(until, max(minPause, p.Gate.Placements.NextIn()))
	}
	timer := time.NewTimer(until)
	defer timer.Stop()
	woken := hints.C
	if p.next != nil {
		woken = nil // one batch ahead is enough: first the one under way must land
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case l := <-p.landing:
		return p.land(ctx, l)
	case a := <-p.asks:
		a.reply <- p.mirror.copy(a.bursts)
		return nil
	case <-timer.C:
		return nil
	case <-opened:
		return nil
	case <-woken:
	}
	// The first hint after a pause starts a cycle at once. While hints keep
	// arriving, the pause grows with the duration of a cycle, so that cycles take
	// at most a fifth of the time.
	pause := min(maxPause, max(minPause, 4*took)) - time.Since(began)
	if pause > 0 && !sleep(ctx, pause) {
		return ctx.Err()
	}
	return nil
}

// land processes the result of a commit. Started jobs no longer wait; machines and
// refused jobs are read again before the decisions leave the snapshot.
func (p *placer) land(ctx context.Context, l landing) error {
	p.flying = nil
	p.landed = append(p.landed, l.starts)
	for _, s := range l.starts {
		for _, r := range s.Ranks {
			p.again.Machines = append(p.again.Machines, r.Machine)
		}
	}
	for _, s := range l.committed.Started {
		if since, ok := p.since[s.Job]; ok {
			p.Metrics.waited(since, s, p.mirror.clock())
		}
		p.mirror.snapshot.RemoveJob(s.Job)
	}
	for _, r := range l.committed.Refused {
		p.again.Jobs = append(p.again.Jobs, r.Start.Job)
	}
	if l.err != nil {
		return l.err
	}
	p.Metrics.refused.Add(float64(len(l.committed.Refused)))
	for _, r := range l.committed.Refused[:min(len(l.committed.Refused), 10)] {
		p.Logger.Info("placement refused", "job_id", r.Start.Job, "attempt", r.Start.Attempt, "why", r.Why)
	}
	if len(l.committed.Started) > 0 {
		p.fruitless = 0
		return nil
	}
	// Planner and commit disagree about everything. Reading again should have
	// cured that; if it does not, do not spin.
	p.fruitless++
	sleep(ctx, min(tick, minPause<<min(p.fruitless, 10)))
	return nil
}
