package queue

import (
	"cmp"
	"math"
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
)

// Learned ranks jobs of unknown run time by the run times of their tenant's other jobs,
// ended and running. Jobs submitted within minutes of each other are mostly variants of one
// task and run equally long. Therefore a job counts more the closer its submission is.
//
// The rank is the inverse of a Gittins index times GPUs^LearnedExponent. The inverse index
// is the least expected run time, in seconds, per job that ends, over all stages until
// which jobs could continue; see lives.cost.
//
// A Learned belongs to one snapshot. The caller reports each end with Ended. It is not safe
// for concurrent use.
type Learned struct {
	over   map[berth.TenantID]*past     // ended jobs
	now    time.Time                    // time of the current plan
	live   map[berth.TenantID][]sibling // running, or waiting after an earlier run; by submission
	ranked map[berth.JobID]float64      // ranks of running jobs in this plan
	behind time.Time                    // see Next
	buffer lives                        // reused by rank
}

// Ended is a job that ran to its end.
type Ended struct {
	Tenant      berth.TenantID
	GPUs        float64 // sum over all members
	SubmittedAt time.Time
	Ran         time.Duration // sum over all attempts
}

// past holds the ended jobs of a tenant, at most maxPast.
type past struct {
	order []sibling // by time of end, oldest first
	list  []sibling // by submission
	lives lives     // sums over list, without weights by submission
}

// sibling is one job of a tenant as a sample of run times.
type sibling struct {
	submitted time.Time
	ran       time.Duration // run time of all attempts so far
	over      bool          // the job has ended, so that ran is its whole run time
}

// Parameters of Learned.
const (
	// LearnedExponent is the exponent a of GPUs^a.
	LearnedExponent = 0.4
	// kinship is the distance in submission at which the weight of a job falls by a factor
	// of e.
	kinship = 30 * time.Minute
	// kinWeight is the weight of a job submitted at the same time. In each stage, all other
	// past jobs of the tenant together weigh at most 1.
	kinWeight = 30
	// kinReach is the number of jobs that are read on either side, and kinSpan the largest
	// distance in submission: the weight of jobs beyond is negligible.
	kinReach = 64
	kinSpan  = 8 * kinship
	// stay multiplies the rank of a running job, so that two about equal jobs do not
	// preempt each other in turn.
	stay = 0.5
	// maxPast is the number of ended jobs kept per tenant.
	maxPast = 4096
)

// NewLearned returns a Learned that has seen no job yet.
func NewLearned() *Learned { return &Learned{over: map[berth.TenantID]*past{}} }

// Ended records a job that ended by itself, without an order to stop. The oldest of more
// than maxPast jobs is subtracted again.
func (l *Learned) Ended(e Ended) {
	p := l.over[e.Tenant]
	if p == nil {
		p = &past{}
		l.over[e.Tenant] = p
	}
	s := sibling{e.SubmittedAt, e.Ran, true}
	p.order = append(p.order, s)
	at, _ := slices.BinarySearchFunc(p.list, s, compareSiblings)
	p.list = slices.Insert(p.list, at, s)
	p.lives.note(s, 1)
	if len(p.order) > maxPast {
		oldest := p.order[0]
		p.order = p.order[1:]
		at, _ := slices.BinarySearchFunc(p.list, oldest, compareSiblings)
		p.list = slices.Delete(p.list, at, at+1)
		p.lives.note(oldest, -1)
	}
	p.lives.sum()
}

// compareSiblings orders by submission, then by run time.
func compareSiblings(a, b sibling) int {
	return cmp.Or(a.submitted.Compare(b.submitted), cmp.Compare(a.ran, b.ran))
}

// Begin implements Ranker.
func (l *Learned) Begin(s RankView, now time.Time) {
	l.now, l.behind = now, time.Time{}
	l.ranked = map[berth.JobID]float64{}
	l.live = map[berth.TenantID][]sibling{}
	s.EachJob(func(j Job) {
		if j.Done > 0 {
			l.live[j.Tenant] = append(l.live[j.Tenant], sibling{j.SubmittedAt, j.Done, false})
		}
	})
	s.EachRunning(func(r cluster.Running) {
		ran := l.ran(r)
		l.live[r.Tenant] = append(l.live[r.Tenant], sibling{r.SubmittedAt, ran, false})
		if at := now.Add(stageStarts[stage(ran)+1] - ran); l.behind.IsZero() || at.Before(l.behind) {
			l.behind = at
		}
	})
	for _, list := range l.live {
		slices.SortFunc(list, compareSiblings)
	}
}

// Next returns the time of the next change of ranks if no job comes or ends: a running
// job reaches another stage. The zero time means never.
func (l *Learned) Next(now time.Time) time.Time {
	if !l.behind.After(now) {
		return time.Time{}
	}
	return l.behind
}

// ran returns the run time of a running job up to now, over all attempts.
func (l *Learned) ran(r cluster.Running) time.Duration {
	return r.Done + max(0, l.now.Sub(r.StartedAt))
}

// Waiting implements Ranker.
func (l *Learned) Waiting(j Job, gpus float64) float64 {
	return l.rank(j.Tenant, sibling{j.SubmittedAt, j.Done, false}, gpus)
}

// Running implements Ranker.
func (l *Learned) Running(r cluster.Running, gpus float64) float64 {
	rank, ok := l.ranked[r.Job]
	if !ok {
		rank = stay * l.rank(r.Tenant, sibling{r.SubmittedAt, l.ran(r), false}, gpus)
		l.ranked[r.Job] = rank
	}
	return rank
}

// rank returns the rank of a job with gpus GPUs. The tenant's past gives a weak prior; jobs
// submitted close to this one weigh kinWeight times as much.
func (l *Learned) rank(tenant berth.TenantID, job sibling, gpus float64) float64 {
	x := &l.buffer
	*x = lives{}
	if p := l.over[tenant]; p != nil {
		*x = p.lives.shrunk()
		x.kin(p.list, job)
	}
	x.doubt()
	x.kin(l.live[tenant], job)
	x.sum()
	return x.cost(job.ran) * math.Pow(gpus, LearnedExponent)
}

// kin adds the jobs of a list that were submitted close to the job, weighted by their
// distance. The job itself is left out: it carries no new information.
func (l *lives) kin(list []sibling, job sibling) {
	at, _ := slices.BinarySearchFunc(list, job.submitted,
		func(s sibling, t time.Time) int { return s.submitted.Compare(t) })
	self := true
	for _, s := range list[max(0, at-kinReach):min(len(list), at+kinReach)] {
		if self && s == job {
			self = false
			continue
		}
		if gap := s.submitted.Sub(job.submitted).Abs(); gap < kinSpan {
			l.note(s, kinWeight*math.Exp(-gap.Seconds()/kinship.Seconds()))
		}
	}
}
