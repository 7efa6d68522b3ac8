package placement

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/placement/explain"
	"berth/placement/fit"
	"berth/placement/queue"
	"berth/spec"
)

// Forecast is a plan with the estimates of all waiting jobs, which the explanations of
// single jobs share. It is valid until its snapshot changes, and not safe for
// concurrent use.
type Forecast struct {
	planner    Planner
	snapshot   *Snapshot
	now        time.Time
	starts     map[berth.JobID]bool
	expected   map[berth.JobID]Estimate
	priorities []explain.Range                        // of the jobs ahead, by position
	queue      int                                    // number of waiting jobs
	keeps      bool                                   // capacity is held for reserved starts or nominations
	fits       map[*cluster.Class]explain.Explanation // computed on demand, once per class
	near       []fit.Near

	deference explain.Deference
}

// Forecast plans as Plan does, without a limit of starts, and keeps the estimates for
// explanations.
func (p Planner) Forecast(s *Snapshot, now time.Time) *Forecast { return p.forecast(s, now, "") }

// forecast implements Forecast. If only is set, it estimates no job behind that one in
// the queue, which saves most of the time.
func (p Planner) forecast(s *Snapshot, now time.Time, only berth.JobID) *Forecast {
	p.Estimate, p.Explain, p.MaxStarts = true, false, 0
	r := p.begin(s, now)
	defer r.finish()
	r.open()
	r.walk()
	r.emit()
	o := &Forecast{
		planner: p, snapshot: s, now: now, keeps: len(r.ledger.Holds) > 0,
		starts: make(map[berth.JobID]bool, len(r.plan.Start)), fits: map[*cluster.Class]explain.Explanation{},
	}
	o.deference, o.near = r.deference, r.plan.Near
	for _, start := range r.plan.Start {
		o.starts[start.Job] = true
	}
	o.queue = r.estimate(only)
	o.expected = make(map[berth.JobID]Estimate, len(r.plan.Estimates))
	var ahead explain.Range
	o.priorities = make([]explain.Range, len(r.plan.Estimates))
	for i, e := range r.plan.Estimates {
		o.expected[e.Job], o.priorities[i] = e, ahead
		ahead = ahead.With(s.queue.Jobs[e.Job].Priority)
	}
	return o
}

// Estimates lists the estimates of all jobs in the queue, in no order.
func (o *Forecast) Estimates() []Estimate { return slices.Collect(maps.Values(o.expected)) }

// Estimate returns the estimate of a job in the queue; zero for any other job.
func (o *Forecast) Estimate(id berth.JobID) Estimate { return o.expected[id] }

// Why explains a waiting job with the code that plans: its blockers, its position and
// the values that the position depends on, and its estimated start. ok is false for a
// job that does not wait.
//
// A job in the forecast's queue has its position and start from the estimates. Any
// other job, such as a held one, has Position 0, and Ahead ignores tenants' shares.
func (o *Forecast) Why(id berth.JobID) (w explain.JobExplanation, ok bool) {
	s := o.snapshot
	e := s.queue.Jobs[id]
	if e == nil {
		return w, false
	}
	o.know(e)
	ahead, _ := s.Ahead(id, o.now)
	r := o.planner.begin(s, o.now)
	defer r.finish()
	r.open()
	x := r.shares.Contenders[s.queue.Account(e.Tenant).Index]
	read := explain.NewReading(r.Moment, &r.policy, s.cluster, s.queue, r.shares, r.nominations)
	w = o.estimated(r, e)
	w.Fit, w.Terms = o.fit(e.Class), read.Terms(x, e)
	if len(e.Data) > 0 {
		w.Data = s.state.Caches.Show(s.cluster, e.Data,
			slices.DeleteFunc(slices.Clone(o.near), func(m fit.Near) bool { return m.Job != id }))
	}
	if w.StartsNow || w.Position == 0 || r.shares.Full(e) {
		w.Ahead = ahead
	}
	if !w.StartsNow && w.Position == 0 && !r.shares.Full(e) && !e.Held {
		w.Start = r.later(x, e)
	}
	if e.TimeLimit == 0 {
		w.Run = o.planner.RunTimes.Waiting(e)
	}
	w.Blockers = append(read.Blockers(x, e, w), read.Ahead(&o.deference, e, w, o.keeps)...)
	w.Alternatives = o.alternatives(read, x, e)
	w.Blockers = soften(w, w.Blockers, w.Alternatives)
	return sooner(w, o.now), true
}

