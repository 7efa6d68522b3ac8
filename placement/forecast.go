package placement

import (
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
	planner  Planner
	snapshot *Snapshot
	now      time.Time
	starts   map[berth.JobID]bool
	expected map[berth.JobID]Estimate
	queue    int  // number of jobs that wait
	keeps    bool // room is kept for jobs that are to start later
	fits     map[*cluster.Class]explain.Explanation
	near     []fit.Near

	deference explain.Deference
}

// Forecast plans as Plan does, without a limit of starts, and keeps the estimates for
// explanations.
func (p Planner) Forecast(s *Snapshot, now time.Time) *Forecast { return p.forecast(s, now, "") }

// forecast is Forecast. If only is set, it estimates no job behind that one in the
// queue, which saves most of the time.
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
	for _, e := range r.plan.Estimates {
		o.expected[e.Job] = e
	}
	return o
}

// Why tells everything about a waiting job, by the same code that plans; ok is
// false for a job that does not wait.
func (o *Forecast) Why(id berth.JobID) (w explain.JobExplanation, ok bool) {
	s := o.snapshot
	e := s.queue.Jobs[id]
	if e == nil {
		return w, false
	}
	ahead, _ := s.Ahead(id, o.now)
	r := o.planner.begin(s, o.now)
	defer r.finish()
	r.open()
	machines, ok := o.fits[e.Class]
	if !ok {
		machines = explain.Class(s.state, e.Class)
		o.fits[e.Class] = machines
	}
	x := r.shares.Contenders[s.queue.Account(e.Tenant).Index]
	est := o.expected[id]
	read := explain.NewReading(r.Moment, &r.policy, s.queue, r.shares, r.nominations)
	w = explain.JobExplanation{
		Job: id, Fit: machines, Order: o.planner.Policy.Order, Terms: read.Terms(x, e), Queue: o.queue,
		Position: est.Position, Ahead: ahead, Start: est.Start, Reserved: est.Reserved, StartsNow: o.starts[id],
	}
	if len(e.Data) > 0 {
		w.Data = s.state.Caches.Show(s.cluster, e.Data,
			slices.DeleteFunc(slices.Clone(o.near), func(m fit.Near) bool { return m.Job != id }))
	}
	switch {
	case w.StartsNow:
		w.Start = o.now
	case r.shares.Full(e):
		w.Start, w.Reserved = time.Time{}, false // nobody knows when the others end
	case w.Position > 0:
		w.Ahead = w.Position - 1
	case !e.Held:
		w.Start = r.later(x, e)
	}
	w.Blockers = append(read.Blockers(x, e, w), read.Ahead(&o.deference, e, w, o.keeps)...)
	return w, true
}

// later is when a job that may not start yet would at best, those ahead of it
// left aside; zero if that is not known.
func (r *run) later(x *queue.Contender, e *queue.Entry) time.Time {
	if _, barred := r.shares.Barred(x, e); barred {
		return time.Time{}
	}
	r.snapshot.cluster.Settle(e.Class)
	places := r.reservations.Places(e.Class)
	switch {
	case places == nil:
		return time.Time{}
	case places[len(places)-1].At.Before(e.EligibleAt):
		return e.EligibleAt
	}
	return places[len(places)-1].At
}

// WhyNew is Why for a job that does not wait, as if it came now.
func (p Planner) WhyNew(s *Snapshot, j queue.Job, request spec.Request, now time.Time) explain.JobExplanation {
	c := s.cluster.Classes[j.Class]
	if c == nil {
		c = cluster.NewClass(j.Class, request)
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

// Why is Forecast.Why, for one question.
func (p Planner) Why(s *Snapshot, id berth.JobID, now time.Time) (w explain.JobExplanation, ok bool) {
	if s.queue.Jobs[id] == nil {
		return w, false
	}
	return p.forecast(s, now, id).Why(id)
}
