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

// Preempt tells a running job to give way to another.
type Preempt struct {
	Job     berth.JobID
	Version int64
	Attempt int
	For     berth.JobID
	Why     PreemptReason
	Lost    time.Duration // GPU time since its last verified checkpoint
}

// PreemptReason is what allows a preemption.
type PreemptReason string

// The reasons for a preemption.
const (
	PreemptBand  PreemptReason = "priority"  // the other is of a higher band
	PreemptShare PreemptReason = "share"     // its tenant has more than its share, the other's less
	PreemptQuota PreemptReason = "guarantee" // its tenant borrows what is guaranteed to the other's
	PreemptRank  PreemptReason = "service"   // the other has much less service to go
)

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
	r.fail()
	r.queue()
	r.walk()
	r.yield()
	if p.Estimate {
		r.estimate()
	}
	if p.Demand {
		r.demand()
	}
	return r.plan
}

// run is one planning: the plan so far and what it has taken of the snapshot.
type run struct {
	planner  Planner
	policy   Policy
	snapshot *Snapshot
	now      time.Time
	clock    time.Duration // now, from the origin of ages
	number   int           // of the plan
	epoch    int           // in which room only gets less
	plan     Plan
	last     map[*class]choice // where the class's latest job went, of all machines
	taken    []taken
	byWorth  bool
	looks    int // at costs, see maxLooks
	scanned  int // groups

	root  seat
	seats []*seat // by account.index
	owned amounts
	sits  []*seat // where the jobs of an account sit, by its index

	siblings map[berth.JobID]int // elements that this plan gives room to, by parent

	quotas     bool                  // some account has a limit of any sort
	guarantees bool                  // to some account something is guaranteed
	narrowed   bool                  // see narrow
	skipped    int                   // lines passed over since
	bygone     classSet              // classes of which no job is worth a look any more
	barrens    map[likeness][]*class // in this epoch, see barren

	wants  []berth.DataKey // of the job that is being placed
	moved  []Near          // of its members, the job aside
	stocks []stock         // buffer

	end        time.Time // of the job that is being placed; zero: not known
	keeps      []*kept
	longest    time.Time // the last of the times until which anything is held
	heads      int       // jobs with a reserved start
	marks      map[berth.JobID][]mark
	unmet      int                 // jobs with earmarks whose turn is to come
	repairs    bool                // some of the earmarks are a gang's own
	blocked    []*entry            // gangs that have no room, while there are such
	fresh      map[*node][]*holder // started by this plan
	events     []release           // buffer
	claims     int                 // looks for victims that may still be made
	draft      node
	stops      []*holder // told to stop by this plan
	left       []*node   // see leavings
	leftKnown  bool
	overlaid   bool                      // machines are looked at as if leavings were free
	hoped      int                       // looks for victims to estimate by
	promises   map[berth.JobID][]Earmark // of what victims give back
	changed    bool                      // who holds room is other than the rows say
	aim        aim                       // of the present claim
	nearby     []nearby                  // buffer
	found      []prospect                // buffers of claims
	passed     []int
	ranks      []standing
	levels     []level // buffers
	leaving    []uint64
	gpus       []int64
	picked     []victim
	best       []victim
	touched    []*node
	reservedAt map[berth.JobID]time.Time
	soon       map[berth.JobID]bool      // those that others make room for
	hopes      map[berth.JobID]time.Time // see hope
	deference  deference
}

func (p Planner) begin(s *Snapshot, now time.Time) *run {
	s.sort(p.Policy, now)
	s.plans++
	r := &run{
		planner: p, policy: p.Policy, snapshot: s, now: now, clock: sinceOrigin(now), number: s.plans, epoch: s.plans,
		last: map[*class]choice{}, owned: amountsOf(s.owned), seats: make([]*seat, 1+len(s.accounts)), sits: make([]*seat, 1+len(s.accounts)),
		barrens: map[likeness][]*class{}, bygone: newClassSet(s),
		fresh: map[*node][]*holder{}, claims: maxClaims, promises: map[berth.JobID][]Earmark{},
		reservedAt: map[berth.JobID]time.Time{}, soon: map[berth.JobID]bool{}, hopes: map[berth.JobID]time.Time{},
	}
	for _, a := range s.accounts {
		r.quotas = r.quotas || a.limits()
		r.guarantees = r.guarantees || a.guaranteed()
	}
	if !p.Policy.Preempt {
		r.claims = 0
	}
	r.byWorth = p.Pack == Worth && s.appraise()
	return r
}

// finish gives back everything.
func (r *run) finish() {
	r.forget()
	for _, n := range r.touched {
		n.kept, n.agendaOK = nil, n.agendaOK && !r.changed
		r.move(n, n.recount)
	}
}

// fail lists the jobs whose queue deadline has passed. It ends the plan's look
// at them: what fails is not placed.
func (r *run) fail() {
	due := &r.snapshot.deadlines
	var expired []*entry
	for e := due.due(r.now); e != nil; e = due.due(r.now) {
		due.clear(e)
		expired = append(expired, e)
		r.plan.Fail = append(r.plan.Fail, Fail{e.ID, e.Version, berth.Reason{
			Code:    berth.ReasonQueueTimeout,
			Message: "did not start within its queue_timeout",
		}})
	}
	for _, e := range expired {
		due.set(e)
	}
}

// queue readies the jobs and what is kept for them.
func (r *run) queue() {
	s := r.snapshot
	s.advance(r.now)
	s.settle(nil)
	r.mark()
	r.seat(&r.root, s.top)
	r.divide()
}

