package queue

import (
	"math"
	"time"

	"berth/placement/cluster"
)

// ordering is the part of the policy that orders one account's jobs.
func (p Policy) ordering() Policy {
	return Policy{Order: p.Order, BandWidth: p.BandWidth, Aging: p.Aging, Cross: p.Cross, Overdue: p.Overdue,
		Exponent: p.Exponent, Durations: p.Durations, Ranker: p.Ranker}
}

// Band is the band of a priority; a higher one comes first.
func (p *Policy) Band(priority int) int { return priority / max(1, p.BandWidth) }

// bandOf is the band that a job waits in.
func (p *Policy) bandOf(e *Entry) int32 {
	switch {
	case p.Order == FIFO, p.Order != SRSF && p.Cross && p.Aging > 0:
		return 0 // what comes first is all in the rank
	default:
		return int32(p.Band(int(e.priority)))
	}
}

// rankOf is a job's rank within its band; the least comes first. It is the same
// at all times: with aging, a job that came d later than another of equal
// priority always has d/Aging points less, until the top of the band bounds
// both, where the one that was ahead may as well stay there.
func (p *Policy) rankOf(e *Entry) float64 {
	switch p.Order {
	case FIFO:
		return 0
	case SRSF:
		if p.Ranker != nil {
			return p.Ranker.Waiting(e.Job, cluster.GPUsOf(e.Class.All))
		}
		return p.service(p.ServiceOf(e))
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
func (e *Entry) overdueAt(p *Policy) time.Time {
	return e.SubmittedAt.Add(e.Unaged + e.Done + p.Overdue)
}

// OverdueFrom returns the time from which the job counts as overdue, if it still waits
// then.
func (e *Entry) OverdueFrom(p *Policy) time.Time {
	at, step := e.overdueAt(p), p.overdueStep()
	if edge := at.Truncate(step); !edge.Equal(at) {
		return edge.Add(step)
	}
	return at
}

// Settled reports whether a running job was overdue when it started.
func (p *Policy) Settled(h *cluster.Holder) bool {
	return p.Overdue > 0 && h.StartedAt.Sub(h.SubmittedAt)-h.Done >= p.Overdue
}

// Aged is a job's priority with its points for waiting.
type Aged struct {
	Base   int
	Points float64 // for its age
	Capped bool    // at the top of the band
}

// Aged returns the job's priority with its points for waiting until now.
func (p *Policy) Aged(e *Entry, a *Account, now time.Time) Aged {
	x := Aged{Base: e.Priority}
	if p.Aging <= 0 || e.Held || e.EligibleAt.After(now) {
		return x
	}
	waited := now.Sub(e.SubmittedAt) - e.Unaged - (a.stalledFor(now) - e.Stalled)
	x.Points = max(0, waited.Seconds()/p.Aging.Seconds())
	width := max(1, p.BandWidth)
	if top := float64((p.Band(e.Priority)+1)*width - 1 - e.Priority); !p.Cross && x.Points > top {
		x.Points, x.Capped = top, true
	}
	return x
}

// Service is the run time of a job so far and its remaining run time.
type Service struct {
	gpus      float64
	Remaining time.Duration // 0: not known
	Done      time.Duration
	Restart   time.Duration
}

// ServiceOf returns the service of a waiting job.
func (p *Policy) ServiceOf(e *Entry) Service {
	return Service{cluster.GPUsOf(e.Class.All), Remaining(p.guess(e.Remaining, e.Expected-e.Done), e.TimeLimit), e.Done,
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

// Running returns the rank of a running job, on the scale of waiting jobs.
func (p *Policy) Running(h *cluster.Holder, now time.Time) float64 {
	if p.Ranker != nil {
		return p.Ranker.Running(h.Running, cluster.GPUsOf(h.Capacity))
	}
	return p.service(p.serviceNow(h, now))
}

// serviceNow is the service of a job that runs.
func (p *Policy) serviceNow(h *cluster.Holder, now time.Time) Service {
	ran := max(0, now.Sub(h.StartedAt))
	guess := h.Remaining
	if h.Expected-h.Done > ran {
		guess = p.guess(h.Remaining, h.Expected-h.Done)
	}
	left := Remaining(guess, h.TimeLimit)
	if left > 0 {
		left = max(left-ran, time.Second)
	}
	return Service{cluster.GPUsOf(h.Capacity), left, h.Done + ran, 0}
}

// Remaining returns the remaining time of a job: the known time, or its limit if that
// is shorter or nothing is known.
func Remaining(known, limit time.Duration) time.Duration {
	if known > 0 && (limit == 0 || known < limit) {
		return known
	}
	return limit
}

// service weighs what a job has yet to come: remaining time x GPUs^Exponent. Of
// a job whose time is not known it weighs what it had instead: who has had
// least is likeliest to end soon.
func (p *Policy) service(s Service) float64 {
	t := s.Remaining + s.Restart
	if p.Durations == Unknown || s.Remaining == 0 {
		t = s.Done
	}
	return t.Seconds() * math.Pow(s.gpus, p.Exponent)
}
