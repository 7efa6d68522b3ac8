package queue

import (
	"time"

	"berth"
	"berth/placement/cluster"
)

// Queue holds every waiting job, by account and class, and the tenants' accounts.
//
// Heaps, and a tree per line, keep single changes at about O(log n). A new ordering policy,
// or a change of the tenant tree, sorts every job again at the start of the next plan; a
// Ranker moves the jobs whose rank has changed. A Queue is not safe for concurrent use.
type Queue struct {
	Jobs    map[berth.JobID]*Entry
	Waiting []*Entry      // all of Jobs, by Entry.slot
	classes []*ClassQueue // by Class.Number

	Tenants  map[berth.TenantID]Tenant
	tallies  map[berth.TenantID]*Tally
	accounts map[berth.TenantID]*Account
	shared   *Account            // account of all tenants without a row
	top      []*Account          // accounts without a parent, the shared one first, then by id
	siblings map[berth.JobID]int // running elements, by array

	Policy   Policy    // ordering part of the latest plan's policy
	edge     time.Time // latest overdue step; see Policy.edge
	unsorted bool      // Sort must rebuild accounts and lines
	Sortings int       // rebuilds so far; each renews the indexes of accounts

	later     alarms // jobs that are not eligible yet
	deadlines alarms // waiting jobs with a queue deadline
}

// ClassQueue holds the eligible jobs of one class, over all accounts.
type ClassQueue struct {
	class  *cluster.Class
	Ready  int     // number of jobs
	limits alarms  // jobs with a time limit, shortest first
	Lines  []*Line // by Line.number, in no particular order
}

// Shortest returns the shortest time limit of the jobs; ok is false if no job has one. A
// plan tests backfill for a whole class with this job.
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

// Enroll adds a class that the cluster has just numbered.
func (q *Queue) Enroll(c *cluster.Class) {
	// The number of a dismissed class is used again, and its queue is overwritten.
	q.classes = append(q.classes[:c.Number], &ClassQueue{class: c, limits: byLimit()})
}

// Of returns the eligible jobs of a class.
func (q *Queue) Of(c *cluster.Class) *ClassQueue { return q.classes[c.Number] }

// Upsert adds a job or replaces its row, and reports whether the job is new.
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
	last := len(q.Waiting) - 1 // the last job takes the free slot
	q.Waiting[e.slot], q.Waiting[last].slot = q.Waiting[last], e.slot
	q.Waiting[last], q.Waiting = nil, q.Waiting[:last]
}

// Assume takes a job out of the order while its start is being committed, so that no plan
// starts the job twice.
func (q *Queue) Assume(id berth.JobID) {
	if e := q.Jobs[id]; e != nil {
		q.dequeue(e)
		e.Assumed = true
	}
}

// Unassume reverts Assume, once the outcome of the commit is known.
func (q *Queue) Unassume(id berth.JobID) {
	if e := q.Jobs[id]; e != nil && e.Assumed {
		e.Assumed = false
		q.enqueue(e)
	}
}

// enqueue puts a job into the heap of jobs that are not eligible yet, and into the heap of
// queue deadlines. Held and assumed jobs stay out of both.
func (q *Queue) enqueue(e *Entry) {
	if e.Held || e.Assumed {
		return
	}
	q.later.set(e) // Advance decides at the next plan whether the job is eligible
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

// Advance moves the jobs that have become eligible to their lines. In an unsorted queue it
// only marks these jobs: Sort puts them into lines.
func (q *Queue) Advance(now time.Time) {
	if q.unsorted {
		q.later.drain(now, func(e *Entry) { e.ready = true })
		return
	}
	for e := q.later.due(now); e != nil; e = q.later.due(now) {
		q.later.clear(e)
		e.ready = true
		if q.Policy.Ranker != nil {
			e.rate(&q.Policy, q.edge) // the rank is of an earlier plan
		}
		q.push(e)
	}
}

// Expired lists the jobs with a passed queue deadline. The jobs stay in the queue until the
// caller's commit removes them.
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

// Ahead returns the number of eligible jobs before this one, ignoring the shares of
// tenants. ok is false for an unknown job. The queue must be sorted.
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
