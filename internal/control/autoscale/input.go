package autoscale

import (
	"cmp"
	"math"
	"slices"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
	"berth/placement"
	"berth/spec"
)

// never is the end of a refusal that only an admin can end.
var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// Bounds on the replays of a pass, by the number of machines and jobs that a replay reads.
const (
	futureRows  = 10_000 // rows that all replays of the futures read together, roughly
	mostFutures = 8
	planRows    = 30_000_000
	planBase    = 10_000 // fixed cost of a plan, as a number of rows
)

// bounds returns the number of futures, and the number of plans that a replay of the queue may make. All replays
// without a job may make the same number together, apart from the last one.
func bounds(rows int) (futures, plans int) {
	return min(mostFutures, max(1, futureRows/max(1, rows))), planRows / (rows + planBase)
}

// input returns the facts for one tenant and pool, without jobs.
func (p *pass) input(t berth.TenantID, policy spec.Burst, pool string) scaler.Input {
	in := scaler.Input{Now: p.Now, Pool: pool, Planner: p.Planner, Policy: p.policy(t, policy)}
	in.Taints, in.Untrusted = taintsOf(p, pool), distrusts(p, t)
	in.Planner.MaxStarts, in.Planner.Policy.Preempt = 0, false
	for _, m := range p.fleet[t] {
		if m.pool == pool {
			in.Machines = append(in.Machines, m.Machine)
		}
	}
	least(p, t, &in, policy)
	p.limit(t, &in)
	for _, o := range p.Offers {
		account, ok := p.Accounts.Providers[o.Provider]
		if !ok || !account.Serves(pool) || !slices.Contains(account.Regions, o.Region) {
			continue
		}
		r := cloud.Request{Pool: pool, Provider: o.Provider, Offering: o.Offering}
		in.Offers = append(in.Offers, scaler.Offer{Offer: o.Offer, Provider: o.Provider, Breaker: p.breaker(r),
			Won: p.Won[o.Provider+"/"+o.String()], Known: p.known(o.Provider, o.Offering)})
	}
	return in
}

// taintsOf returns the taints of the machines of a pool.
func taintsOf(p *pass, pool string) []string {
	i := slices.IndexFunc(p.Pools, func(r placement.Pool) bool { return r.Name == pool })
	if i < 0 {
		return nil
	}
	return p.Pools[i].Taints
}

// policy returns the policy of a tenant for package scaler, without the limits that tenants above share.
func (p *pass) policy(t berth.TenantID, b spec.Burst) scaler.Policy {
	return scaler.Policy{Allow: places(b), Spot: scaler.SpotRule(b.Spot), MaxPrice: b.MaxPricePerHour,
		Idle: p.idle(b, t), IdleCost: b.IdleCost}
}

// idle returns the time for which empty machines of a tenant are kept.
func (p *pass) idle(b spec.Burst, t berth.TenantID) time.Duration {
	if b.Idle > 0 {
		return b.Idle.Std()
	}
	if slices.ContainsFunc(p.fleet[t], func(m machine) bool { return m.boot > slowBoot }) {
		return slowIdle
	}
	return defaultIdle
}

// limit sets the bounds that hold for the tenant and all tenants below each policy on its path. Package
// scaler counts the machines and launches that it is given, so the bounds are relative to these.
func (p *pass) limit(t berth.TenantID, in *scaler.Input) {
	machines, growth, money := math.MaxInt32, math.MaxInt32, math.Inf(1)
	for _, a := range p.path(t) {
		b, ok := p.Policies[a]
		if !ok {
			continue
		}
		if b.MaxMachines > 0 {
			machines = min(machines, max(0, b.MaxMachines-p.count[a]))
		}
		if g := b.Grow; g != nil {
			recent := 0
			for _, at := range p.growth[a] {
				if p.Now.Sub(at) < g.Per.Std() {
					recent++
				}
			}
			growth = min(growth, max(0, g.Machines-recent))
		}
		if s, ok := p.Spent[a]; ok {
			money = min(money, max(0, s.Room-p.granted[a]))
		}
	}
	if p.Paused {
		machines = 0
	}
	in.Policy.Max = len(in.Machines) + machines
	if growth < math.MaxInt32 { // zero would mean no bound, so one launch of now is added
		in.Policy.Growth, in.Policy.GrowthPer, in.Launched = growth+1, time.Hour, []time.Time{p.Now}
	}
	if !math.IsInf(money, 1) { // zero would mean no bound, so a spent dollar is added
		in.Policy.Budget, in.Spent = money+1, 1
	}
}

// breaker returns the strictest of the breakers that concern a request.
func (p *pass) breaker(r cloud.Request) (b scaler.Breaker) {
	concerns := r.Concerned()
	for _, x := range p.Breakers {
		if x.Step == 0 || x.Waits(p.Now) || !concerns(x.Breaker) {
			continue
		}
		until := x.Until
		if until.IsZero() {
			until = never
		}
		if until.After(b.Until) {
			b.Until = until
		}
		b.Step = max(b.Step, time.Duration(x.Step)*time.Minute) // only its order counts
		b.Probe = b.Probe || x.Probing || p.tried[string(x.Scope)+" "+x.Key]
	}
	return b
}

