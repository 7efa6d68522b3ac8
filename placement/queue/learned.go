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
// A Learned keeps the results for a slot of submission times until a job close to the slot ends
// or gets further, so that a plan does not read all jobs for each waiting one.
//
// A Learned belongs to one snapshot. The caller reports each end with Ended. It is not safe
// for concurrent use.
type Learned struct {
	tenants map[berth.TenantID]*history
	now     time.Time               // time of the current plan
	ranked  map[berth.JobID]float64 // ranks of running jobs in this plan
	behind  time.Time               // see Next
}

// Ended is a job that ran to its end.
type Ended struct {
	Tenant      berth.TenantID
	GPUs        float64 // sum over all members
	SubmittedAt time.Time
	Ran         time.Duration // sum over all attempts
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
	// kinSlot is the length of a slot. Jobs of one slot count as submitted together.
	kinSlot = kinship / 6
	// kinWeight is the weight of a job submitted at the same time. In each stage, all other
	// past jobs of the tenant together weigh at most 1.
	kinWeight = 30
	// kinSpan is the largest distance in slots: the weight of jobs beyond is negligible.
	kinSpan = int64(8 * kinship / kinSlot)
	// LearnedPreemptions is the number of preemptions that the ranks assume as the bound
	// (Policy.MaxOutranked).
	LearnedPreemptions = 2
	// firstStay and nextStay multiply the rank of a running job before and after its first
	// preemption, so that two about equal jobs do not preempt each other in turn.
	firstStay = 0.5
	nextStay  = 0.25
	// firstProof and nextProof are the run time before which a job is not preempted for the
	// first time and again: its few preemptions are kept until it has proved long.
	firstProof = 30 * time.Minute
	nextProof  = 4 * time.Hour
	// plannedFrom is the first stage whose start causes a plan. The early stages are so
	// short that other events soon cause one.
	plannedFrom = 4
	// maxPast is the number of ended jobs kept per tenant.
	maxPast = 4096
)

// kinWeights holds the weight of a job by its distance in slots.
var kinWeights = func() (w [kinSpan + 1]float64) {
	for i := range w {
		w[i] = kinWeight * math.Exp(-float64(i)*kinSlot.Seconds()/kinship.Seconds())
	}
	return w
}()

// slotOf returns the slot of a submission time.
func slotOf(t time.Time) int64 { return cluster.SinceOrigin(t).Nanoseconds() / int64(kinSlot) }

// history is the knowledge of Learned about one tenant.
type history struct {
	order   []sibling // ended jobs by time of end, oldest first
	lives   lives     // sums over order, without weights by submission
	prior   lives     // shrunk lives and doubt; the start of every estimate
	slots   []*slot   // by number
	live    []sibling // running, or waiting after an earlier run; in this plan
	busy    []*slot   // slots with jobs of live
	changed int       // count of changes to slots; each change gets the next number
	ends    int       // count of ended jobs
}

// slot holds the jobs submitted within kinSlot, and the estimates for new ones.
type slot struct {
	number  int64
	past    lives // ended jobs
	live    lives // jobs in progress
	changed int   // number of the latest change to past or live

	kin     lives               // weighted sums over the slots nearby, at the change seen
	seen    int                 // history.changed when kin was computed; -1: never
	costs   map[costKey]float64 // costs of jobs, at the change costed and with as many ends
	costed  int
	endings int
}

// costKey holds the values that decide the cost of a job in a slot.
type costKey struct {
	ran   time.Duration // rounded
	self  bool          // the job is one of the jobs in progress
	whole bool          // see lives.whole
}

// NewLearned returns a Learned that has seen no job yet.
func NewLearned() *Learned { return &Learned{tenants: map[berth.TenantID]*history{}} }

// of returns the history of a tenant, and creates it for the tenant's first job.
func (l *Learned) of(tenant berth.TenantID) *history {
	h := l.tenants[tenant]
	if h == nil {
		h = &history{}
		h.renew()
		l.tenants[tenant] = h
	}
	return h
}

// Ended records a job that ended by itself, without an order to stop. The oldest of more
// than maxPast jobs is subtracted again.
func (l *Learned) Ended(e Ended) {
	h, s := l.of(e.Tenant), sibling{e.SubmittedAt, e.Ran, true}
	h.order = append(h.order, s)
	h.count(s, 1)
	if len(h.order) > maxPast {
		h.count(h.order[0], -1)
		h.order = h.order[1:]
	}
	h.renew()
}

// count adds an ended job to its slot and to the sums, or subtracts it.
func (h *history) count(s sibling, weight float64) {
	h.lives.note(s, weight)
	x := h.slot(slotOf(s.submitted))
	x.past.note(s, weight)
	h.changed++
	x.changed = h.changed
}

// renew computes the prior after ends.
func (h *history) renew() {
	h.lives.sum()
	h.prior = h.lives.shrunk()
	h.prior.doubt()
	h.ends++
}

// slot returns the slot with a number, and creates it.
func (h *history) slot(number int64) *slot {
	i, found := h.find(number)
	if !found {
		h.slots = slices.Insert(h.slots, i, &slot{number: number, seen: -1, costed: -1, costs: map[costKey]float64{}})
	}
	return h.slots[i]
}

func (h *history) find(number int64) (i int, found bool) {
	return slices.BinarySearchFunc(h.slots, number, compareSlot)
}

// compareSlot compares the number of a slot.
func compareSlot(x *slot, number int64) int { return cmp.Compare(x.number, number) }

