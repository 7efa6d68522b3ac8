package explain

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"berth"
	"berth/internal/lib/enginesilence"
	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/placement/preempt"
	"berth/placement/queue"
	"berth/spec"
	"berth/wire"
)

// JobExplanation lists the reasons why a job waits, the values that its position in the
// queue depends on, and its estimated start.
type JobExplanation struct {
	Job           berth.JobID `json:"job"`
	Fit           Explanation `json:"fit"`
	Blockers      []Blocker   `json:"blockers"` // causes in the job itself first, then other jobs
	Position      int         `json:"position"` // in the queue, from 1; 0: the job is not in the queue
	Ahead         int         `json:"ahead"`    // waiting jobs before it; for a plan, without the shares of tenants
	Queue         int         `json:"queue"`    // number of jobs in the queue
	AheadPriority Range       `json:"-"`        // of the jobs before it
	Order         queue.Order `json:"-"`
	Terms         []Term      `json:"terms"` // values that decide the position, the most important first
	// Start is the latest expected start, on the assumptions that running jobs end at
	// their limits and that no more jobs are submitted. Zero means that no known end of a
	// job frees enough capacity, or that Bar is set.
	Start     time.Time `json:"estimated_start"`
	Reserved  bool      `json:"reserved,omitempty"`   // Start is reserved: no later job delays it
	StartsNow bool      `json:"starts_now,omitempty"` // the present plan starts the job
	Guess     bool      `json:"-"`                    // Start rests on run times of other jobs, not on limits alone
	// Bar is the quota that keeps Start unknown: it bars the job once all known ends of jobs have passed. nil: none.
	Bar *Blocker `json:"-"`
	// Run predicts the job's run time from similar jobs; zero for a job with a limit.
	Run queue.Prediction `json:"-"`
	// Holders lists the running jobs on the machines that the job could use, the earliest end
	// first; only of a job for which none of these has room. Callers may not see all of them.
	Holders []Holder `json:"-"`
	// Alternatives compares the machines with each hardware that the job may take; nil: only that of Fit.
	Alternatives []Alternative `json:"-"`
	// Data lists a few machines that hold some of the job's data, the most first.
	Data []fit.MachineData `json:"data,omitempty"`
}

// Alternative explains one hardware that a job may take.
type Alternative struct {
	Number   int // 0: resources of the job file; from 1: its alternatives
	InForce  bool
	Opens    time.Time // the job may take it from then on; zero: at any time
	Fit      Explanation
	Blockers []Blocker // quotas and machines that keep the job from it now
}

// Blocker is one reason why a job does not start.
type Blocker struct {
	// Code is stable: held, not_eligible, parallel, limit, max_running, borrowing, budget,
	// unsatisfiable, no_machines, no_room, engine_silent, maintenance, stopping, overdue, reserved or
	// behind.
	Code   string `json:"code"`
	Text   string `json:"text"`
	Change string `json:"change"` // advice that would remove the blocker
	Short  string `json:"-"`      // Text in a few words, for tables; "": Text is short enough

	// Jobs lists the jobs that stop, with code stopping, or the older job, with code overdue.
	Jobs []berth.JobID `json:"jobs,omitempty"`

	// Machines are those of engine_silent and maintenance; of no_room up to three that could run the job, if
	// none of these accepts jobs.
	Machines []berth.MachineID `json:"machines,omitempty"`
}

// Holder is a running job that holds capacity on machines of interest.
type Holder struct {
	Job      berth.JobID
	Tenant   berth.TenantID
	Machines []berth.MachineID // of interest, each once
	EndsBy   time.Time         // latest end by its time limit; zero: none is known
}

// Term is one value that the position of a job in the queue depends on.
type Term struct {
	Name  string `json:"name"`
	Value string `json:"value"` // for programs
	Text  string `json:"text"`  // for users, with the unit
}

// Reading is the part of a plan that explanations read.
type Reading struct {
	*cluster.Moment
	policy      *queue.Policy
	cluster     *cluster.Cluster
	queue       *queue.Queue
	shares      *queue.Shares
	nominations *preempt.Nominations
}

