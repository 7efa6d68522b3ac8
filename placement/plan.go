package placement

import (
	"time"

	"berth"
)

// Engine turns a snapshot into a plan. It leaves the snapshot as it was, and
// the same snapshot and now give the same plan.
type Engine interface {
	Plan(s *Snapshot, now time.Time) Plan
}

// Plan is what the leader should do now.
type Plan struct {
	Start   []berth.Start // best first
	Preempt []Preempt     // with the earmarks for whom it is done
	Earmark []Earmark     // to write, in one transaction with the preemptions
	Near    []Near        // members of those that start which are where their job's data is
	Release []Earmark     // to delete: placed, expired, or nobody waits for them
	Fail    []Fail
	// Yield are the gangs that are to give up what is kept for their repair, since
	// another gang would have room with it.
	Yield []berth.JobID
	// Stalled are the tenants whose next job waits for their quota or budget
	// alone, by id.
	Stalled []berth.TenantID
	// Estimates are when each waiting job should start at the latest, if those
	// that hold room end at their limits and nobody else comes, in queue order.
	// Only with Planner.Estimate.
	Estimates []Estimate
	Explain   map[string]Explanation // by class: why its first job has no place
	Demand    []Demand               // by pool: what machines more it would use. Only with Planner.Demand
	More      bool                   // the plan was cut off: plan again soon
}

// Estimate is when a waiting job should start.
type Estimate struct {
	Job      berth.JobID
	Position int       // in the queue, from 1
	Start    time.Time // zero: nothing that is known frees the room
	Reserved bool      // no later job delays it
}

// Fail ends a waiting job.
type Fail struct {
	Job     berth.JobID
	Version int64
	Reason  berth.Reason
}

// Planner is the engine: jobs in the order of its policy; a class that does not
// fit is left for this plan, the others go on, as far as that delays no reserved
// start. The zero value plans everything.
type Planner struct {
	MaxStarts int  // decisions a plan may hold; 0: no limit
	Pack      Pack // the rule of packing
	Explain   bool // fill Plan.Explain, at the price of a look at every machine for each blocked class
	Estimate  bool // fill Plan.Estimates, at the price of a look at every job
	Demand    bool // fill Plan.Demand, likewise
	Policy    Policy
}

// Plan implements Engine.
func (p Planner) Plan(s *Snapshot, now time.Time) Plan {
	r := p.begin(s, now)
	defer r.finish()
	r.expire()
	r.open()
	r.walk()
	r.plan.Yield = r.nominations.yield(r.blocked)
	r.emit()
	if p.Estimate {
		r.estimate("")
	}
	if p.Demand {
		r.demand()
	}
	return r.plan
}

// run is one planning: the parts that decide, in the order in which they do, and
// the plan so far.
//
//	turn ──> placer ──────────────> Start
//	           │ no room
//	           ├──> preemption ───> Preempt, Earmark
//	           └──> reservations ─> a start that no later job delays
type run struct {
	*moment
	planner      Planner
	policy       Policy
	snapshot     *Snapshot
	plan         Plan
	ledger       *ledger
	shares       *shares
	turn         *turn
	placer       *placer
	reservations *reservations
	nominations  *nominations
	preemption   *preemption
	pruner       *pruner

	blocked   []*entry             // gangs without room, while gangs are under repair
	soon      map[berth.JobID]bool // jobs for which victims make room
	deference deference
}

// begin readies the parts for one plan.
func (p Planner) begin(s *Snapshot, now time.Time) *run {
	s.queue.sort(p.Policy, s, now)
	at := &moment{now: now, clock: sinceOrigin(now), number: s.cluster.nextPlan()}
	r := &run{moment: at, planner: p, policy: p.Policy, snapshot: s, soon: map[berth.JobID]bool{}}
	policy := &r.policy
	r.ledger = newLedger(at, s.cluster)
	r.shares = newShares(at, policy, s.queue, amountsOf(s.cluster.owned))
	r.placer = newPlacer(at, s.state, r.ledger)
	r.placer.byUsable = p.Pack == Worth && s.state.packer.appraise()
	r.reservations = newReservations(at, policy, r.ledger, r.placer, s.releases)
	r.nominations = newNominations(at, policy, r.ledger, r.placer, r.reservations)
	r.preemption = newPreemption(r.nominations, s.queue, r.shares, s.bounds, p.Estimate)
	r.turn = newTurn(r.shares)
	r.pruner = &pruner{
		moment: at, policy: policy, snapshot: s, shares: r.shares, turn: r.turn, placer: r.placer,
		reservations: r.reservations, nominations: r.nominations, preemption: r.preemption,
		probed: newClassSet(s.queue),
	}
	if p.Explain {
		r.pruner.explain = r.explain
	}
	r.turn.passBy(r.pruner)
	return r
}

// finish restores the snapshot.
func (r *run) finish() {
	r.reservations.finish()
	r.ledger.finish()
}

// expire lists the jobs whose queue deadline has passed. The turn passes them over.
func (r *run) expire() {
	for _, e := range r.snapshot.queue.expired(r.now) {
		r.plan.Fail = append(r.plan.Fail, Fail{e.ID, e.Version, berth.Reason{
			Code:    berth.ReasonQueueTimeout,
			Message: "did not start within its queue_timeout",
		}})
	}
}

// open readies the queue and keeps the nominated capacity.
func (r *run) open() {
	s := r.snapshot
	s.queue.advance(r.now)
	s.cluster.settle(nil)
	r.nominations.load(s.earmarks, s.queue)
	r.turn.open()
}

