package queue

import (
	"math"
	"time"

	"berth/placement/cluster"
)

// ordering returns the part of the policy that orders one account's jobs. A change of any
// other part sorts nothing again.
func (p Policy) ordering() Policy {
	return Policy{Order: p.Order, BandWidth: p.BandWidth, Aging: p.Aging, Cross: p.Cross, Overdue: p.Overdue,
		Exponent: p.Exponent, Durations: p.Durations, Ranker: p.Ranker}
}

// Band returns the band of a priority; a higher band comes first. Priorities below 0, of debug jobs, have bands of
// their own.
func (p *Policy) Band(priority int) int {
	band := priority / max(1, p.BandWidth)
	if priority < 0 {
		band--
	}
	return band
}

// bandOf returns the band in which a job waits.
func (p *Policy) bandOf(e *Entry) int32 {
	switch {
	case cluster.GivesWay(int(e.priority)):
		return int32(p.Band(int(e.priority))) // in every order
	case p.Order == FIFO, p.Order != SRSF && p.Cross && p.Aging > 0:
		return 0 // the rank alone orders
	default:
		return int32(p.Band(int(e.priority)))
	}
}

// rankOf returns a job's rank within its band; the least comes first.
//
// The rank does not depend on the current time. With aging, a job that came d later than
// another job of equal priority always has d/Aging points less, so the order of the two
// never changes. At the top of the band both have the same points; there the job that was
// ahead may as well stay ahead.
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
		// In seconds: one point of priority is worth Aging of waiting.
		return e.aging - float64(e.priority)*p.Aging.Seconds()
	}
	panic("placement: no such order")
}

// overdueBy is the number of steps per Overdue in which jobs become overdue: a job counts
// as overdue at most one step late.
const overdueBy = 64

// edge returns the time of the latest overdue step: jobs that were overdue at this time
// count as overdue. The edge advances in steps, so that few plans have to read all jobs.
func (p *Policy) edge(now time.Time) time.Time {
	if p.Overdue <= 0 {
		return time.Time{}
	}
	return now.Truncate(p.overdueStep())
}

// overdueStep returns the length of a step, at least a second.
func (p *Policy) overdueStep() time.Duration { return max(time.Second, p.Overdue/overdueBy) }

// overdueAt returns the time at which the job has waited for Overdue. Earlier runs, and
// time on hold or before readiness, do not count as waiting.
func (e *Entry) overdueAt(p *Policy) time.Time {
	return e.SubmittedAt.Add(notWaited(e.Unaged, e.Done) + p.Overdue)
}

// notWaited returns the time since submission that does not count as waiting: the unaged
// time, or the time of earlier runs where the caller lets jobs age while they run.
func notWaited(unaged, done time.Duration) time.Duration { return max(unaged, done) }

// OverdueFrom returns the first overdue step at or after overdueAt. From then on the job
// counts as overdue, if it still waits.
func (e *Entry) OverdueFrom(p *Policy) time.Time {
	at, step := e.overdueAt(p), p.overdueStep()
	if edge := at.Truncate(step); !edge.Equal(at) {
		return edge.Add(step)
	}
	return at
}

// Settled reports whether a running job was overdue at its start. Such a job is not
// preempted for its tenant's share or its remaining service.
func (p *Policy) Settled(h *cluster.Holder) bool {
	return p.Overdue > 0 && h.StartedAt.Sub(h.SubmittedAt)-notWaited(h.Unaged, h.Done) >= p.Overdue
}

// Aged is a job's priority with its points for waiting, for explanations. The order uses
// rankOf.
type Aged struct {
	Base   int
	Points float64 // gained by waiting
	Capped bool    // Points end at the top of the band
}

// Aged returns the job's priority with its points for waiting until now. A held job, or a
// job before EligibleAt, has no points.
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

// Service is the run time of a job so far and its remaining run time, the inputs of its
// rank in order srsf.
type Service struct {
	gpus      float64       // GPUs of all members; 16 cores count as one GPU if there are none
	Remaining time.Duration // 0: unknown
	Done      time.Duration // run time so far, over all attempts
	Restart   time.Duration // extra work of the next start
}

// ServiceOf returns the service of a waiting job.
func (p *Policy) ServiceOf(e *Entry) Service {
	return Service{cluster.GPUsOf(e.Class.All), Remaining(p.guess(e.Remaining, e.Expected-e.Done), e.TimeLimit), e.Done,
		e.RestartCost}
}

// guess returns the remaining run time of a job: the known time, or else the rest of the
// expected run time. A job that has run longer than expected refutes the expectation; then
// guess returns 0.
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

// serviceNow returns the service of a running job.
func (p *Policy) serviceNow(h *cluster.Holder, now time.Time) Service {
	ran := max(0, now.Sub(h.StartedAt))
	guess := h.Remaining
	if h.Expected-h.Done > ran {
		guess = p.guess(h.Remaining, h.Expected-h.Done)
	}
	left := Remaining(guess, h.TimeLimit)
	// A job that has outrun its limit or estimate keeps one second, since 0 would mean
	// unknown.
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

// service returns the weight of a job's remaining work: (remaining time + restart) in
// seconds x GPUs^Exponent. A job of unknown remaining time weighs by its run time so far
// instead: the job that has run least is the likeliest to end soon.
func (p *Policy) service(s Service) float64 {
	t := s.Remaining + s.Restart
	if p.Durations == Unknown || s.Remaining == 0 {
		t = s.Done
	}
	return t.Seconds() * math.Pow(s.gpus, p.Exponent)
}
