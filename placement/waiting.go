package placement

import (
	"time"

	"berth"
)

// queue is every waiting job, by account and class, and the tenants' accounts.
// The part of the policy that orders one account's jobs decides the order; a new
// order sorts every job again. It is not safe for concurrent use.
type queue struct {
	jobs    map[berth.JobID]*entry
	waiting []*entry      // the jobs, by entry.slot
	classes []*classQueue // by class.number

	tenants  map[berth.TenantID]Tenant
	tallies  map[berth.TenantID]*tally
	accounts map[berth.TenantID]*account
	shared   *account            // of all tenants without a row
	top      []*account          // accounts without a parent, by id
	siblings map[berth.JobID]int // running elements, by parent

	policy   Policy    // the ordering part of the latest plan's policy
	edge     time.Time // see Policy.edge
	unsorted bool      // sort must rebuild accounts and lines
	sortings int       // rebuilds so far

	later     alarms // jobs that are not eligible yet
	deadlines alarms // waiting jobs with a queue deadline
}

// classQueue is the eligible jobs of one class.
type classQueue struct {
	class  *class
	ready  int     // their number
	limits alarms  // the ones with a time limit, shortest first
	lines  []*line // in no order
}

// shortest returns the shortest time limit of the jobs; ok is false if none has one.
func (c *classQueue) shortest() (limit time.Duration, ok bool) {
	if len(c.limits.list) == 0 {
		return 0, false
	}
	return c.limits.list[0].at, true
}

// newQueue returns an empty queue. It sorts its jobs before the first plan.
func newQueue() *queue {
	return &queue{
		jobs:     map[berth.JobID]*entry{},
		tenants:  map[berth.TenantID]Tenant{},
		tallies:  map[berth.TenantID]*tally{},
		siblings: map[berth.JobID]int{},
		unsorted: true,
		later: byTime(
			func(e *entry) time.Time { return e.EligibleAt },
			func(e *entry) *position { return &e.later },
		),
		deadlines: byTime(
			func(e *entry) time.Time { return e.QueueDeadline },
			func(e *entry) *position { return &e.deadline },
		),
	}
}

// enroll adds a class, which the cluster has just numbered.
func (q *queue) enroll(c *class) {
	q.classes = append(q.classes[:c.number], &classQueue{class: c, limits: byLimit()})
}

// of returns the eligible jobs of a class.
func (q *queue) of(c *class) *classQueue { return q.classes[c.number] }

// upsert adds a job or replaces its row, and reports whether it is new.
func (q *queue) upsert(j Job, c *class) (added bool) {
	e := q.jobs[j.ID]
	if added = e == nil; added {
		e = &entry{slot: int32(len(q.waiting))}
		e.leaf.item, e.leaf.weight = e, weightOf(string(j.ID))
		q.jobs[j.ID], q.waiting = e, append(q.waiting, e)
	} else {
		q.dequeue(e)
		e.tally.waiting--
	}
	t := q.tally(j.Tenant)
	t.waiting++
	e.set(j, c, t)
	e.rate(&q.policy, q.edge)
	q.enqueue(e)
	return added
}

// expect sets the expected run time of a job and its place by that.
func (q *queue) expect(id berth.JobID, t time.Duration, by string) {
	if e := q.jobs[id]; e != nil && (e.Expected != t || e.ExpectedBy != by) {
		q.dequeue(e)
		e.Expected, e.ExpectedBy = t, by
		e.rate(&q.policy, q.edge)
		q.enqueue(e)
	}
}

// remove removes a job. An unknown one is no error.
func (q *queue) remove(id berth.JobID) {
	e := q.jobs[id]
	if e == nil {
		return
	}
	q.dequeue(e)
	e.tally.waiting--
	delete(q.jobs, id)
	last := len(q.waiting) - 1
	q.waiting[e.slot], q.waiting[last].slot = q.waiting[last], e.slot
	q.waiting[last], q.waiting = nil, q.waiting[:last]
}

// assume takes a job out of the queue while its start is being committed.
func (q *queue) assume(id berth.JobID) {
	if e := q.jobs[id]; e != nil {
		q.dequeue(e)
		e.assumed = true
	}
}

// unassume ends the effect of assume.
func (q *queue) unassume(id berth.JobID) {
	if e := q.jobs[id]; e != nil && e.assumed {
		e.assumed = false
		q.enqueue(e)
	}
}

// enqueue schedules a job for its line and its deadline.
func (q *queue) enqueue(e *entry) {
	if e.Held || e.assumed {
		return
	}
	q.later.set(e) // the next plan decides whether it is eligible
	if !e.QueueDeadline.IsZero() {
		q.deadlines.set(e)
	}
}

// dequeue removes a job from its line and from every heap.
func (q *queue) dequeue(e *entry) {
	q.later.clear(e)
	q.deadlines.clear(e)
	e.ready = false
	if e.line != nil {
		q.pull(e)
	}
}

// advance moves the jobs that have become eligible to their lines.
func (q *queue) advance(now time.Time) {
	if q.unsorted {
		q.later.drain(now, func(e *entry) { e.ready = true })
		return
	}
	for e := q.later.due(now); e != nil; e = q.later.due(now) {
		q.later.clear(e)
		e.ready = true
		q.push(e)
	}
}

// overdue lists the jobs whose queue deadline has passed, and keeps them in the
// queue: the caller's commit removes them.
func (q *queue) expired(now time.Time) (list []*entry) {
	for e := q.deadlines.due(now); e != nil; e = q.deadlines.due(now) {
		q.deadlines.clear(e)
		list = append(list, e)
	}
	for _, e := range list {
		q.deadlines.set(e)
	}
	return list
}

// ahead returns the number of eligible jobs before this one, tenants' shares
// aside. The queue is sorted.
func (q *queue) ahead(id berth.JobID, now time.Time) (n int, ok bool) {
	q.advance(now)
	e := q.jobs[id]
	if e == nil {
		return 0, false
	}
	count := func(a *account) {
		for _, x := range a.lines {
			n += x.line.jobs.before(e)
		}
	}
	count(q.shared)
	for _, a := range q.accounts {
		count(a)
	}
	return n, true
}
