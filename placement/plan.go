package placement

import (
	"container/heap"
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
	Release []Earmark     // to delete: placed, expired, or nobody waits for them
	Fail    []Fail
	// Stalled are the tenants whose next job waits for their quota or budget
	// alone, by id.
	Stalled []berth.TenantID
	// Estimates are when each waiting job should start at the latest, if those
	// that hold room end at their limits and nobody else comes, in queue order.
	// Only with Planner.Estimate.
	Estimates []Estimate
	Explain   map[string]Explanation // by class: why its first job has no place
	Demand    map[string]Demand      // by pool: what would have a place there
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

// Demand is capacity that waiting jobs would use if a pool had it.
type Demand struct {
	Members  int
	Capacity berth.Capacity
}

// Planner is the engine: jobs in order of priority, then of submission; a class
// that does not fit is left for this plan, the others go on. The zero value
// plans everything.
type Planner struct {
	MaxStarts int  // decisions a plan may hold; 0: no limit
	Pack      Pack // the rule of packing
	Explain   bool // fill Plan.Explain, at the price of a look at every machine for each blocked class
	Estimate  bool // fill Plan.Estimates, at the price of a look at every job
	Policy    Policy
}

// Plan implements Engine.
func (p Planner) Plan(s *Snapshot, now time.Time) Plan {
	r := &run{snapshot: s, now: now, last: map[*class]choice{}}
	defer r.undo(0)
	r.byWorth = p.Pack == Worth && s.appraise()
	r.fail()
	r.queue()
	for len(r.heads) > 0 {
		h := r.heads[0]
		if p.MaxStarts > 0 && len(r.plan.Start) >= p.MaxStarts {
			r.plan.More = true
			break
		}
		if start, ok := r.place(h.job); ok {
			r.plan.Start = append(r.plan.Start, start)
			h.index++
			r.advance(h)
			continue
		}
		heap.Pop(&r.heads)
		if p.Explain {
			r.explain(h.job.class)
		}
	}
	return r.plan
}

// run is one planning: the plan so far and what it has taken of the snapshot.
type run struct {
	snapshot *Snapshot
	now      time.Time
	plan     Plan
	heads    heads
	last     map[*class]choice // where the class's latest job went, of all machines
	taken    []taken
	byWorth  bool
	looks    int // at costs, see maxLooks
	scanned  int // groups
}

type taken struct {
	node  *node
	grant berth.Grant
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

func (r *run) queue() {
	r.snapshot.advance(r.now)
	for _, c := range r.snapshot.classes {
		if c.ready.len() == 0 {
			continue
		}
		h := &head{class: c}
		if h.find(r.now) {
			r.heads = append(r.heads, h)
		}
	}
	heap.Init(&r.heads)
}

// advance moves the first head on to its class's next job.
func (r *run) advance(h *head) {
	if h.find(r.now) {
		heap.Fix(&r.heads, 0)
	} else {
		heap.Pop(&r.heads)
	}
}

// head is a class's next job.
type head struct {
	class *class
	index int
	job   *entry
}

// find goes to the first job from index on that may start now.
func (h *head) find(now time.Time) bool {
	for {
		e, ok := h.class.ready.at(h.index)
		if !ok {
			return false
		}
		if !e.EligibleAt.After(now) && (e.QueueDeadline.IsZero() || e.QueueDeadline.After(now)) {
			h.job = e
			return true
		}
		h.index++
	}
}

// heads is a heap of classes by their next jobs. Jobs differ in their ids, so
// the order is total and does not depend on the map the classes came from.
type heads []*head

func (h heads) Len() int           { return len(h) }
func (h heads) Less(i, j int) bool { return compareEntries(h[i].job, h[j].job) < 0 }
func (h heads) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heads) Push(x any)        { *h = append(*h, x.(*head)) }
func (h *heads) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return x
}

// place finds a place for every member of the job, or for none.
func (r *run) place(e *entry) (berth.Start, bool) {
	r.snapshot.settle(e.class)
	for _, avoid := range avoidances(e) {
		for _, group := range r.groups(e.class) {
			if ranks, ok := r.gang(e.class, avoid, group); ok {
				return berth.Start{Job: e.ID, Version: e.Version, Attempt: e.Attempt + 1, Ranks: ranks}, true
			}
		}
	}
	return berth.Start{}, false
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
	for range c.members() {
		found, ok := r.find(c, avoid, group)
		if !ok {
			r.undo(mark)
			return nil, false
		}
		r.take(found)
		if len(avoid) == 0 && group == "" {
			r.last[c] = found // the best of all, not of those that were left
		}
		ranks = append(ranks, found.grant)
	}
	return ranks, true
}

func (c *class) members() int { return max(1, c.request.Members) }

// take makes the choice count for the rest of the plan.
func (r *run) take(c choice) {
	n := c.node
	n.kind.tree.remove(&n.leaf)
	n.subtract(c.grant)
	n.sum()
	n.kind.tree.insert(&n.leaf)
	r.snapshot.regroup(n)
	r.taken = append(r.taken, taken{n, c.grant})
}

// undo gives back what was taken since mark.
func (r *run) undo(mark int) {
	for i := len(r.taken) - 1; i >= mark; i-- {
		n := r.taken[i].node
		n.kind.tree.remove(&n.leaf)
		n.add(r.taken[i].grant)
		n.sum()
		n.kind.tree.insert(&n.leaf)
		r.snapshot.regroup(n)
	}
	r.taken = r.taken[:mark]
}

func (r *run) explain(c *class) {
	if r.plan.Explain == nil {
		r.plan.Explain = map[string]Explanation{}
	}
	r.plan.Explain[c.name] = r.snapshot.explain(c)
}