// compareSiblings orders by submission, then by run time.
func compareSiblings(a, b sibling) int {
	return cmp.Or(a.submitted.Compare(b.submitted), cmp.Compare(a.ran, b.ran))
}

// Begin implements Ranker.
func (l *Learned) Begin(s RankView, now time.Time) {
	l.now, l.behind = now, time.Time{}
	l.ranked = map[berth.JobID]float64{}
	for _, h := range l.tenants {
		h.live = h.live[:0]
	}
	s.EachJob(func(j Job) {
		if j.Done > 0 {
			h := l.of(j.Tenant)
			h.live = append(h.live, sibling{j.SubmittedAt, j.Done, false})
		}
	})
	s.EachRunning(func(r cluster.Running) {
		ran, h := l.ran(r), l.of(r.Tenant)
		h.live = append(h.live, sibling{r.SubmittedAt, ran, false})
		if at := now.Add(stageStarts[max(plannedFrom, stage(ran)+1)] - ran); l.behind.IsZero() || at.Before(l.behind) {
			l.behind = at
		}
	})
	for _, h := range l.tenants {
		h.update()
	}
}

// update puts the jobs in progress into their slots, and marks the slots that this changes.
func (h *history) update() {
	// A fixed order, since the sum of floats depends on it.
	slices.SortFunc(h.live, compareSiblings)
	set := func(x *slot, live *lives) {
		if *live != x.live {
			h.changed++
			x.live, x.changed = *live, h.changed
		}
	}
	was := h.busy
	h.busy = nil
	for i := 0; i < len(h.live); {
		var live lives
		x := h.slot(slotOf(h.live[i].submitted))
		for ; i < len(h.live) && slotOf(h.live[i].submitted) == x.number; i++ {
			live.note(h.live[i].rounded(), 1)
		}
		set(x, &live)
		h.busy = append(h.busy, x)
	}
	for _, x := range was {
		if i, found := slices.BinarySearchFunc(h.busy, x.number, compareSlot); !found || h.busy[i] != x {
			set(x, &lives{})
		}
	}
}

// rounded returns a job in progress as it was at the latest quarter of its stage, so that
// it changes the estimates for others at few times only.
func (s sibling) rounded() sibling {
	k := stage(s.ran)
	quarter := (stageStarts[k+1] - stageStarts[k]) / 4
	if s.ran = min(s.ran, stageStarts[k+1]); s.ran > stageStarts[k] {
		s.ran = stageStarts[k] + (s.ran - stageStarts[k]).Truncate(quarter)
	}
	return s
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
	// A job that cannot be preempted again runs to its end, so that its whole run counts.
	whole := len(j.PreemptedFor) >= LearnedPreemptions
	return l.rank(j.Tenant, sibling{j.SubmittedAt, j.Done, false}, gpus, whole)
}

// Running implements Ranker.
func (l *Learned) Running(r cluster.Running, gpus float64) float64 {
	rank, ok := l.ranked[r.Job]
	if !ok {
		ran, proof, stay := l.ran(r), firstProof, firstStay
		if len(r.PreemptedFor) > 0 {
			proof, stay = nextProof, nextStay
		}
		if ran >= proof { // otherwise the rank is 0, ahead of all others
			rank = stay * l.rank(r.Tenant, sibling{r.SubmittedAt, ran, false}, gpus, false)
		}
		l.ranked[r.Job] = rank
	}
	return rank
}

// rank returns the rank of a job with gpus GPUs. The tenant's past gives a weak prior; jobs
// submitted close to this one weigh kinWeight times as much. With whole, the job is taken to
// run to its end.
func (l *Learned) rank(tenant berth.TenantID, job sibling, gpus float64, whole bool) float64 {
	h := l.of(tenant)
	x := h.slot(slotOf(job.submitted))
	h.estimate(x)
	weight := math.Pow(gpus, LearnedExponent)
	if x.costed != x.seen || x.endings != h.ends {
		clear(x.costs)
		x.costed, x.endings = x.seen, h.ends
	}
	key := costKey{ran: job.rounded().ran, whole: whole}
	if job.ran > 0 {
		_, key.self = slices.BinarySearchFunc(h.live, job, compareSiblings)
	}
	cost, ok := x.costs[key]
	if !ok {
		y := x.kin
		if key.self {
			y.note(job.rounded(), -kinWeight) // the job itself carries no new information
		}
		if y = *h.with(&y); whole {
			cost = y.whole(key.ran)
		} else {
			cost = y.cost(key.ran)
		}
		x.costs[key] = cost
	}
	return cost * weight
}

// with returns the estimate from the prior and from the jobs nearby.
func (h *history) with(kin *lives) *lives {
	x := h.prior
	x.add(kin, 1)
	x.sum()
	return &x
}

// estimate brings the sums of a slot up to date, if a slot nearby has changed.
func (h *history) estimate(x *slot) {
	if x.seen == h.changed {
		return
	}
	first, _ := h.find(x.number - kinSpan)
	last := first
	stale := x.seen < 0
	for ; last < len(h.slots) && h.slots[last].number <= x.number+kinSpan; last++ {
		stale = stale || h.slots[last].changed > x.seen
	}
	if !stale {
		return
	}
	x.seen = h.changed
	x.kin = lives{}
	for _, o := range h.slots[first:last] {
		gap := o.number - x.number
		w := kinWeights[max(gap, -gap)]
		x.kin.add(&o.past, w)
		x.kin.add(&o.live, w)
	}
}
