package queue

import (
	"time"

	"berth"
	"berth/placement/cluster"
)

// Queue is every waiting job, by account and class, and the tenants' accounts.
// The part of the policy that orders one account's jobs decides the order; a new
// order sorts every job again. It is not safe for concurrent use.
type Queue struct {
	Jobs    map[berth.JobID]*Entry
	Waiting []*Entry      // the jobs, by entry.slot
	classes []*ClassQueue // by Class.Number

	Tenants  map[berth.TenantID]Tenant
	tallies  map[berth.TenantID]*Tally
	accounts map[berth.TenantID]*Account
	shared   *Account            // of all tenants without a row
	top      []*Account          // accounts without a parent, by id
	siblings map[berth.JobID]int // running elements, by parent

	Policy   Policy    // the ordering part of the latest plan's policy
	edge     time.Time // see Policy.edge
	unsorted bool      // sort must rebuild accounts and lines
	Sortings int       // rebuilds so far

	later     alarms // jobs that are not eligible yet
	deadlines alarms // waiting jobs with a queue deadline
}

// ClassQueue is the eligible jobs of one class.
type ClassQueue struct {
	class  *cluster.Class
	Ready  int     // their number
	limits alarms  // the ones with a time limit, shortest first
	Lines  []*Line // in no order
}

// Shortest returns the shortest time limit of the jobs; ok is false if none has one.
func (c *ClassQueue) Shortest() (limit time.Duration, ok bool) {
	if len(c.limits.list) == 0 {
		return 0, false
	}
	return c.limits.list[0].at, true
}

// New returns an empty queue. It sorts its jobs before the first plan.
func New() *Queue {
	return &Queue{
		Jobs:     map[berth.JobID]*Entry{},
		Tenants:  map[berth.TenantID]Tenant{},
		tallies:  map[berth.TenantID]*Tally{},
		siblings: map[berth.JobID]int{},
		unsorted: true,
		later: byTime(
			func(e *Entry) time.Time { return e.EligibleAt },
			func(e *Entry) *position { return &e.later },
		),
		deadlines: byTime(
			func(e *Entry) time.Time { return e.QueueDeadline },
			func(e *Entry) *position { return &e.deadline },
		),
	}
}

// Enroll adds a class, which the cluster has just numbered.
func (q *Queue) Enroll(c *cluster.Class) {
	q.classes = append(q.classes[:c.Number], &ClassQueue{class: c, limits: byLimit()})
}

// Of returns the eligible jobs of a class.
func (q *Queue) Of(c *cluster.Class) *ClassQueue { return q.classes[c.Number] }

// Upsert adds a job or replaces its row, and reports whether it is new.
func (q *Queue) Upsert(j Job, c *cluster.Class) (added bool) {
	e := q.Jobs[j.ID]
	if added = e == nil; added {
		e = &Entry{slot: int32(len(q.Waiting))}
		e.leaf.Item, e.leaf.Weight = e, cluster.WeightOf(string(j.ID))
		q.Jobs[j.ID], q.Waiting = e, append(q.Waiting, e)
	} else {
		q.dequeue(e)
		e.tally.waiting--
	}
	t := q.Tally(j.Tenant)
	t.waiting++
	e.set(j, c, t)
	e.rate(&q.Policy, q.edge)
	q.enqueue(e)
	return added
}

// Expect sets the expected run time of a job and moves the job accordingly.
func (q *Queue) Expect(id berth.JobID, t time.Duration, by string) {
	if e := q.Jobs[id]; e != nil && (e.Expected != t || e.ExpectedBy != by) {
		q.dequeue(e)
		e.Expected, e.ExpectedBy = t, by
		e.rate(&q.Policy, q.edge)
		q.enqueue(e)
	}
}

// Remove removes a job. An unknown one is no error.
func (q *Queue) Remove(id berth.JobID) {
	e := q.Jobs[id]
	if e == nil {
		return
	}
	q.dequeue(e)
	e.tally.waiting--
	delete(q.Jobs, id)
	last := len(q.Waiting) - 1
	q.Waiting[e.slot], q.Waiting[last].slot = q.Waiting[last], e.slot
	q.Waiting[last], q.Waiting = nil, q.Waiting[:last]
}

// Assume takes a job out of the queue while its start is being committed.
func (q *Queue) Assume(id berth.JobID) {
	if e := q.Jobs[id]; e != nil {
		q.dequeue(e)
		e.Assumed = true
	}
}

// Unassume reverts Assume.
func (q *Queue) Unassume(id berth.JobID) {
	if e := q.Jobs[id]; e != nil && e.Assumed {
		e.Assumed = false
		q.enqueue(e)
	}
}

// enqueue schedules a job for its line and its deadline.
func (q *Queue) enqueue(e *Entry) {
	if e.Held || e.Assumed {
		return
	}
	q.later.set(e) // the next plan decides whether it is eligible
	if !e.QueueDeadline.IsZero() {
		q.deadlines.set(e)
	}
}

// dequeue removes a job from its line and from every heap.
func (q *Queue) dequeue(e *Entry) {
	q.later.clear(e)
	q.deadlines.clear(e)
	e.ready = false
	if e.Line != nil {
		q.pull(e)
	}
}

// Advance moves the jobs that have become eligible to their lines.
func (q *Queue) Advance(now time.Time) {
	if q.unsorted {
		q.later.drain(now, func(e *Entry) { e.ready = true })
		return
	}
	for e := q.later.due(now); e != nil; e = q.later.due(now) {
		q.later.clear(e)
		e.ready = true
		q.push(e)
	}
}

// Expired lists the jobs whose queue deadline has passed, and keeps them in the queue:
// the caller's commit removes them.
func (q *Queue) Expired(now time.Time) (list []*Entry) {
	for e := q.deadlines.due(now); e != nil; e = q.deadlines.due(now) {
		q.deadlines.clear(e)
		list = append(list, e)
	}
	for _, e := range list {
		q.deadlines.set(e)
	}
	return list
}

// Ahead returns the number of eligible jobs before this one, without regard to the
// shares of tenants. The queue must be sorted.
func (q *Queue) Ahead(id berth.JobID, now time.Time) (n int, ok bool) {
	q.Advance(now)
	e := q.Jobs[id]
	if e == nil {
		return 0, false
	}
	count := func(a *Account) {
		for _, x := range a.lines {
			n += x.line.jobs.Before(e)
		}
	}
	count(q.shared)
	for _, a := range q.accounts {
		count(a)
	}
	return n, true
}