// sooner brings the estimated start forward to the time at which an alternative opens that has room now.
func sooner(w explain.JobExplanation, now time.Time) explain.JobExplanation {
	if w.Position == 0 || w.StartsNow { // a job on hold, or in backoff
		return w
	}
	for _, a := range w.Alternatives {
		if len(a.Blockers) == 0 && a.Opens.After(now) && (w.Start.IsZero() || a.Opens.Before(w.Start)) {
			w.Start, w.Reserved, w.Guess = a.Opens, false, false
		}
	}
	return w
}

// know defines the classes of a job's alternatives. It precedes a plan, since a new class may regroup the
// machines.
func (o *Forecast) know(e *queue.Entry) {
	for _, a := range e.Alternatives {
		ownClass(o.snapshot, e.ID, a.Class, e.Tenant)
	}
}

// alternatives explains each hardware that a job may take.
func (o *Forecast) alternatives(read *explain.Reading, x *queue.Contender, e *queue.Entry) []explain.Alternative {
	list := make([]explain.Alternative, 0, len(e.Alternatives))
	for i, a := range e.Alternatives {
		as := *e
		as.Class, as.Job.Class = ownClass(o.snapshot, e.ID, a.Class, e.Tenant), a.Class
		w := explain.JobExplanation{Fit: o.fit(as.Class)}
		found := append(read.Blockers(x, &as, w), read.Ahead(&explain.Deference{}, &as, w, o.keeps)...)
		list = append(list, explain.Alternative{
			Number: i, InForce: i == e.InForce, Fit: w.Fit,
			Blockers: slices.DeleteFunc(found, func(b explain.Blocker) bool {
				return slices.Contains([]string{"held", "not_eligible", "parallel", "stopping"}, b.Code) // of the job
			}),
		})
		if a.Opens.After(o.now) && i > e.InForce {
			list[i].Opens = a.Opens
		}
	}
	return list
}

// soften adapts the blockers of the request in force to a job with alternatives. They are void if the job
// starts now on another alternative. The code unsatisfiable, which is the end of all hope, becomes
// another one if some alternative fits on a machine.
func soften(w explain.JobExplanation, list []explain.Blocker, alternatives []explain.Alternative) []explain.Blocker {
	if w.StartsNow && len(alternatives) > 0 {
		return nil
	}
	if !slices.ContainsFunc(alternatives, func(a explain.Alternative) bool { return !a.Fit.Unsatisfiable() }) {
		return list
	}
	for i, b := range list {
		if b.Code == "unsatisfiable" {
			list[i].Code, list[i].Change = "no_room", "wait for an alternative that a machine has"
		}
	}
	return list
}

// estimated returns the part of an explanation that the estimates contain.
func (o *Forecast) estimated(r *run, e *queue.Entry) explain.JobExplanation {
	est := o.expected[e.ID]
	w := explain.JobExplanation{
		Job: e.ID, Order: o.planner.Policy.Order, Queue: o.queue,
		Position: est.Position, Start: est.Start, Reserved: est.Reserved, Guess: est.Guess, StartsNow: o.starts[e.ID],
		Bar: est.Bar,
	}
	switch {
	case w.StartsNow:
		w.Start, w.Guess = o.now, false
	case r.shares.Full(e):
		w.Start, w.Reserved = time.Time{}, false // the ends of its siblings are not predicted
	case w.Position > 0:
		w.Ahead, w.AheadPriority = w.Position-1, o.priorities[w.Position-1]
	}
	return w
}

// fit compares a class with the machines, once for all jobs of the class.
func (o *Forecast) fit(c *cluster.Class) explain.Explanation {
	machines, ok := o.fits[c]
	if !ok {
		machines = explain.Class(o.snapshot.state, c)
		o.fits[c] = machines
	}
	return machines
}

