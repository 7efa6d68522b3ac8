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
// ended and running. Jobs submitted within minutes of each other are mostly variants
// of one task and run equally long, so the nearer a job was submitted, the more it
// counts. The rank is the inverse of a Gittins index: the least expected time for each
// job brought to its end, over all times to run on, times GPUs^LearnedExponent.
//
// A Learned belongs to one snapshot. The caller reports each end with Ended. It is not
// safe for concurrent use.
type Learned struct {
	over   map[berth.TenantID]*past
	now    time.Time
	live   map[berth.TenantID][]sibling // not over, by submission
	ranked map[berth.JobID]float64      // of those that run
	behind time.Time                    // see Next
	buffer lives
}

// Ended is a job that ran to its end.
type Ended struct {
	Tenant      berth.TenantID
	GPUs        float64 // of all members
	SubmittedAt time.Time
	Ran         time.Duration // in all attempts together
}

// past is what is known of a tenant's jobs that are over.
type past struct {
	order []sibling // as they ended
	list  []sibling // by submission
	lives lives
}

// sibling is how far a job has come.
type sibling struct {
	submitted time.Time
	ran       time.Duration
	over      bool
}

// What Learned goes by.
const (
	// LearnedExponent is a in GPUs^a.
	LearnedExponent = 0.4
	// kinship is after what distance in submission a job counts e times less.
	kinship = 30 * time.Minute
	// kinWeight is for how many jobs of the tenant's past taken together one
	// submitted at the same time counts.
	kinWeight = 30
	// kinReach is how many on either side are looked at, and kinSpan how far apart
	// they are at most: beyond, they count next to nothing.
	kinReach = 64
	kinSpan  = 8 * kinship
	// stay is what the rank of a running job is multiplied by, so that two that
	// are about equal do not take turns.
	stay = 0.5
	// maxPast is how many of a tenant's jobs are remembered.
	maxPast = 4096
)

// NewLearned returns a Learned that has seen no job yet.
func NewLearned() *Learned { return &Learned{over: map[berth.TenantID]*past{}} }

// Ended records a job that ended by itself, not by an order to stop.
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

// kin notes those of a list that were submitted near the job, and not the job
// itself, which tells nothing new.
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
