package autoscale

import (
	"cmp"
	"slices"
	"time"

	"berth/db"
	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
	"berth/placement"
	"berth/spec"
)

// Quoted is a job for which offers are quoted.
type Quoted struct {
	// Job has the tenant, the class of Request, and the facts from which the scaler expects its run time.
	Job     placement.Job
	Request spec.Request
	Run     time.Duration // for the cost; 0: not known
	Saves   bool          // it writes checkpoints
}

// Quote is an offer as a job sees it.
type Quote struct {
	scaler.Quote
	Cost   float64       // of the run on all machines, in US dollars; 0: not known
	Boot   time.Duration // from a launch to the join of such a machine; 0: none has joined lately
	Closed string        // with NoteClosed: why; "": another launch tries the offer
	Part   string        // with Closed: the part of the cloud that is closed, in words; "": this offer
	Until  time.Time     // with NoteClosed: when the offer may be tried again; zero: not known
}

// Quotes are the quotes of a job: the offers that may run the job, by cost, then the closed offers, then the other ones
// that fit. Offers that the policy forbids, or that the job excludes, are left out.
type Quotes struct {
	List []Quote // at most MostQuotes
	Left int     // quotes beyond them
	// Why is the reason for which List is empty. "": it is not, or no provider is configured.
	Why scaler.NoteCode
}

// The reasons of quotes that no note of the scaler has.
const (
	NoPolicy scaler.NoteCode = "no_policy" // the tenant has no burst policy
	NoWhen   scaler.NoteCode = "no_when"   // the policy names no wait that is worth a machine
	Paused   scaler.NoteCode = "paused"    // admission is paused
)

// MostQuotes is the greatest number of quotes of a job.
const MostQuotes = 50

// QuotesOf returns the quotes of a job by facts. It is a pure function.
func QuotesOf(f Facts, state db.BurstState, j Quoted) Quotes {
	policy, ok := f.Policies[j.Job.Tenant]
	switch {
	case !ok:
		return Quotes{Why: NoPolicy}
	case policy.When == nil:
		return Quotes{Why: NoWhen}
	}
	paused := f.Paused
	f.Paused = false // the other reasons are shown before it
	f.Classes = map[string]spec.Request{j.Job.Class: j.Request}
	if j.Job.SubmittedAt.IsZero() {
		j.Job.SubmittedAt = f.Now
	}
	p := newPass(f)
	for t, n := range state.Machines {
		for _, a := range p.path(t) {
			p.count[a] += n
		}
	}
	run := p.expected(j.Job)
	// The engine compares versions, which start at 1.
	job := scaler.Job{Job: placement.Job{ID: "quoted", Tenant: j.Job.Tenant, Version: 1, SubmittedAt: f.Now}, Run: run,
		Request: j.Request, Spot: maySpot(j.Request, j.Saves, run)}
	best, needs := map[string]Quote{}, scaler.Needs{} // by offer, over the pools
	out := Quotes{Why: scaler.NoteForbid}
	for _, pool := range p.pools(j.Job.Tenant) {
		for _, s := range scaler.Quotes(p.input(j.Job.Tenant, policy, pool), job, needs) {
			if s.Machines == 0 {
				out.Why = scaler.Later(out.Why, s.Refused)
				continue
			}
			key := s.Offer.Provider + "/" + s.Offer.String()
			if old, ok := best[key]; !ok || old.Refused != "" && closer(s.Refused, old.Refused) {
				best[key] = p.quote(pool, s, state, j.Run)
			}
		}
	}
	for _, s := range best {
		if paused && s.Refused == "" {
			s.Refused = Paused
		}
		out.List, out.Why = append(out.List, s), ""
	}
	out.sort()
	return out
}

// sort brings the quotes into their order, and drops those beyond MostQuotes.
func (q *Quotes) sort() {
	slices.SortFunc(q.List, func(a, b Quote) int {
		return cmp.Or(cmp.Compare(part(a), part(b)),
			cmp.Compare(a.Offer.Price*float64(a.Machines), b.Offer.Price*float64(b.Machines)),
			cmp.Compare(a.Offer.Provider, b.Offer.Provider), cmp.Compare(a.Offer.String(), b.Offer.String()))
	})
	if q.Left = len(q.List) - MostQuotes; q.Left > 0 {
		q.List = q.List[:MostQuotes]
	}
	q.Left = max(0, q.Left)
}

// closer reports whether a reason, or "" for none, is closer to a launch than another one.
func closer(a, b scaler.NoteCode) bool {
	rank := func(c scaler.NoteCode) int { return slices.Index(scaler.Refusing, c) }
	return a == "" || rank(a) < 0 && rank(b) >= 0 || rank(b) >= 0 && rank(a) > rank(b)
}

// part returns the part of the list to which a quote belongs: open, closed, or refused for another reason.
func part(q Quote) int {
	switch q.Refused {
	case "":
		return 0
	case scaler.NoteClosed:
		return 1
	}
	return 2
}

// quote adds the cost, the boot time and the state of the offer's breakers. run is 0 if the run time is not known.
func (p *pass) quote(pool string, s scaler.Quote, state db.BurstState, run time.Duration) Quote {
	q := Quote{Quote: s, Boot: state.Boots[TypeOf(s.Offer.Provider, s.Offer.Offering)]}
	q.Cost = max(0, s.Offer.Price) * float64(s.Machines) * run.Hours()
	if s.Refused != scaler.NoteClosed {
		return q
	}
	r := cloud.Request{Pool: pool, Provider: s.Offer.Provider, Offering: s.Offer.Offering}
	concerns := r.Concerned()
	for _, b := range p.Breakers {
		if !b.Open(p.Now) || !concerns(b.Breaker) {
			continue
		}
		if q.Closed == "" || b.Until.IsZero() || !q.Until.IsZero() && b.Until.After(q.Until) {
			q.Closed, q.Until, q.Part = b.Reason, b.Until, b.Wider()
		}
	}
	return q
}