// Overview lists all waiting jobs with the first reason of each: the queue in its order,
// then the held jobs and the jobs in backoff. It is one pass, while Why prepares a plan for
// each job. Each machine is compared with the first classes of the queue only, which bounds
// the cost: the reason of a job of another class names no machine, and its pools are found by
// kind of machine. Start is unknown for jobs outside of the queue.
func (o *Forecast) Overview(classes int) []explain.Waiting {
	s := o.snapshot
	for _, e := range s.queue.Waiting {
		o.know(e)
	}
	r := o.planner.begin(s, o.now)
	defer r.finish()
	r.open()
	read := explain.NewReading(r.Moment, &r.policy, s.cluster, s.queue, r.shares, r.nominations)
	entries := slices.Clone(s.queue.Waiting)
	place := func(e *queue.Entry) int {
		if p := o.expected[e.ID].Position; p > 0 {
			return p
		}
		return math.MaxInt
	}
	slices.SortFunc(entries, func(a, b *queue.Entry) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), a.SubmittedAt.Compare(b.SubmittedAt),
			cmp.Compare(a.ID, b.ID))
	})
	list := make([]explain.Waiting, 0, len(entries))
	pools := newPoolIndex(s.cluster)
	for _, e := range entries {
		x := r.shares.Contenders[s.queue.Account(e.Tenant).Index]
		w := o.estimated(r, e)
		// Classes that Why has compared meanwhile do not count, lest the first jobs go without.
		_, compared := o.fits[e.Class]
		if !compared && classes > 0 {
			classes, compared = classes-1, true
		}
		if compared {
			w.Fit = o.fit(e.Class)
		} else { // as if it had room, so that the machines are no reason
			w.Fit = explain.Explanation{Machines: len(s.cluster.Nodes), FitNow: 1, Pools: pools.of(e.Class)}
		}
		note := read.Note(x, e, w)
		blockers := append(read.Blockers(x, e, w), read.Ahead(&o.deference, e, w, o.keeps && compared)...)
		if len(e.Alternatives) > 0 && (w.StartsNow || w.Fit.Unsatisfiable()) {
			blockers = soften(w, blockers, o.alternatives(read, x, e))
		}
		note.Summarize(blockers, w.Fit.Shut)
		list = append(list, note)
	}
	return list
}

// later estimates the start of a job that is not eligible yet, at best: it ignores the
// jobs ahead in the queue. The result is zero if a quota bars the job or if no release
// of capacity makes room for all members.
func (r *run) later(x *queue.Contender, e *queue.Entry) time.Time {
	if _, barred := r.shares.Barred(x, e); barred {
		return time.Time{}
	}
	r.snapshot.cluster.Settle(e.Class)
	r.reservations.Limit = e.TimeLimit
	places := r.reservations.Places(e.Class)
	r.reservations.Limit = 0
	switch {
	case places == nil:
		return time.Time{}
	case places[len(places)-1].At.Before(e.EligibleAt):
		return e.EligibleAt
	}
	return places[len(places)-1].At
}

// WhyNew explains a job that is not in the queue as if it were submitted now. It adds the
// job, and its class if unknown, to the snapshot for the time of the call only.
func (p Planner) WhyNew(s *Snapshot, j queue.Job, request spec.Request, now time.Time) explain.JobExplanation {
	j.Alternatives, j.InForce = nil, 0 // each is a question of its own
	openAlternatives(s, now)           // which may define classes; Dismiss takes back the last one
	c := s.cluster.Classes[j.Class]
	unknown := c == nil
	if unknown {
		c = cluster.NewClass(j.Class, request)
	}
	c, created := s.cluster.ClassFor(c, j.Tenant)
	if unknown || created {
		s.cluster.Observe(c)
		s.cluster.Enroll(c)
		s.queue.Enroll(c)
		s.state.Memory.Reset(c)
		defer s.cluster.Dismiss(c)
	}
	s.queue.Upsert(j, c)
	defer s.RemoveJob(j.ID)
	w, _ := p.Why(s, j.ID, now)
	return w
}

// Why makes a forecast for a single job and explains the job as Forecast.Why does.
func (p Planner) Why(s *Snapshot, id berth.JobID, now time.Time) (w explain.JobExplanation, ok bool) {
	if s.queue.Jobs[id] == nil {
		return w, false
	}
	return p.forecast(s, now, id).Why(id)
}