// decide settles what becomes of the next job of all, and goes on to the one
// after it.
func (r *run) decide(x *seat) {
	e := x.first
	if _, ok := r.barred(x, e); ok {
		if !x.tried {
			x.tried = true
			r.plan.Stalled = append(r.plan.Stalled, x.account.ID)
		}
		r.leave(x)
		return
	}
	if len(r.marks[e.ID]) > 0 {
		r.unmet--
	}
	if r.full(e) {
		r.step(x)
		return
	}
	if older := r.costsPlace(x, e); older != nil {
		r.defers(e.line, older)
		if e.class.marked == r.number {
			r.step(x) // room may be kept for one that follows
		} else {
			r.leave(x)
		}
		return
	}
	r.wants, r.moved = e.Data, r.moved[:0]
	start, ok := r.place(e)
	r.wants = nil
	if ok {
		e.class.probed = 0
		r.plan.Start = append(r.plan.Start, start)
		for _, m := range r.moved {
			m.Job = e.ID
			r.plan.Near = append(r.plan.Near, m)
		}
		r.started(e, start)
		r.charge(x, e)
		r.step(x)
		return
	}
	c := e.class
	if r.planner.Explain && c.closed != r.number {
		r.explain(c)
	}
	c.close(r.number, r.end)
	x.tried = true
	if r.repairs && c.members() > 1 && len(r.blocked) < maxYields {
		r.blocked = append(r.blocked, e)
	}
	if kept := r.block(x, e); !kept && r.holdsUp(x, e) {
		r.halts(x, e)
		r.quit(x)
		return
	}
	r.step(x)
}

// block sees to a job that has no room: others make some, or it gets a start
// that is reserved; kept is false if neither.
func (r *run) block(x *seat, e *entry) (kept bool) {
	e.blocked = r.number
	if r.awaits(e) || r.claim(x, e) {
		r.soon[e.ID] = true
		r.charge(x, e)
		return true
	}
	r.hope(x, e)
	if r.heads >= r.policy.Backfill {
		return false
	}
	at, ok := r.reserve(e)
	if ok {
		r.heads++
		r.charge(x, e)
		r.vow(x, e)
		r.reservedAt[e.ID] = at
	}
	return ok
}

// close notes that the class did not fit, with a job that would end then.
func (c *class) close(plan int, end time.Time) {
	if c.closed != plan {
		c.closed, c.shorter = plan, time.Time{}
	}
	if !end.IsZero() && (c.shorter.IsZero() || end.Before(c.shorter)) {
		c.shorter = end
	}
}

// hopeless reports whether a job need not be searched for a place: one of its
// class that ends no later had none.
func (r *run) hopeless(c *class) bool {
	if c.closed != r.number {
		return false
	}
	return r.end.IsZero() || len(r.keeps) == 0 || !c.shorter.IsZero() && !r.end.Before(c.shorter)
}

// place finds a place for every member of the job, or for none.
func (r *run) place(e *entry) (berth.Start, bool) {
	c := e.class
	r.end = r.over(e)
	marks := r.marks[e.ID]
	if len(marks) == 0 && r.hopeless(c) {
		return berth.Start{}, false
	}
	r.snapshot.settle(c)
	if len(marks) > 0 {
		defer c.open()()
		r.lift(marks)
	} else if c.closed != r.number {
		r.barren(c) // spares the search if so
	}
	for _, avoid := range avoidances(e) {
		for _, group := range r.groups(c) {
			if ranks, ok := r.stay(c, avoid, group, marks); ok {
				return berth.Start{Job: e.ID, Version: e.Version, Attempt: e.Attempt + 1, Ranks: ranks}, true
			}
		}
	}
	if len(marks) > 0 {
		r.restore(marks)
	}
	return berth.Start{}, false
}

// over is when a job that starts now has ended by its time limit; zero if it has
// none.
func (r *run) over(e *entry) time.Time {
	if e.TimeLimit <= 0 {
		return time.Time{}
	}
	return r.now.Add(e.TimeLimit)
}

// open forgets that the class had no place, until the function that it returns is
// called: there is more room for the moment.
func (c *class) open() (again func()) {
	closed, barren := c.closed, c.barren
	c.closed, c.barren = 0, 0
	return func() { c.closed, c.barren = closed, barren }
}

// avoidances is what to keep away from, in the order to try: machines that
// failed the job before are used when nothing else is left.
func avoidances(e *entry) [][]berth.MachineID {
	if len(e.Avoid) == 0 {
		return [][]berth.MachineID{nil}
	}
	return [][]berth.MachineID{e.Avoid, nil}
}

// gang places all members one after the other. If one finds no place, the
// others give theirs back.
func (r *run) gang(c *class, avoid []berth.MachineID, group string) ([]berth.Grant, bool) {
	mark := len(r.taken)
	ranks := make([]berth.Grant, 0, c.members())
	r.moved = r.moved[:0]
	for range c.members() {
		found, ok := r.find(c, avoid, group)
		if !ok {
			r.undo(mark)
			return nil, false
		}
		best := found.node
		if len(r.wants) > 0 {
			found = r.nearer(c, avoid, group, found)
		}
		r.take(found)
		if len(avoid) == 0 && group == "" && found.node == best {
			r.last[c] = found // the best of all, not of those that were left
		}
		ranks = append(ranks, found.grant)
	}
	return ranks, true
}

func (c *class) members() int { return max(1, c.request.Members) }

func (r *run) explain(c *class) {
	if r.plan.Explain == nil {
		r.plan.Explain = map[string]Explanation{}
	}
	r.plan.Explain[c.name] = r.snapshot.explain(c)
}