// NewReading returns the reading of a plan.
func NewReading(at *cluster.Moment, policy *queue.Policy, c *cluster.Cluster, q *queue.Queue, s *queue.Shares,
	n *preempt.Nominations) *Reading {
	return &Reading{Moment: at, policy: policy, cluster: c, queue: q, shares: s, nominations: n}
}

// Blockers lists the reasons that lie in the job itself: its own state, its quota and the
// machines. It reads w.Fit, w.Bar and w.StartsNow.
func (r *Reading) Blockers(x *queue.Contender, e *queue.Entry, w JobExplanation) []Blocker {
	machines, list := w.Fit, []Blocker(nil)
	add := func(code, text, short, change string) {
		list = append(list, Blocker{Code: code, Text: text, Short: short, Change: change})
	}
	if e.Held {
		add("held", "the job is on hold", "on hold", "release it (berth release)")
	}
	if e.EligibleAt.After(r.Now) {
		add("not_eligible", "retrying at "+clockText(e.EligibleAt, r.Now)+" (backoff)", "", "wait")
	}
	if r.shares.Full(e) {
		add("parallel", r.shares.Crowded(e), fmt.Sprintf("array limit: %d of %d running", e.Parallel, e.Parallel),
			"wait until one of them ends")
	}
	barred := false
	r.shares.Bars(x, e, func(b queue.Bar) bool {
		add(b.Code, b.String(), b.Short(), b.Change())
		barred = true
		return true
	})
	for _, l := range machines.Lacking {
		change := "request less, or add a machine that has it"
		if l.Resource == "pool_tenants" {
			change = "ask an operator for a pool that takes the tenant"
		}
		if l.Resource == "taints" {
			change = "tolerate a taint in placement.tolerations, or ask an operator to remove one"
		}
		if l.Resource == "floors" {
			change = "upgrade the container engine of a machine, or ask an operator for a waiver"
		}
		add("unsatisfiable", wire.Shortfall(l).String(), "", change)
	}
	switch {
	case machines.Machines == 0:
		add("no_machines", "no machine has joined", "", "start an agent with a join token")
	case len(machines.Lacking) > 0, w.StartsNow: // in room that is kept for it
	case machines.Members == nil && machines.FitNow == 0,
		machines.Members != nil && machines.Members.Now < machines.Members.Asked:
		list = append(list, Blocker{Code: "no_room", Text: machines.Summary, Short: machines.Short,
			Change: noRoomHint(machines), Machines: machines.Closed})
		if len(machines.SilentEngines) > 0 {
			list = append(list, engineBlocker(machines.SilentEngines))
		}
	}
	if b, ok := r.windowBlocker(e); ok && !w.StartsNow {
		list = append(list, b)
	}
	if w.Bar != nil && !barred && !w.StartsNow { // after the reasons of today
		list = append(list, *w.Bar)
	}
	// Nominated capacity with a holder is not free yet: a victim still occupies it.
	var victims []berth.JobID
	for _, m := range r.nominations.Marks[e.ID] {
		if m.Holder != nil && !slices.Contains(victims, m.Victim) {
			victims = append(victims, m.Victim)
		}
	}
	if len(victims) > 0 {
		text, change := "waiting for 1 preempted job to stop", "wait; it was ordered to stop"
		if n := len(victims); n > 1 {
			text, change = fmt.Sprintf("waiting for %d preempted jobs to stop", n), "wait; they were ordered to stop"
		}
		list = append(list, Blocker{Code: "stopping", Text: text, Change: change,
			Jobs: victims})
	}
	return list
}

// LaterBar returns the blocker of a quota that will bar a job once all known ends of jobs have passed.
func LaterBar(b queue.Bar) *Blocker {
	return &Blocker{Code: b.Code, Text: b.Later(), Short: b.LaterShort(), Change: b.Change()}
}

// engineBlocker names machines that a job could use if their container engines
// answered.
func engineBlocker(silent []enginesilence.Machine) Blocker {
	return Blocker{Code: "engine_silent", Text: enginesilence.Text(silent), Change: enginesilence.Hint,
		Machines: enginesilence.IDs(silent)}
}