// walk decides about one job after the other until the queue is empty or the plan
// is full.
func (r *run) walk() {
	for {
		r.pruner.narrow()
		x := r.shares.next()
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
	r.plan.Preempt = r.preemption.orders
	r.plan.Earmark = r.nominations.written
	r.plan.Release = r.nominations.released
}

// decide decides about the job whose turn it is, and moves the turn on.
func (r *run) decide(x *contender) {
	e := x.first
	if _, ok := r.shares.barred(x, e); ok {
		if !x.tried {
			x.tried = true
			r.plan.Stalled = append(r.plan.Stalled, x.account.ID)
		}
		r.turn.leave(x)
		return
	}
	nominated := len(r.nominations.marks[e.ID]) > 0
	if nominated {
		r.nominations.unmet--
	}
	if r.shares.full(e) {
		r.turn.step(x)
		return
	}
	if older := r.shares.mustYieldTo(x, e); older != nil && !nominated {
		r.deference.defers(r.planner.Estimate, e.line, older)
		if r.nominations.classes[e.class] {
			r.turn.step(x) // a later job of the class may be nominated
		} else {
			r.turn.leave(x)
		}
		return
	}
	r.placer.wants, r.placer.moved = e.Data, r.placer.moved[:0]
	start, ok := r.place(e)
	r.placer.wants = nil
	if ok {
		r.start(x, e, start)
	} else {
		r.refuse(x, e)
	}
}

// start adds a start to the plan.
func (r *run) start(x *contender, e *entry, start berth.Start) {
	r.pruner.unprobe(e.class)
	r.plan.Start = append(r.plan.Start, start)
	for _, m := range r.placer.moved {
		m.Job = e.ID
		r.plan.Near = append(r.plan.Near, m)
	}
	marks := r.nominations.started(e)
	if r.policy.Backfill > 0 { // otherwise no part reads the end of the job
		r.reservations.started(e, start.Ranks)
		r.nominations.rehold(marks)
	}
	r.shares.charge(x, e)
	r.turn.step(x)
}

// refuse decides what becomes of a job without room.
func (r *run) refuse(x *contender, e *entry) {
	c := e.class
	if r.planner.Explain && !r.placer.closed(c) {
		r.explain(c)
	}
	r.placer.close(c, r.placer.end)
	x.tried = true
	if r.nominations.repairs && c.members() > 1 && len(r.blocked) < maxYields {
		r.blocked = append(r.blocked, e)
	}
	if kept := r.block(x, e); !kept && r.holdsUp(x, e) {
		r.deference.halts(r.planner.Estimate, x, e)
		r.turn.quit(x)
		return
	}
	r.turn.step(x)
}

// block makes room for a job, or reserves a start for it; kept is false if neither
// is possible.
func (r *run) block(x *contender, e *entry) (kept bool) {
	e.blocked = r.number
	if r.nominations.awaits(e) || r.preemption.preempt(x, e) {
		r.soon[e.ID] = true
		r.shares.charge(x, e)
		return true
	}
	r.preemption.hope(x, e)
	if r.reservations.heads >= r.policy.Backfill {
		return false
	}
	if _, ok := r.reservations.reserve(e); !ok {
		return false
	}
	r.shares.charge(x, e)
	r.shares.noteReserved(x, e)
	return true
}

// holdsUp reports whether no younger job of the tenant may pass a job without room
// that is overdue: the younger ones would keep the tenant at its part, so that the
// older one never came first and never got a reserved start. Below its part the
// tenant comes first in its turn.
func (r *run) holdsUp(x *contender, e *entry) bool {
	p := &r.policy
	return e.overdue && !x.pressing && p.Order == Fair && p.Backfill > 0 && r.reservations.heads >= p.Backfill &&
		r.placer.possible(e.class)
}

// place finds places for all members of the job, or for none.
func (r *run) place(e *entry) (berth.Start, bool) {
	c := e.class
	r.placer.end = r.over(e)
	marks := r.nominations.marks[e.ID]
	if len(marks) == 0 && r.placer.hopeless(c) {
		return berth.Start{}, false
	}
	r.snapshot.cluster.settle(c)
	if len(marks) > 0 {
		defer r.placer.reopen(c)()
		r.nominations.lift(marks)
	} else if !r.placer.closed(c) {
		r.placer.barren(c) // saves the search if no machine has room
	}
	repair, sites := former(marks)
	for _, avoid := range avoidances(e) {
		for _, group := range r.placer.groups(c) {
			look := r.placer.gang
			if repair {
				look = func(c *class, avoid []berth.MachineID, group string) ([]berth.Grant, bool) {
					return r.placer.stay(c, avoid, group, sites)
				}
			}
			if ranks, ok := look(c, avoid, group); ok {
				return berth.Start{Job: e.ID, Version: e.Version, Attempt: e.Attempt + 1, Ranks: ranks}, true
			}
		}
	}
	if len(marks) > 0 {
		r.nominations.restore(marks)
	}
	return berth.Start{}, false
}

// over returns the latest end of a job that starts now; zero if it has no time
// limit.
func (r *run) over(e *entry) time.Time {
	if e.TimeLimit <= 0 {
		return time.Time{}
	}
	return r.now.Add(e.TimeLimit)
}

// explain adds the explanation of a class to the plan.
func (r *run) explain(c *class) {
	if r.plan.Explain == nil {
		r.plan.Explain = map[string]Explanation{}
	}
	r.plan.Explain[c.name] = explainClass(r.snapshot.state, c)
}

// avoidances is what to keep away from, in the order to try: machines that
// failed the job before are used when nothing else is left.
func avoidances(e *entry) [][]berth.MachineID {
	if len(e.Avoid) == 0 {
		return [][]berth.MachineID{nil}
	}
	return [][]berth.MachineID{e.Avoid, nil}
}
