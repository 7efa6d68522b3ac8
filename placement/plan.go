package placement

import (
	"slices"
	"strings"
	"time"

	"berth"
	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/explain"
	"berth/placement/fit"
	"berth/placement/preempt"
	"berth/placement/queue"
)

// Engine turns a snapshot into a plan. It leaves the snapshot as it was, and
// the same snapshot and time give the same plan.
type Engine interface {
	Plan(s *Snapshot, now time.Time) Plan
}

// Plan lists the decisions that the leader should commit now.
type Plan struct {
	Start    []berth.Start        // best first
	Preempt  []preempt.Order      // each with its nominations in Nominate
	Nominate []preempt.Nomination // to write, in one transaction with the preemptions
	Near     []fit.Near           // started members that moved to a machine with their job's data
	Release  []preempt.Nomination // to delete: placed, expired, withdrawn, or without a waiting job
	Fail     []Fail               // jobs past their queue deadline
	// Yield lists the gangs that should give up the capacity nominated for their repair,
	// since another gang could start with this capacity.
	Yield []berth.JobID
	// Withdraw lists the nominations of waiting jobs that reserved starts replace. The leader deletes
	// them, and their capacity is free in the next plan. They are in Release, too.
	Withdraw []preempt.Withdrawal `json:",omitempty"`
	// Stalled lists the tenants, by id, with a next job that only their quota or budget
	// keeps from starting.
	Stalled []berth.TenantID
	// EndHolds lists the running jobs that give way to every other job, and must end so that quotas admit the next
	// jobs of stalled tenants. It lists only jobs whose end helps.
	EndHolds []queue.HoldEnd `json:",omitempty"`
	// Estimates lists the latest expected start of each waiting job, in queue order, on
	// the assumptions that running jobs end at their limits and that no more jobs are
	// submitted. It is filled only with Planner.Estimate.
	Estimates []Estimate
	Explain   map[string]explain.Explanation // by class: why its first job has no place
	Demand    []Demand                       // machines to add, by pool; only with Planner.Demand
	More      bool                           // the plan was cut off: plan again soon
}

// Estimate is the expected start of a waiting job.
type Estimate struct {
	Job      berth.JobID
	Position int       // in the queue, from 1
	Start    time.Time // zero: no known end of a job frees enough capacity, or Bar
	Reserved bool      // Start is a reserved start, which no later job delays
	Guess    bool      // Start rests on Planner.RunTimes, not on limits alone
	// Bar is the quota that bars the job after the last known end of a job; nil: none, or Start is known.
	Bar *explain.Blocker `json:"-"`
}

// Fail ends a waiting job.
type Fail struct {
	Job     berth.JobID
	Version int64 // of the job's row; the commit fails the job only at this version
	Reason  berth.Reason
}

// Planner implements Engine. It decides about jobs in the order of its policy. A class
// that does not fit is skipped for the rest of the plan, and other classes continue as
// far as they delay no reserved start. The zero value plans all jobs, without reserved
// starts, preemption, explanations and estimates.
type Planner struct {
	MaxStarts int      // maximum number of starts in a plan; 0: no limit
	Pack      fit.Pack // the rule of packing
	Explain   bool     // fill Plan.Explain; this reads every machine for each blocked class
	Estimate  bool     // fill Plan.Estimates; this reads every waiting job
	Demand    bool     // fill Plan.Demand; this reads every waiting job, too
	Policy    queue.Policy
	// Barred jobs preempt no others in this plan: the database has rejected their last preemption.
	Barred map[berth.JobID]bool
	// RunTimes predicts the ends of jobs without a limit, for Estimates alone: no decision
	// depends on it. nil: nothing is known about them.
	RunTimes *queue.RunTimes
}

// Plan implements Engine.
func (p Planner) Plan(s *Snapshot, now time.Time) Plan {
	r := p.begin(s, now)
	defer r.finish()
	r.decideAll()
	return r.plan
}