// Ahead lists the reasons that other jobs cause: an older overdue job, capacity that is
// kept for earlier jobs, and the jobs ahead in the queue. keeps reports whether the plan
// keeps any capacity. Ahead reads w.Fit, w.StartsNow and w.Ahead.
func (r *Reading) Ahead(d *Deference, e *queue.Entry, w JobExplanation, keeps bool) []Blocker {
	var list []Blocker
	if b, ok := d.blocker(r.queue.Account(e.Tenant), e); ok && !w.StartsNow && !e.Held {
		list = append(list, b)
	}
	room := w.Fit.Members == nil && w.Fit.FitNow > 0 || w.Fit.Members != nil && w.Fit.Members.Now >= w.Fit.Members.Asked
	// Machines seem to have room, yet the plan does not start the job: the room is kept.
	if room && !w.StartsNow && keeps && !e.Held {
		list = append(list, Blocker{Code: "reserved", Text: "the free room is reserved for jobs ahead of it",
			Short:  "the free room is reserved for jobs ahead",
			Change: "set a time_limit that ends before their start, or raise its priority"})
	}
	if !w.StartsNow && w.Ahead > 0 {
		text := "waiting behind 1 job"
		if w.Ahead > 1 {
			text = fmt.Sprintf("waiting behind %d jobs", w.Ahead)
		}
		list = append(list, Blocker{Code: "behind", Text: text + w.AheadPriority.text(e.Priority), Short: text,
			Change: "wait, or raise its priority (berth priority)"})
	}
	return list
}

// Terms lists the values that the job's position depends on, the most important first. Which
// values these are depends on the order of the policy.
func (r *Reading) Terms(x *queue.Contender, e *queue.Entry) []Term {
	p := r.policy
	var list []Term
	add := func(name, value, format string, args ...any) {
		list = append(list, Term{name, value, fmt.Sprintf(format, args...)})
	}
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }
	a := p.Aged(e, r.queue.Account(e.Tenant), r.Now)
	ranked := p.Order == queue.Fair || p.Order == queue.Priority
	switch {
	case ranked && p.BandWidth <= 1: // each priority is a band of its own
		add("priority", strconv.Itoa(a.Base), "priority %d", a.Base)
	case p.Order != queue.FIFO && p.BandWidth <= 1:
		add("band", strconv.Itoa(int(e.Band)), "priority %d", e.Priority)
	case p.Order != queue.FIFO:
		add("band", strconv.Itoa(int(e.Band)), "priority %d (band %d: %d to %d)", e.Priority, p.Band(e.Priority),
			p.Band(e.Priority)*p.BandWidth, (p.Band(e.Priority)+1)*p.BandWidth-1)
	}
	if p.Overdue > 0 {
		list = append(list, r.overdueTerm(x, e))
	}
	if p.Order == queue.Fair {
		for _, y := range r.above(x) {
			past := y.Past.Dominant(r.shares.Owned)
			share := queue.AmountsOf(y.Held.Capacity).Plus(y.Past, 1).Dominant(r.shares.Owned) / y.Account.ShareWeight()
			add("share", number(share), "tenant %s: using %s now, %s recent use, weight %s",
				y.Account.ID,
				percent(queue.AmountsOf(y.Held.Capacity).Dominant(r.shares.Owned)), percent(past),
				strconv.FormatFloat(y.Account.ShareWeight(), 'g', -1, 64))
			if y.Account.Guarantees(y.Held.Capacity, e.Class.All) {
				add("guarantee", "true",
					"within the guarantee of tenant %s; goes before jobs that borrow", y.Account.ID)
			}
		}
	}
	if p.Order == queue.SRSF {
		list = append(list, expectedTerms(p, e)...)
		add("service", number(e.Rank), "GPUs %s, run time %s; the least remaining work goes first",
			strconv.FormatFloat(cluster.GPUsOf(e.Class.All), 'g', 4, 64), known(p.ServiceOf(e)))
	}
	if ranked && p.BandWidth > 1 {
		add("priority", strconv.Itoa(a.Base), "priority %d", a.Base)
	}
	switch {
	case !ranked || p.Aging <= 0:
	case a.Capped:
		add("age", number(a.Points), "waiting bonus %s, the maximum of its band", points(a.Points))
	default:
		add("age", number(a.Points), "waiting bonus %s (one point per %s)", points(a.Points), unitText(p.Aging))
	}
	add("submitted_at", e.SubmittedAt.UTC().Format(time.RFC3339Nano), "submitted %s",
		e.SubmittedAt.UTC().Format(time.RFC3339))
	add("id", string(e.ID), "id")
	return list
}

