package scaler

import (
	"cmp"
	"slices"
	"time"

	"berth"
)

// BurstPolicy decides when a wait costs more than a machine of the cloud.
type BurstPolicy struct {
	// HourOfWait is the price of an hour of one job's wait, in US dollars. 0: waiting costs nothing.
	HourOfWait float64
	// Budget is the longest planned wait since submission. A job that is planned to wait longer goes
	// to the cloud at any price that the offers allow. 0: no bound.
	Budget time.Duration
}

// Option is the run of a waiting job on the cloud.
type Option struct {
	Cost   float64 // of the run, in US dollars, by the offer that the job would get
	Policy BurstPolicy
}

// Limits bound the work of a decision on a long queue.
type Limits struct {
	// Most bounds the number of jobs for which the queue is replayed without the job. 0: usualMost.
	Most int
	// Plans is an approximate bound on the number of plans of these replays. 0: no bound.
	Plans int
	// Turn numbers the decisions. The jobs to replay the queue for are chosen from the tenants in turn, and each
	// decision begins with another tenant.
	Turn int
}

// usualMost bounds the number of replays of a decision on a long queue.
const usualMost = 64

// BurstWhy is the rule behind a verdict.
type BurstWhy string

// The rules of verdicts.
const (
	WhyWaits  BurstWhy = "waits"  // its wait is worth less than the machine
	WhySaves  BurstWhy = "worth"  // without it the queue waits less, by more than the machine costs
	WhyBudget BurstWhy = "budget" // its planned wait is longer than the budget
	WhyClosed BurstWhy = "closed" // no offer may run it
)

// Verdict is the decision on one waiting job.
type Verdict struct {
	Job   berth.JobID
	Burst bool
	Why   BurstWhy
	// Wait is the time from now until the planned start on premises; with WhyBudget at least the time until
	// the budget is used up.
	Wait  time.Duration
	Least bool          // Wait is a lower bound, since the queue is too long to be replayed to its end
	Saved time.Duration // with WhySaves, the sum of the waits that all jobs save if it bursts
	Cost  float64       // of its run on the cloud, in US dollars
}

// Burst decides which waiting jobs go to the cloud now, and returns a verdict on each waiting job, in
// their order. A job without an option cannot burst.
//
// A replay of the queue gives the planned wait of all jobs. A job that has not started when its budget is used
// up leaves the queue there: it goes to the cloud, and the jobs behind it move up. With several futures, it goes
// if it does so in half of them.
//
// The queue is then replayed without each of the other jobs. The job with the largest gain bursts. Its
// gain is the waiting time that all jobs save, at the price of the job's policy, less the cost of the job.
// This repeats until no job gains. So a short job bursts rather than wait behind a long one, and a
// job that holds up many others bursts before any of them.
func Burst(q *Queue, options map[berth.JobID]Option, l Limits, now time.Time) []Verdict {
	b := &burst{queue: q, options: options, limits: l, now: now, gone: map[berth.JobID]bool{}}
	b.limits.Most = cmp.Or(l.Most, usualMost)
	for _, j := range q.Waiting {
		o, open := options[j.ID]
		v := Verdict{Job: j.ID, Why: WhyWaits, Cost: o.Cost}
		if !open {
			v.Why = WhyClosed
		}
		b.verdicts = append(b.verdicts, v)
		if open && o.Policy.Budget > 0 {
			b.latest = append(b.latest, latest{j.ID, j.SubmittedAt.Add(o.Policy.Budget)})
		}
	}
	slices.SortStableFunc(b.latest, func(x, y latest) int { return x.at.Compare(y.at) })
	base := b.waits()
	b.spend(base)
	if list := b.candidates(base); len(list) > 0 {
		if len(b.gone) > 0 {
			base = b.waits()
		}
		for b.send(list, base) && !b.exhausted() {
			base = b.waits()
			b.spend(base)
		}
	}
	return b.verdicts
}

// burst is a decision in progress.
type burst struct {
	queue    *Queue
	options  map[berth.JobID]Option
	limits   Limits
	now      time.Time
	verdicts []Verdict            // by position in the queue
	latest   []latest             // starts within the budgets, the earliest first
	gone     map[berth.JobID]bool // jobs that burst
	plans    int                  // of the replays without a job
}

// waits are planned waits from now, averaged over the futures.
type waits struct {
	of    map[berth.JobID]time.Duration
	over  map[berth.JobID]bool // jobs that do not start within their budgets
	total time.Duration
	plans int
	cut   time.Duration // waits from here on are lower bounds; 0: none is
}