// decideAll fills the plan.
func (r *run) decideAll() {
	r.expire()
	r.open()
	r.walk()
	r.plan.Yield = r.nominations.Yield(r.blocked)
	r.emit()
	if r.planner.Estimate {
		r.estimate("")
	}
	if r.planner.Demand {
		r.demand()
	}
}

// run is the state of one plan in progress: the parts that decide, in their order, and
// the decisions so far.
//
//	turn ──> placer ──────────────> Start
//	           │ no room
//	           ├──> preemption ───> Preempt, Nominate
//	           └──> reservations ─> a start that no later job delays
type run struct {
	*cluster.Moment
	planner      Planner
	policy       queue.Policy
	snapshot     *Snapshot
	plan         Plan
	ledger       *cluster.Ledger
	shares       *queue.Shares
	turn         *queue.Turn
	placer       *fit.Placer
	reservations *backfill.Reservations
	nominations  *preempt.Nominations
	preemption   *preempt.Search
	pruner       *pruner

	blocked   []*queue.Entry       // gangs without room, while gangs are under repair
	soon      map[berth.JobID]bool // jobs that start when their victims have stopped
	ends      map[berth.JobID]bool // jobs in Plan.EndHolds
	deference explain.Deference
}

// begin prepares the parts for one plan. The caller calls finish afterwards, since the
// plan books its decisions on the machines of the snapshot.
func (p Planner) begin(s *Snapshot, now time.Time) *run {
	openAlternatives(s, now)
	s.queue.Sort(p.Policy, s, now)
	at := &cluster.Moment{Now: now, Clock: cluster.SinceOrigin(now), Number: s.cluster.NextPlan()}
	r := &run{Moment: at, planner: p, policy: p.Policy, snapshot: s, soon: map[berth.JobID]bool{}}
	policy := &r.policy
	r.ledger = cluster.NewLedger(at, s.cluster)
	r.shares = queue.NewShares(at, policy, s.queue, queue.AmountsOf(s.cluster.Owned))
	r.placer = fit.NewPlacer(at, s.state, r.ledger)
	r.placer.ByUsable = p.Pack == fit.LeastFragmentation && s.state.Packer.Appraise()
	r.reservations = backfill.NewReservations(at, policy, r.ledger, r.placer, s.releases)
	r.nominations = preempt.NewNominations(at, policy, r.ledger, r.placer, r.reservations)
	r.preemption = preempt.NewSearch(r.nominations, s.queue, r.shares, s.bounds, p.Estimate)
	r.preemption.Barred = p.Barred
	r.turn = queue.NewTurn(r.shares)
	r.pruner = &pruner{
		Moment: at, policy: policy, snapshot: s, shares: r.shares, turn: r.turn, placer: r.placer,
		reservations: r.reservations, nominations: r.nominations, preemption: r.preemption,
		probed: queue.NewClassSet(s.queue),
	}
	if p.Explain {
		r.pruner.explain = r.explain
	}
	r.turn.PassBy(r.pruner)
	return r
}

// finish reverts the entries of the ledger, which restores the snapshot.
func (r *run) finish() {
	r.reservations.Finish()
	r.ledger.Finish()
}

// expire fails the jobs past their queue deadline. The turn skips these jobs itself.
func (r *run) expire() {
	for _, e := range r.snapshot.queue.Expired(r.Now) {
		r.plan.Fail = append(r.plan.Fail, Fail{e.ID, e.Version, berth.Reason{
			Code:    berth.ReasonQueueTimeout,
			Message: "did not start within its queue_timeout",
		}})
	}
}

// open prepares the queue and holds the nominated capacity for its jobs.
func (r *run) open() {
	s := r.snapshot
	s.queue.Advance(r.Now)
	s.cluster.Settle(nil)
	r.nominations.Load(s.nominations, s.queue)
	if len(s.cluster.Windows) > 0 {
		r.placer.Far = r.reservations.HoldWindows()
	}
	if s.cluster.Yielding > 0 {
		r.shares.SetAside(s.cluster.Running)
	}
	r.turn.Open()
}