// job returns a waiting job for package scaler.
func (p *pass) job(j placement.Job) scaler.Job {
	run, request := p.expected(j), p.Classes[j.Class]
	return scaler.Job{Job: j, Request: request, Run: run, Spot: maySpot(request, p.Saves[j.ID], run)}
}

// maySpot reports whether a job may run on spot machines: by the decision of its owner, or else if the loss of a
// machine costs little, since the job writes checkpoints or is short.
func maySpot(r spec.Request, saves bool, run time.Duration) bool {
	if r.Spot != "" {
		return r.Spot != spec.SpotNever
	}
	return saves || run < spotRun
}

// expected returns the run time of a waiting job for which money is reserved: the declared time, the median
// of similar jobs, or the time limit.
func (p *pass) expected(j placement.Job) time.Duration {
	if j.Remaining > 0 {
		return j.Remaining
	}
	like := p.like(j.Tenant, j.LikeName, j.LikeData, j.Class, j.SubmittedAt)
	if prediction := p.RunTimes.Of(like, j.Done); prediction.Known() {
		return capped(prediction.Quantile(0.5)-j.Done, j.TimeLimit)
	}
	return cmp.Or(j.TimeLimit, p.lengths.Mean())
}

// capped returns a predicted time, bounded to at least a second and at most the limit. A limit of 0 is no limit.
func capped(d, limit time.Duration) time.Duration {
	if limit > 0 {
		d = min(d, limit)
	}
	return max(d, time.Second)
}

// like returns the properties by which a job is similar to others.
func (p *pass) like(t berth.TenantID, name, data, class string, at time.Time) placement.Like {
	return placement.Like{Tenant: t, Name: name, Data: data, Class: class,
		GPUs: placement.GPUsOf(p.Classes[class].Total()), SubmittedAt: at}
}

// verdicts decides which jobs with an option go to the cloud, by the whole queue without the jobs for which
// machines boot. All tenants share the replays.
func (p *pass) verdicts(options map[berth.JobID]scaler.Option) {
	if len(options) == 0 {
		return
	}
	q := &scaler.Queue{Planner: p.Planner, Machines: p.Machines, Running: p.Running, Classes: p.Classes,
		Tenants: p.Tenants, Pools: p.Pools, Windows: p.Windows, Left: p.runTime()}
	q.Planner.MaxStarts, q.Planner.Policy.Preempt = 0, false
	for _, j := range p.Waiting {
		if !p.gone[j.ID] {
			q.Waiting = append(q.Waiting, j)
		}
	}
	l := scaler.Limits{Turn: p.Turn}
	q.Futures, q.Plans = bounds(len(q.Machines) + len(q.Running) + len(q.Waiting))
	l.Plans = q.Plans
	for _, v := range scaler.Burst(q, options, l, p.Now) {
		if _, weighed := options[v.Job]; !weighed {
			continue
		}
		if v.Burst {
			p.gone[v.Job] = true
			continue
		}
		n := db.BurstNote{Job: v.Job, Code: codeWaits, Cost: v.Cost}
		if v.Wait < scaler.Horizon && !v.Least {
			at := p.Now.Add(v.Wait)
			n.Start = &at
		}
		p.note(n)
	}
}

// runTime returns the function Left of a queue: by the declared time, by similar jobs that have ended, or by
// the mean of all jobs, and never beyond the time limit.
func (p *pass) runTime() func(berth.JobID, int) time.Duration {
	if len(p.left) == 0 {
		for _, j := range p.Waiting {
			like := p.like(j.Tenant, j.LikeName, j.LikeData, j.Class, j.SubmittedAt)
			p.left[j.ID] = p.future(j.ID, like, j.Remaining, j.Done, j.TimeLimit)
		}
		for _, r := range p.Running {
			ran := max(0, p.Now.Sub(r.StartedAt))
			remaining, limit := r.Remaining, r.TimeLimit
			if remaining > 0 {
				remaining = max(remaining-ran, time.Second)
			}
			if limit > 0 {
				limit = max(limit-ran, time.Second)
			}
			like := p.like(r.Tenant, r.LikeName, r.LikeData, r.Class, r.SubmittedAt)
			p.left[r.Job] = p.future(r.Job, like, remaining, r.Done+ran, limit)
		}
	}
	return func(id berth.JobID, future int) time.Duration {
		if f := p.left[id]; f != nil {
			return f(future)
		}
		return p.lengths.Left(id, 0, future)
	}
}

// future returns the remaining run time of a job as a function of the number of the future.
func (p *pass) future(id berth.JobID, like placement.Like,
	remaining, ran, limit time.Duration) func(int) time.Duration {
	if remaining > 0 {
		return func(int) time.Duration { return capped(remaining, limit) }
	}
	prediction := p.RunTimes.Of(like, ran)
	return func(future int) time.Duration {
		switch {
		case prediction.Known():
			return capped(prediction.Quantile(scaler.Draw(id, future))-ran, limit)
		case limit > 0:
			return limit
		}
		return p.lengths.Left(id, ran, future)
	}
}