// waits replays the queue without the jobs that burst.
func (b *burst) waits() waits {
	w := waits{of: make(map[berth.JobID]time.Duration, len(b.queue.Waiting)), over: map[berth.JobID]bool{}}
	futures := max(1, b.queue.Futures)
	over := map[berth.JobID]int{}
	for f := range futures {
		r := b.queue.starts(b.now, f, b.gone, b.latest)
		for id, at := range r.began {
			w.of[id] += at.Sub(b.now)
		}
		for id := range r.left {
			over[id]++
		}
		w.plans += r.plans
		if cut := r.cut.Sub(b.now); !r.cut.IsZero() && (w.cut == 0 || cut < w.cut) {
			w.cut = max(cut, 1)
		}
	}
	for id := range w.of {
		w.of[id] /= time.Duration(futures)
		w.total += w.of[id]
	}
	for id, n := range over {
		w.over[id] = 2*n >= futures
	}
	return w
}

// spend sends to the cloud the jobs that do not start within their budgets, and sets the planned waits.
func (b *burst) spend(base waits) {
	for i := range b.verdicts {
		v := &b.verdicts[i]
		if v.Burst {
			continue
		}
		v.Wait = base.of[v.Job]
		v.Least = base.cut > 0 && v.Wait >= base.cut
		if base.over[v.Job] {
			v.Burst, v.Why = true, WhyBudget
			b.gone[v.Job] = true
		}
	}
}

// candidates returns the positions of the jobs to replay the queue for, in queue order. It takes the job that
// waits longest from each tenant in turn, and as many jobs as the plans allow for twice.
func (b *burst) candidates(base waits) (list []int) {
	of := map[berth.TenantID][]int{}
	var tenants []berth.TenantID
	for i, v := range b.verdicts {
		o := b.options[v.Job]
		if v.Burst || v.Why == WhyClosed || v.Wait == 0 || base.total.Hours()*o.Policy.HourOfWait <= o.Cost {
			continue
		}
		t := b.queue.Waiting[i].Tenant
		if of[t] == nil {
			tenants = append(tenants, t)
		}
		of[t] = append(of[t], i)
	}
	if len(tenants) == 0 {
		return nil
	}
	slices.Sort(tenants)
	for _, t := range tenants {
		slices.SortStableFunc(of[t], func(x, y int) int { return cmp.Compare(b.verdicts[y].Wait, b.verdicts[x].Wait) })
	}
	most := b.limits.Most
	if b.limits.Plans > 0 {
		most = min(most, max(1, b.limits.Plans/(2*base.plans)))
	}
	round := b.limits.Turn / len(tenants)
	for n, more := 0, true; more; n++ {
		more = false
		for k := range tenants {
			jobs, from := of[tenants[(k+b.limits.Turn)%len(tenants)]], 0
			if round%2 == 1 { // each job has its turn, also if the jobs with the longest waits are worth nothing
				from = round / 2
			}
			if n < len(jobs) && len(list) < most {
				more, list = true, append(list, jobs[(n+from)%len(jobs)])
			}
		}
	}
	slices.Sort(list)
	return list
}

// exhausted reports whether the plans of the decision are used.
func (b *burst) exhausted() bool { return b.limits.Plans > 0 && b.plans >= b.limits.Plans }

// send sends the candidate with the largest gain to the cloud. It reports false if none has a gain.
func (b *burst) send(list []int, base waits) bool {
	most, best, saved := 0.0, -1, time.Duration(0)
	for _, i := range list {
		v := b.verdicts[i]
		price := b.options[v.Job].Policy.HourOfWait
		// No job can spare more than all waits together.
		if v.Burst || base.of[v.Job] == 0 || base.total.Hours()*price <= v.Cost+most || b.exhausted() {
			continue
		}
		s := b.saves(v.Job, base)
		if gain := s.Hours()*price - v.Cost; gain > most {
			best, saved, most = i, s, gain
		}
	}
	if best < 0 {
		return false
	}
	v := &b.verdicts[best]
	v.Burst, v.Why, v.Saved = true, WhySaves, saved
	b.gone[v.Job] = true
	return true
}

// saves returns the wait that all jobs save if a job bursts.
func (b *burst) saves(id berth.JobID, base waits) time.Duration {
	b.gone[id] = true
	defer delete(b.gone, id)
	w := b.waits()
	b.plans += w.plans
	if base.cut == 0 && w.cut == 0 {
		return base.total - w.total
	}
	// Both sums count the waits up to the same time, the end of the shorter replay.
	end := w.cut
	if end == 0 || base.cut > 0 && base.cut < end {
		end = base.cut
	}
	saved := time.Duration(0)
	for id, wait := range base.of {
		saved += min(wait, end) - min(w.of[id], end)
	}
	return saved
}
