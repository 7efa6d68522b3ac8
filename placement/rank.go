package placement

import (
	"math"
	"time"
)

// ordering is the part of the policy that orders one account's jobs.
func (p Policy) ordering() Policy {
	return Policy{Order: p.Order, BandWidth: p.BandWidth, Aging: p.Aging, Cross: p.Cross, Overdue: p.Overdue,
		Exponent: p.Exponent, Durations: p.Durations, Ranker: p.Ranker}
}

// band is the band of a priority; a higher one comes first.
func (p *Policy) band(priority int) int { return priority / max(1, p.BandWidth) }

// bandOf is the band that a job waits in.
func (p *Policy) bandOf(e *entry) int32 {
	switch {
	case p.Order == FIFO, p.Order != SRSF && p.Cross && p.Aging > 0:
		return 0 // what comes first is all in the rank
	default:
		return int32(p.band(int(e.priority)))
	}
}

// rankOf is a job's rank within its band; the least comes first. It is the same
// at all times: with aging, a job that came d later than another of equal
// priority always has d/Aging points less, until the top of the band bounds
// both, where the one that was ahead may as well stay there.
func (p *Policy) rankOf(e *entry) float64 {
	switch p.Order {
	case FIFO:
		return 0
	case SRSF:
		if p.Ranker != nil {
			return p.Ranker.Waiting(e.Job, gpusOf(e.class.all))
		}
		return p.service(p.serviceOf(e))
	case Fair, Priority:
		if p.Aging <= 0 {
			return -float64(e.priority)
		}
		return e.aging - float64(e.priority)*p.Aging.Seconds()
	}
	panic("placement: no such order")
}

// overdueBy is how exactly it is looked when a job becomes overdue: so many times
// in that time.
const overdueBy = 64

// edge is the time until which a job must have been overdue to count as such: it
// moves on in steps, so that few plans have to look at all jobs.
func (p *Policy) edge(now time.Time) time.Time {
	if p.Overdue <= 0 {
		return time.Time{}
	}
	return now.Truncate(p.overdueStep())
}

func (p *Policy) overdueStep() time.Duration { return max(time.Second, p.Overdue/overdueBy) }

// overdueAt is when the job becomes overdue: what it ran before, and what it was
// held or not ready, is not waiting.
func (e *entry) overdueAt(p *Policy) time.Time {
	return e.SubmittedAt.Add(e.Unaged + e.Done + p.Overdue)
}

// overdueFrom is from when on the job counts as overdue, if it still waits then.
func (e *entry) overdueFrom(p *Policy) time.Time {
	at, step := e.overdueAt(p), p.overdueStep()
	if edge := at.Truncate(step); !edge.Equal(at) {
		return edge.Add(step)
	}
	return at
}

// settled reports whether a job that runs was overdue when it started.
func (p *Policy) settled(h *holder) bool {
	return p.Overdue > 0 && h.StartedAt.Sub(h.SubmittedAt)-h.Done >= p.Overdue
}

// origin is the zero of ages: near enough for a float64 to tell microseconds.
var origin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// sinceOrigin is a time, told from the origin of ages; those further away than
// some 70 years count as that far, so that what is added to it stays in range.
func sinceOrigin(t time.Time) time.Duration {
	const most = 1 << 61
	return max(-most, min(t.Sub(origin), most))
}

// Priority is a job's priority with its age.
type aged struct {
	base   int
	points float64 // for its age
	capped bool    // at the top of the band
}

// aged works out what waiting has made of the job's priority.
func (p *Policy) aged(e *entry, a *account, now time.Time) aged {
	x := aged{base: e.Priority}
	if p.Aging <= 0 || e.Held || e.EligibleAt.After(now) {
		return x
	}
	waited := now.Sub(e.SubmittedAt) - e.Unaged - (a.stalledFor(now) - e.Stalled)
	x.points = max(0, waited.Seconds()/p.Aging.Seconds())
	width := max(1, p.BandWidth)
	if top := float64((p.band(e.Priority)+1)*width - 1 - e.Priority); !p.Cross && x.points > top {
		x.points, x.capped = top, true
	}
	return x
}

// service is what a job has had and has yet to come.
type service struct {
	gpus      float64
	remaining time.Duration // 0: not known
	done      time.Duration
	restart   time.Duration
}

// serviceOf returns the service of a waiting job.
func (p *Policy) serviceOf(e *entry) service {
	return service{gpusOf(e.class.all), remaining(p.guess(e.Remaining, e.Expected-e.Done), e.TimeLimit), e.Done,
		e.RestartCost}
}

// guess is what remains of a job: what is known, or else what is left of what was
// expected. One that has outrun that has refuted it.
func (p *Policy) guess(known, left time.Duration) time.Duration {
	if known == 0 && left > 0 && p.Durations == Estimated {
		return left
	}
	return known
}

// running is the rank of a job that runs, on the scale of those that wait.
func (p *Policy) running(h *holder, now time.Time) float64 {
	if p.Ranker != nil {
		return p.Ranker.Running(h.Running, gpusOf(h.capacity))
	}
	return p.service(p.serviceNow(h, now))
}

// serviceNow is the service of a job that runs.
func (p *Policy) serviceNow(h *holder, now time.Time) service {
	ran := max(0, now.Sub(h.StartedAt))
	guess := h.Remaining
	if h.Expected-h.Done > ran {
		guess = p.guess(h.Remaining, h.Expected-h.Done)
	}
	left := remaining(guess, h.TimeLimit)
	if left > 0 {
		left = max(left-ran, time.Second)
	}
	return service{gpusOf(h.capacity), left, h.Done + ran, 0}
}

// remaining returns the remaining time of a job: the known time, or its limit if that
// is shorter or nothing is known.
func remaining(known, limit time.Duration) time.Duration {
	if known > 0 && (limit == 0 || known < limit) {
		return known
	}
	return limit
}

// service weighs what a job has yet to come: remaining time x GPUs^Exponent. Of
// a job whose time is not known it weighs what it had instead: who has had
// least is likeliest to end soon.
func (p *Policy) service(s service) float64 {
	t := s.remaining + s.restart
	if p.Durations == Unknown || s.remaining == 0 {
		t = s.done
	}
	return t.Seconds() * math.Pow(s.gpus, p.Exponent)
}