// walk decides about one job after the other until the queue is empty or the plan
// is full.
func (r *run) walk() {
	for {
		r.pruner.narrow()
		x := r.shares.Next()
		if x == nil {
			return
		}
		if most := r.planner.MaxStarts; most > 0 && len(r.plan.Start) >= most {
			r.plan.More = true
			return
		}
		r.decide(x)
	}
}

// emit moves the decisions of the parts into the plan.
func (r *run) emit() {
	r.plan.Preempt = r.preemption.Orders
	r.plan.Nominate = r.nominations.Written
	r.plan.Release = r.nominations.Released
	r.plan.Withdraw = r.nominations.Withdrawn
}

// decide decides about the next job of the contender and advances the turn.
func (r *run) decide(x *queue.Contender) {
	e := x.First
	choices := r.choicesFor(x, e)
	if len(choices) == 0 {
		// No earlier job lacked room: the quota alone stops the tenant. A debug job is no reason to end others.
		if !x.Tried && !cluster.GivesWay(e.Priority) {
			x.Tried = true
			r.plan.Stalled = append(r.plan.Stalled, x.Account.ID)
			r.endHolds(x, e)
		}
		r.turn.Leave(x)
		return
	}
	nominated := len(r.nominations.Marks[e.ID]) > 0
	if nominated {
		r.nominations.Unmet--
	}
	if r.shares.Full(e) {
		r.turn.Step(x)
		return
	}
	if older := r.shares.MustYieldTo(x, e); older != nil && !nominated {
		r.deference.Defers(r.planner.Estimate, e.Line, older)
		if r.nominations.Classes[e.Class] {
			r.turn.Step(x) // a later job of the class may be nominated
		} else {
			r.turn.Leave(x)
		}
		return
	}
	r.placer.Wants, r.placer.Moved = e.Data, r.placer.Moved[:0]
	start, ok := r.placeFirst(e, choices)
	r.placer.Wants = nil // later searches of the plan, such as for victims, ignore data
	switch {
	case ok:
		r.start(x, e, start)
	case slices.Contains(choices, e.Class.InForce):
		r.refuse(x, e, !nominated && len(choices) == max(1, len(e.Class.Choices)))
	default: // a quota bars the alternative in force, so no capacity is kept or released for the job
		x.Tried = true
		r.turn.Leave(x)
	}
}

// start adds a start to the plan and charges it to the job's tenant.
func (r *run) start(x *queue.Contender, e *queue.Entry, start berth.Start) {
	r.pruner.unprobe(e.Class)
	r.plan.Start = append(r.plan.Start, start)
	for _, m := range r.placer.Moved {
		m.Job = e.ID
		r.plan.Near = append(r.plan.Near, m)
	}
	marks := r.nominations.Started(e)
	got := chosen(e, start.Alternative)
	if r.policy.Backfill > 0 { // otherwise no part reads the end of the job
		r.reservations.Started(got, start.Ranks)
		r.nominations.Rehold(marks)
	}
	r.shares.Charge(x, got)
	r.turn.Step(x)
}

// refuse closes the class of a job without room for this plan, and tries preemption and
// a reserved start for the job. Of a class with alternatives it closes the request in force alone, unless all of
// them were tried: other jobs of the class may have another quota, or no nomination.
func (r *run) refuse(x *queue.Contender, e *queue.Entry, all bool) {
	c := e.Class
	if r.planner.Explain && !r.placer.Closed(c) && !r.placer.Stuck(c, r.placer.Over) {
		r.explain(c)
	}
	closed := c
	if c.Choices != nil && !all {
		closed = c.Choices[c.InForce]
		r.snapshot.cluster.Settle(closed) // later jobs of this class see it closed, and read its machines
	}
	r.placer.Fail(closed)
	x.Tried = true
	if r.nominations.Repairs && c.Members() > 1 && len(r.blocked) < preempt.MaxYields {
		r.blocked = append(r.blocked, e)
	}
	if kept := r.block(x, e); !kept && r.holdsUp(x, e) {
		r.deference.Halts(r.planner.Estimate, x, e)
		r.turn.Quit(x)
		return
	}
	r.turn.Step(x)
}