// expectedTerms returns the run time that the order srsf assumes for a job, with its
// source: declared by the job, learned from similar jobs, or the time limit. The list is
// empty if a Ranker orders the jobs or if the policy uses no run times.
func expectedTerms(p *queue.Policy, e *queue.Entry) []Term {
	if p.Ranker != nil || p.Durations == queue.Unknown {
		return nil
	}
	limit := ""
	if e.TimeLimit > 0 {
		limit = "; at most its time_limit with stop_grace, " + spec.Duration(e.TimeLimit).String()
	}
	term := func(t time.Duration, text string) []Term {
		return []Term{{"expected", spec.Duration(t).String(), text}}
	}
	unknown := func(text string) []Term { return []Term{{"expected", "unknown", text}} }
	expected := "expected run time " + spec.Duration(e.Expected).String()
	if e.ExpectedBy != "" {
		expected += ", " + e.ExpectedBy
	}
	switch {
	case e.Remaining > 0:
		return term(e.Remaining, "given remaining run time "+spec.Duration(e.Remaining).String()+limit)
	case p.Durations == queue.Estimated && e.Expected > e.Done:
		if e.Done > 0 {
			expected += "; it has run " + spec.Duration(e.Done).String()
		}
		return term(e.Expected, expected+limit)
	case e.TimeLimit > 0:
		return term(e.TimeLimit, "time_limit with stop_grace is "+spec.Duration(e.TimeLimit).String())
	case p.Durations == queue.Estimated && e.Expected > 0:
		return unknown(expected + "; it has run longer")
	}
	return unknown("expected run time unknown (no time_limit, and no similar job has succeeded recently)")
}

// above lists the contenders of tenants with a row from the top down to x.
func (r *Reading) above(x *queue.Contender) []*queue.Contender {
	var list []*queue.Contender
	for ; x != &r.shares.Root; x = x.Parent {
		if x.Account.Known {
			list = append(list, x)
		}
	}
	slices.Reverse(list)
	return list
}

// known renders the remaining service of a job, or its past service if the remaining one
// is unknown.
func known(s queue.Service) string {
	if s.Remaining == 0 {
		return "an unknown time, " + spec.Duration(s.Done).String() + " so far"
	}
	return spec.Duration(s.Remaining + s.Restart).String()
}

// percent renders a share of 1 as a percentage.
func percent(x float64) string { return points(100*x) + " %" }
func points(x float64) string  { return strconv.FormatFloat(math.Round(10*x)/10, 'f', -1, 64) }
func unitText(d time.Duration) string {
	switch d {
	case time.Minute:
		return "minute"
	case time.Hour:
		return "hour"
	case 24 * time.Hour:
		return "day"
	}
	return spec.Duration(d).String()
}
func clockText(at, now time.Time) string {
	if at.Sub(now) < 24*time.Hour {
		return at.UTC().Format("15:04:05Z")
	}
	return at.UTC().Format(time.RFC3339)
}
func noRoomHint(e Explanation) string {
	all := slices.ContainsFunc(e.Clauses, func(c Clause) bool { return c.Name == "state" && c.After == e.Machines })
	which := "no machine"
	if !all {
		which = "no machine that could run it"
	}
	switch {
	case (all || len(e.Closed) > 0) && e.Draining:
		return which + " accepts jobs now; ask an operator to undrain one"
	case all || len(e.Closed) > 0:
		return which + " accepts jobs now; ask an operator to check them"
	}
	return "wait until jobs end, request less, or add machines"
}

// Range is the lowest and the highest of some numbers. Its zero value has seen none.
type Range struct {
	Known     bool
	Low, High int
}

func (r Range) With(p int) Range {
	if !r.Known {
		return Range{true, p, p}
	}
	return Range{true, min(r.Low, p), max(r.High, p)}
}
func (r Range) text(own int) string {
	switch {
	case !r.Known || r.Low < own:
		return ""
	case r.Low == own && r.High == own:
		return " of the same priority"
	case r.Low == own:
		return " of the same or higher priority"
	default:
		return " of higher priority"
	}
}
