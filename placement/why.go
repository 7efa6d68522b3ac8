package placement

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth"
)

// JobExplanation says why a job waits: everything that is in its way, what its
// place in the queue rests on, and when it should start.
type JobExplanation struct {
	Job      berth.JobID `json:"job"`
	Fit      Explanation `json:"fit"`
	Blockers []Blocker   `json:"blockers"` // what only its owner can change first
	Position int         `json:"position"` // in the queue, from 1; 0: it is not in it
	Queue    int         `json:"queue"`    // jobs in the queue
	Order    Order       `json:"-"`
	Terms    []Term      `json:"terms"` // of its place, in the order in which they count
	// Start is when it should start at the latest if those that hold room end at
	// their limits and nobody else comes; zero: nothing known frees the room.
	Start     time.Time `json:"estimated_start"`
	Reserved  bool      `json:"reserved,omitempty"` // no later job delays it
	StartsNow bool      `json:"starts_now,omitempty"`
}

// Blocker is one thing that keeps a job from starting.
type Blocker struct {
	// Code is stable: held, not_eligible, limit, max_running, borrowing, budget,
	// unsatisfiable, no_machines, no_room, reserved, stopping or behind.
	Code   string `json:"code"`
	Text   string `json:"text"`
	Change string `json:"change"` // what would lift it
}

// Term is one thing that a job's place in the queue rests on.
type Term struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Text  string  `json:"text"`
}

// Why tells everything about a waiting job, by the same code that plans; ok is
// false for a job that does not wait.
func (p Planner) Why(s *Snapshot, id berth.JobID, now time.Time) (w JobExplanation, ok bool) {
	e := s.jobs[id]
	if e == nil {
		return w, false
	}
	p.Estimate, p.Explain, p.MaxStarts = true, false, 0
	r := p.begin(s, now)
	defer r.finish()
	r.queue()
	x := r.seats[s.account(e.Tenant).index]
	w = JobExplanation{Job: id, Fit: s.explain(e.class), Order: p.Policy.Order, Terms: r.terms(x, e)}
	w.Blockers = r.blockers(x, e, w.Fit)
	for y := r.next(); y != nil; y = r.next() {
		r.decide(y)
	}
	for _, start := range r.plan.Start {
		w.StartsNow = w.StartsNow || start.Job == id
	}
	r.estimate()
	w.Queue = len(r.plan.Estimates)
	for _, est := range r.plan.Estimates {
		if est.Job == id {
			w.Position, w.Start, w.Reserved = est.Position, est.Start, est.Reserved
		}
	}
	w.Blockers = append(w.Blockers, r.ahead(e, w)...)
	if w.StartsNow {
		w.Start = now
	}
	return w, true
}

// blockers lists what keeps the job from starting by itself: its own state, its
// quota, the machines.
func (r *run) blockers(x *seat, e *entry, fit Explanation) []Blocker {
	var list []Blocker
	add := func(code, text, change string) { list = append(list, Blocker{code, text, change}) }
	if e.Held {
		add("held", "the job is on hold", "release it")
	}
	if e.EligibleAt.After(r.now) {
		add("not_eligible", "it may not start before "+e.EligibleAt.UTC().Format(time.RFC3339), "wait")
	}
	r.bars(x, e, func(b bar) bool {
		add(b.code, b.String(), b.change())
		return true
	})
	for _, l := range fit.Lacking {
		add("unsatisfiable", fmt.Sprintf("asks for %s %s; the largest there is has %s", l.Resource, l.Asked, l.Largest), "ask for less, or let a machine join that has it")
	}
	switch {
	case fit.Machines == 0:
		add("no_machines", "no machine has joined", "start an agent with a join token")
	case len(fit.Lacking) > 0:
	case fit.Members == nil && fit.FitNow == 0, fit.Members != nil && fit.Members.Now < fit.Members.Asked:
		add("no_room", fit.Summary, "wait, ask for less, or add machines")
	}
	if marks := r.marks[e.ID]; len(marks) > 0 {
		var victims []string
		for _, m := range marks {
			if m.victim != nil && !slices.Contains(victims, string(m.Victim)) {
				victims = append(victims, string(m.Victim))
			}
		}
		if len(victims) > 0 {
			add("stopping", "room is kept for it that these still hold: "+strings.Join(victims, ", "), "they have been told to stop")
		}
	}
	return list
}

// ahead tells of jobs before it, and of room that is kept for them.
func (r *run) ahead(e *entry, w JobExplanation) []Blocker {
	var list []Blocker
	room := w.Fit.Members == nil && w.Fit.FitNow > 0 || w.Fit.Members != nil && w.Fit.Members.Now >= w.Fit.Members.Asked
	if room && !w.StartsNow && len(r.keeps) > 0 && !e.Held {
		list = append(list, Blocker{"reserved", "room that it could use is kept for jobs before it", "give it a time_limit that ends before they start, or raise its priority"})
	}
	switch {
	case w.Position == 2:
		list = append(list, Blocker{"behind", "1 waiting job comes before it", "raise its priority"})
	case w.Position > 2:
		list = append(list, Blocker{"behind", strconv.Itoa(w.Position-1) + " waiting jobs come before it", "raise its priority"})
	}
	return list
}

// terms spells out what the job's place rests on.
func (r *run) terms(x *seat, e *entry) []Term {
	p := &r.policy
	var list []Term
	add := func(name string, value float64, format string, args ...any) {
		list = append(list, Term{name, value, fmt.Sprintf(format, args...)})
	}
	if p.Order != FIFO {
		add("band", float64(e.band), "priority %d is of band %d", e.Priority, p.band(e.Priority))
	}
	if p.Order == Fair {
		for y := x; y != &r.root; y = y.parent {
			if !y.account.known {
				continue
			}
			past := y.past.dominant(r.owned)
			share := amountsOf(y.held.Capacity).plus(y.past, 1).dominant(r.owned) / y.account.weight()
			add("share", share, "tenant %s holds %s of the cluster and counts %s for the past, over weight %s", y.account.ID,
				percent(amountsOf(y.held.Capacity).dominant(r.owned)), percent(past), strconv.FormatFloat(y.account.weight(), 'g', -1, 64))
			if y.account.guarantees(y.held.Capacity, e.class.all) {
				add("guarantee", 1, "with it tenant %s stays within its guarantee, which comes before those that borrow", y.account.ID)
			}
		}
	}
	switch p.Order {
	case SRSF:
		add("service", e.rank, "%s GPUs for %s; the least service to go comes first", strconv.FormatFloat(gpusOf(e.class.all), 'g', 4, 64), known(serviceOf(e)))
	case Fair, Priority:
		a := p.aged(e, r.snapshot.account(e.Tenant), r.now)
		add("priority", float64(a.base), "priority %d", a.base)
		switch {
		case p.Aging <= 0:
		case a.capped:
			add("age", a.points, "%.1f points for waiting, which is the top of its band", a.points)
		default:
			add("age", a.points, "%.1f points for waiting, one each %s", a.points, berth.Duration(p.Aging))
		}
	case FIFO:
	}
	add("submitted", e.SubmittedAt.Sub(origin).Seconds(), "submitted %s", e.SubmittedAt.UTC().Format(time.RFC3339))
	return list
}

func known(s service) string {
	if s.remaining == 0 {
		return "an unknown time, " + berth.Duration(s.done).String() + " so far"
	}
	return berth.Duration(s.remaining + s.restart).String()
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) + " %" }