// block preempts other jobs for a blocked job or, failing that, reserves a start. In both
// cases the job is charged to its tenant as if it ran. kept is false if neither is
// possible.
func (r *run) block(x *queue.Contender, e *queue.Entry) (kept bool) {
	e.Blocked = r.Number
	if cluster.GivesWay(e.Priority) {
		return false // it delays no other job
	}
	if r.nominations.Awaits(e) || r.preemption.Preempt(x, e) {
		r.soon[e.ID] = true
		r.shares.Charge(x, e)
		return true
	}
	r.preemption.Hope(x, e)
	if r.reservations.Heads >= r.policy.Backfill {
		return false
	}
	if _, ok := r.preemption.Reserve(e); !ok {
		return false
	}
	r.shares.Charge(x, e)
	r.shares.NoteReserved(x, e)
	return true
}

// holdsUp reports whether younger jobs of the tenant must wait behind an overdue job that
// has neither room nor a reserved start. The younger jobs would keep the tenant at its
// part of the cluster, so that the overdue job would never come first and never get a
// reserved start. A tenant below its part comes first by its overdue job anyway.
func (r *run) holdsUp(x *queue.Contender, e *queue.Entry) bool {
	p := &r.policy
	return e.Overdue && !x.Pressing && p.Order == queue.Fair && p.Backfill > 0 && r.reservations.Heads >= p.Backfill &&
		r.placer.Possible(e.Class)
}

// place finds places for all members of the job, or for none.
func (r *run) place(e *queue.Entry) (berth.Start, bool) {
	c := e.Class
	r.placer.End = r.over(e)
	r.placer.Over = r.placer.End
	marks := r.nominations.Marks[e.ID]
	if len(marks) == 0 && r.placer.Hopeless(c) {
		return berth.Start{}, false
	}
	r.snapshot.cluster.Settle(c)
	if len(marks) > 0 {
		// The job has capacity that its class has not: an earlier failure says nothing.
		defer r.placer.Reopen(c)()
		r.nominations.Lift(marks)
	} else if !r.placer.Closed(c) {
		r.placer.Barren(c) // saves the search if no machine has room
	}
	repair, sites := preempt.Former(marks)
	for _, avoid := range avoidances(e) {
		for _, group := range fit.Roomy(r.placer, c) {
			look := r.placer.Gang
			if repair {
				look = func(c *cluster.Class, avoid []berth.MachineID, group string) ([]berth.Grant, bool) {
					return r.placer.Stay(c, avoid, group, sites)
				}
			}
			if ranks, ok := look(c, avoid, group); ok {
				return berth.Start{Job: e.ID, Version: e.Version, Attempt: e.Attempt + 1, Ranks: ranks,
					Groups: c.Sizes}, true
			}
		}
	}
	if len(marks) > 0 {
		r.nominations.Restore(marks)
	}
	return berth.Start{}, false
}

// over returns the latest end of a job that starts now, or zero for a job without a time
// limit.
func (r *run) over(e *queue.Entry) time.Time {
	if e.TimeLimit <= 0 {
		return time.Time{}
	}
	return r.Now.Add(e.TimeLimit)
}

// explain adds the explanation of a class to the plan.
func (r *run) explain(c *cluster.Class) {
	if r.plan.Explain == nil {
		r.plan.Explain = map[string]explain.Explanation{}
	}
	name, _, _ := strings.Cut(c.Name, "\x00") // without the tenant, see Cluster.ClassFor
	r.plan.Explain[name] = explain.Class(r.snapshot.state, c)
}

// avoidances returns the lists of machines to avoid, in the order to try them: machines
// on which the job failed before are used only when no other machine fits.
func avoidances(e *queue.Entry) [][]berth.MachineID {
	if len(e.Avoid) == 0 {
		return [][]berth.MachineID{nil}
	}
	return [][]berth.MachineID{e.Avoid, nil}
}
