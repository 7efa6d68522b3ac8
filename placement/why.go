package placement

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"berth"
	"berth/internal/lib/enginesilence"
)

// JobExplanation says why a job waits: everything that is in its way, what its
// place in the queue rests on, and when it should start.
type JobExplanation struct {
	Job      berth.JobID `json:"job"`
	Fit      Explanation `json:"fit"`
	Blockers []Blocker   `json:"blockers"` // what only its owner can change first
	Position int         `json:"position"` // in the queue, from 1; 0: it is not in it
	Ahead    int         `json:"ahead"`    // waiting jobs before it; without tenants' shares if it is not in the queue
	Queue    int         `json:"queue"`    // jobs in the queue
	Order    Order       `json:"-"`
	Terms    []Term      `json:"terms"` // of its place, in the order in which they count
	// Start is when it should start at the latest if those that hold room end at
	// their limits and nobody else comes; zero: nothing known frees the room.
	Start     time.Time `json:"estimated_start"`
	Reserved  bool      `json:"reserved,omitempty"` // no later job delays it
	StartsNow bool      `json:"starts_now,omitempty"`
	// Data are machines that hold some of what it needs, the most first, a few.
	Data []MachineData `json:"data,omitempty"`
}

// Blocker is one thing that keeps a job from starting.
type Blocker struct {
	// Code is stable: held, not_eligible, parallel, limit, max_running, borrowing, budget,
	// unsatisfiable, no_machines, no_room, engine_silent, stopping, overdue, reserved or behind.
	Code   string `json:"code"`
	Text   string `json:"text"`
	Change string `json:"change"` // what would lift it

	Jobs []berth.JobID `json:"jobs,omitempty"` // of stopping: those that are; of overdue: the one it waits for

	Machines []berth.MachineID `json:"machines,omitempty"` // of engine_silent
}

// Term is one thing that a job's place in the queue rests on.
type Term struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Text  string `json:"text"`
}

// reading is the part of a plan that explanations read.
type reading struct {
	*moment
	policy      *Policy
	queue       *queue
	shares      *shares
	nominations *nominations
}

// newReading returns the reading of a plan.
func newReading(at *moment, policy *Policy, q *queue, s *shares, n *nominations) *reading {
	return &reading{moment: at, policy: policy, queue: q, shares: s, nominations: n}
}

// blockers lists what keeps the job from starting by itself: its own state, its
// quota, the machines.
func (r *reading) blockers(x *contender, e *entry, w JobExplanation) []Blocker {
	machines, list := w.Fit, []Blocker(nil)
	add := func(code, text, change string) { list = append(list, Blocker{Code: code, Text: text, Change: change}) }
	if e.Held {
		add("held", "the job is on hold", "release it")
	}
	if e.EligibleAt.After(r.now) {
		add("not_eligible", "it may not start before "+e.EligibleAt.UTC().Format(time.RFC3339), "wait")
	}
	if r.shares.full(e) {
		add("parallel", r.shares.crowded(e), "wait: it starts when one of them ends")
	}
	r.shares.bars(x, e, func(b bar) bool {
		add(b.code, b.String(), b.change())
		return true
	})
	for _, l := range machines.Lacking {
		add("unsatisfiable", berth.Shortfall(l).String(), "ask for less, or let a machine join that has it")
	}
	switch {
	case machines.Machines == 0:
		add("no_machines", "no machine has joined", "start an agent with a join token")
	case len(machines.Lacking) > 0, w.StartsNow: // in room that is kept for it
	case machines.Members == nil && machines.FitNow == 0,
		machines.Members != nil && machines.Members.Now < machines.Members.Asked:
		add("no_room", machines.Summary, "wait, ask for less, or add machines")
		if len(machines.SilentEngines) > 0 {
			list = append(list, engineBlocker(machines.SilentEngines))
		}
	}
	var victims []berth.JobID
	for _, m := range r.nominations.marks[e.ID] {
		if m.victim != nil && !slices.Contains(victims, m.Victim) {
			victims = append(victims, m.Victim)
		}
	}
	if len(victims) > 0 {
		text := "room is kept for it that 1 job still holds"
		if n := len(victims); n > 1 {
			text = "room is kept for it that " + strconv.Itoa(n) + " jobs still hold"
		}
		list = append(list, Blocker{Code: "stopping", Text: text, Change: "wait: they have been told to stop",
			Jobs: victims})
	}
	return list
}

// engineBlocker names machines that a job could use if their container engines
// answered.
func engineBlocker(silent []enginesilence.Machine) Blocker {
	return Blocker{Code: "engine_silent", Text: enginesilence.Text(silent), Change: enginesilence.Hint,
		Machines: enginesilence.IDs(silent)}
}

// ahead lists the jobs before it, and the room that is kept for them if keeps is
// set.
func (r *reading) ahead(d *deference, e *entry, w JobExplanation, keeps bool) []Blocker {
	var list []Blocker
	if b, ok := d.blocker(r.queue.account(e.Tenant), e); ok && !w.StartsNow && !e.Held {
		list = append(list, b)
	}
	room := w.Fit.Members == nil && w.Fit.FitNow > 0 || w.Fit.Members != nil && w.Fit.Members.Now >= w.Fit.Members.Asked
	if room && !w.StartsNow && keeps && !e.Held {
		list = append(list, Blocker{Code: "reserved", Text: "room that it could use is kept for jobs before it",
			Change: "give it a time_limit that ends before they start, or raise its priority"})
	}
	switch {
	case w.StartsNow:
	case w.Ahead == 1:
		list = append(list, Blocker{Code: "behind", Text: "1 waiting job comes before it",
			Change: "raise its priority"})
	case w.Ahead > 1:
		list = append(list, Blocker{Code: "behind", Text: strconv.Itoa(w.Ahead) + " waiting jobs come before it",
			Change: "raise its priority"})
	}
	return list
}

// terms spells out what the job's place rests on.
func (r *reading) terms(x *contender, e *entry) []Term {
	p := r.policy
	var list []Term
	add := func(name, value, format string, args ...any) {
		list = append(list, Term{name, value, fmt.Sprintf(format, args...)})
	}
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }
	a := p.aged(e, r.queue.account(e.Tenant), r.now)
	ranked := p.Order == Fair || p.Order == Priority
	switch {
	case ranked && p.BandWidth <= 1: // a band is a priority
		add("priority", strconv.Itoa(a.base), "priority %d", a.base)
	case p.Order != FIFO:
		add("band", strconv.Itoa(int(e.band)), "priority %d is of band %d", e.Priority, p.band(e.Priority))
	}
	if p.Overdue > 0 {
		list = append(list, r.overdueTerm(x, e))
	}
	if p.Order == Fair {
		for _, y := range r.above(x) {
			past := y.past.dominant(r.shares.owned)
			share := amountsOf(y.held.Capacity).plus(y.past, 1).dominant(r.shares.owned) / y.account.weight()
			add("share", number(share), "tenant %s holds %s of the cluster and counts %s for the past, over weight %s",
				y.account.ID,
				percent(amountsOf(y.held.Capacity).dominant(r.shares.owned)), percent(past),
				strconv.FormatFloat(y.account.weight(), 'g', -1, 64))
			if y.account.guarantees(y.held.Capacity, e.class.all) {
				add("guarantee", "true",
					"with it tenant %s stays within its guarantee, which comes before those that borrow", y.account.ID)
			}
		}
	}
	if p.Order == SRSF {
		list = append(list, p.expectedTerms(e)...)
		add("service", number(e.rank), "%s GPUs for %s; the least service to go comes first",
			strconv.FormatFloat(gpusOf(e.class.all), 'g', 4, 64), known(p.serviceOf(e)))
	}
	if ranked && p.BandWidth > 1 {
		add("priority", strconv.Itoa(a.base), "priority %d", a.base)
	}
	switch {
	case !ranked || p.Aging <= 0:
	case a.capped:
		add("age", number(a.points), "%.1f points for waiting, which is the top of its band", a.points)
	default:
		add("age", number(a.points), "%.1f points for waiting, one each %s", a.points, berth.Duration(p.Aging))
	}
	add("submitted_at", e.SubmittedAt.UTC().Format(time.RFC3339Nano), "submitted %s",
		e.SubmittedAt.UTC().Format(time.RFC3339))
	add("id", string(e.ID), "id")
	return list
}

// expectedTerms tell what the service to go takes a job's run to be, and by what.
func (p *Policy) expectedTerms(e *entry) []Term {
	if p.Ranker != nil || p.Durations == Unknown {
		return nil
	}
	limit := ""
	if e.TimeLimit > 0 {
		limit = ", and no longer than its time_limit with stop_grace, " + berth.Duration(e.TimeLimit).String()
	}
	term := func(t time.Duration, text string) []Term {
		return []Term{{"expected", berth.Duration(t).String(), text}}
	}
	unknown := func(text string) []Term { return []Term{{"expected", "unknown", text}} }
	expected := "expected to run " + berth.Duration(e.Expected).String() + " in all"
	if e.ExpectedBy != "" {
		expected += ", " + e.ExpectedBy
	}
	switch {
	case e.Remaining > 0:
		return term(e.Remaining, "given: it has "+berth.Duration(e.Remaining).String()+" to run"+limit)
	case p.Durations == Estimated && e.Expected > e.Done:
		if e.Done > 0 {
			expected += "; it has run " + berth.Duration(e.Done).String()
		}
		return term(e.Expected, expected+limit)
	case e.TimeLimit > 0:
		return term(e.TimeLimit, "given: its time_limit with stop_grace is "+berth.Duration(e.TimeLimit).String())
	case p.Durations == Estimated && e.Expected > 0:
		return unknown(expected + ", which it has outrun")
	}
	return unknown("not known: it has no time_limit, and nothing like it has succeeded lately")
}

// above lists the contenders of tenants with a row from the top down to x.
func (r *reading) above(x *contender) []*contender {
	var list []*contender
	for ; x != &r.shares.root; x = x.parent {
		if x.account.known {
			list = append(list, x)
		}
	}
	slices.Reverse(list)
	return list
}

func known(s service) string {
	if s.remaining == 0 {
		return "an unknown time, " + berth.Duration(s.done).String() + " so far"
	}
	return berth.Duration(s.remaining + s.restart).String()
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) + " %" }
