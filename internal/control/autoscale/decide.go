package autoscale

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
	"berth/placement"
	"berth/spec"
)

const (
	// IdlingFor is the time between the drain of an idle machine and the request of its end. A machine that a
	// job needs meanwhile returns without a new boot.
	IdlingFor = 15 * time.Second

	defaultIdle  = 5 * time.Minute
	slowIdle     = 10 * time.Minute // where booting takes more than slowBoot
	slowBoot     = 3 * time.Minute
	spotRun      = 30 * time.Minute // a shorter job may run on a spot machine without checkpoints
	overviewMost = 1000             // classes that the overview compares with all machines
)

// lackRoom lists the codes of blockers that another machine could remove. A job with another first blocker waits for
// something else, such as its quota.
var lackRoom = []string{"no_room", "unsatisfiable", "no_machines", "reserved", "behind", "overdue", "engine_silent",
	"maintenance"}

// codeWaits is the code of the note for a job whose wait costs less than a machine.
const codeWaits = "waits"

// Decide returns the decisions of a pass. It is a pure function.
func Decide(f Facts) Outcome {
	p := newPass(move(f))
	p.running = f.Running
	kept := promised(p)
	shareAdopted(p)
	p.examine()
	tenants := slices.Clone(p.order)
	for _, t := range slices.Sorted(maps.Keys(p.fleet)) {
		if !slices.Contains(tenants, t) {
			tenants = append(tenants, t)
		}
	}
	for _, t := range slices.Sorted(maps.Keys(p.Policies)) {
		if p.Policies[t].MinMachines != nil && !slices.Contains(tenants, t) {
			tenants = append(tenants, t)
		}
	}
	options := map[berth.JobID]scaler.Option{}
	for _, t := range p.order {
		p.weigh(t, options)
	}
	p.verdicts(options)
	for _, t := range tenants {
		hold(p, t, kept)
		p.tenant(t)
	}
	for _, n := range p.kept {
		p.note(n)
	}
	p.stop()
	p.out.OutOfService = outOfService(p)
	return p.out
}

// pass is a decision in progress.
type pass struct {
	Facts
	out     Outcome
	parents map[berth.TenantID]berth.TenantID

	untrusted map[berth.TenantID]bool // by their own rows

	fleet   map[berth.TenantID][]machine
	waiting map[berth.JobID]placement.Job
	order   []berth.TenantID                        // tenants with jobs to decide on, by their first job
	jobs    map[berth.TenantID][]placement.Job      // that lack room, in queue order
	gone    map[berth.JobID]bool                    // jobs that go to the cloud
	tried   map[string]bool                         // breakers whose probe this pass takes, by scope and key
	noted   map[berth.JobID]bool                    // jobs with a note
	passed  map[berth.JobID]db.BurstNote            // notes of the pools that have refused the job
	count   map[berth.TenantID]int                  // machines of the tenant and of all tenants below
	growth  map[berth.TenantID][]time.Time          // launches of the tenant and of all tenants below
	granted map[berth.TenantID]float64              // reserved by them in this pass, US dollars
	rules   map[string][]berth.TenantID             // of pools that accept some tenants only
	shapes  map[string]cloud.Offer                  // offers by provider and offering
	lengths scaler.Lengths                          // for jobs about which nothing is known
	left    map[berth.JobID]func(int) time.Duration // see runTime
	waits   map[berth.TenantID][]time.Duration      // of the jobs of its subtree that lack room, the longest first
	running []placement.Running                     // with the jobs that move
	kept    []db.BurstNote                          // see promised
	adopted map[share]int                           // see shareAdopted
}

// machine is a machine of the fleet as package scaler sees it.
type machine struct {
	scaler.Machine
	pool string
	boot time.Duration // from the request to the join; 0: not yet joined
	// unknown states that the capacity is not known: the offer was removed, and no such machine has joined.
	unknown bool
}

// known returns the last row of a machine of a type that has joined, or nil.
func (p *pass) known(provider string, o cloud.Offering) *placement.Machine {
	if j, ok := p.Joined[TypeOf(provider, o)]; ok {
		return &j.Row
	}
	return nil
}

func newPass(f Facts) *pass {
	p := &pass{
		Facts: f, parents: map[berth.TenantID]berth.TenantID{}, untrusted: map[berth.TenantID]bool{},
		fleet:   map[berth.TenantID][]machine{},
		waiting: map[berth.JobID]placement.Job{}, jobs: map[berth.TenantID][]placement.Job{},
		gone: map[berth.JobID]bool{}, tried: map[string]bool{}, noted: map[berth.JobID]bool{},
		passed: map[berth.JobID]db.BurstNote{},
		count:  map[berth.TenantID]int{}, growth: map[berth.TenantID][]time.Time{},
		granted: map[berth.TenantID]float64{}, rules: map[string][]berth.TenantID{}, shapes: map[string]cloud.Offer{},
		lengths: scaler.Lengths{Prior: time.Hour}, left: map[berth.JobID]func(int) time.Duration{},
		waits: map[berth.TenantID][]time.Duration{}, adopted: map[share]int{},
	}
	p.Joined = Learn(f)
	for _, t := range f.Tenants {
		p.parents[t.ID], p.untrusted[t.ID] = t.Parent, t.Untrusted
	}
	for _, r := range f.Pools {
		if !r.Open {
			p.rules[r.Name] = r.Tenants
		}
	}
	for _, o := range f.Offers {
		p.shapes[o.Provider+"/"+o.String()] = o.Offer
	}
	rows := make(map[berth.MachineID]placement.Machine, len(f.Machines))
	for _, m := range f.Machines {
		rows[m.ID] = m
	}
	for _, l := range f.Fleet {
		row, joined := rows[l.Machine]
		p.fleet[l.Tenant] = append(p.fleet[l.Tenant], p.machine(l, row, joined))
		for _, t := range p.path(l.Tenant) {
			p.count[t]++
		}
	}
	for _, g := range f.Growth {
		for _, t := range p.path(g.Tenant) {
			p.growth[t] = append(p.growth[t], g.At)
		}
	}
	for _, j := range f.Waiting {
		p.waiting[j.ID] = j
	}
	return p
}

// path returns a tenant and all tenants above it.
func (p *pass) path(t berth.TenantID) []berth.TenantID {
	list := []berth.TenantID{t}
	for parent := p.parents[t]; parent != "" && !slices.Contains(list, parent); parent = p.parents[parent] {
		list = append(list, parent)
	}
	return list
}

// machine returns a launch, with the row of its machine if the machine has joined.
func (p *pass) machine(l db.FleetMachine, row placement.Machine, joined bool) machine {
	m := machine{pool: l.Pool, Machine: scaler.Machine{Type: l.Type, Price: l.Price, Launched: l.CreatedAt,
		EmptySince: l.EmptySince}}
	if !l.JoinedAt.IsZero() {
		m.boot = l.JoinedAt.Sub(l.CreatedAt)
	}
	offer, offered := p.shapes[l.Provider+"/"+l.Offering.String()]
	known := p.known(l.Provider, l.Offering)
	m.unknown = !offered && known == nil
	m.Row = scaler.Offer{Offer: offer, Known: known}.Machine(l.Machine)
	// The offer may have changed, or be gone. The machine is judged by its launch.
	m.Row.Pool, m.Row.Region, m.Row.Market, m.Row.Price = l.Pool, l.Region, string(l.Market), l.Price
	m.Row.Taints = taintsOf(p, l.Pool)
	m.State = scaler.Leaving
	switch l.State {
	case cloud.LaunchRequested, cloud.LaunchSent, cloud.LaunchUnresolved, cloud.LaunchRunning, cloud.LaunchServing:
	default:
		return m
	}
	if !l.StopAt.IsZero() {
		return m
	}
	// The fleet was read now, and the mirror may be of the cycle before. So the state is that of the fleet, and a
	// machine that the mirror does not have yet has just joined.
	row.State = cmp.Or(l.MachineState, row.State)
	if !joined && row.State != berth.MachineDraining && row.State != berth.MachineLost &&
		row.State != berth.MachineRetired {
		m.State = scaler.Launching
	}
	if !joined {
		return m
	}
	up := row.State == berth.MachineReady || row.State == berth.MachineJoining
	if up && row.Unjudged && distrusts(p, l.Tenant) && p.Now.Sub(l.JoinedAt) < judgedWithin {
		m.State = scaler.Launching // no second machine is launched before the verdict about the first one
		return m
	}
	m.Row, m.State = stateOf(m.Row, row, l.DrainActor)
	return m
}

// judgedWithin is the time after its join for which a machine without a verdict about the security floors counts as one
// that boots, for untrusted tenants. The agent reports when it registers, and the leader judges within seconds. An
// agent of a version without reports never gets a verdict.
const judgedWithin = 5 * time.Minute

// distrusts reports whether the tenant, or a tenant above it, is untrusted.
func distrusts(p *pass, t berth.TenantID) bool {
	return slices.ContainsFunc(p.path(t), func(a berth.TenantID) bool { return p.untrusted[a] })
}

// stateOf returns the state of a machine that has joined, and the row to plan with: its own, or that of its launch
// while it takes no work. drainer is the author of its drain.
func stateOf(launched, row placement.Machine, drainer string) (placement.Machine, scaler.MachineState) {
	switch {
	case row.State == berth.MachineJoining:
		return launched, scaler.Launching
	case row.State == berth.MachineSuspect, row.State == berth.MachineReady && !row.EngineSilentSince.IsZero():
		return launched, scaler.Silent
	// A machine that disobeys, or whose counters are wrong, is blocked until an admin acts. It leaves, so that it is
	// replaced.
	case row.State == berth.MachineReady && row.Blocked == "":
		return row, scaler.Ready
	case row.State == berth.MachineDraining && drainer == db.ScalerActor:
		return row, scaler.Idling
	}
	return launched, scaler.Leaving
}

// examine finds the waiting jobs of tenants with a policy that lack room, in queue order. The overview of
// the production engine names the reason for which each job waits.
func (p *pass) examine() {
	if len(p.Policies) == 0 || p.Paused {
		return
	}
	s := p.snapshot(p.Planner.Policy)
	for _, w := range p.Planner.Forecast(s, p.Now).Overview(overviewMost) {
		policy, ok := p.Policies[w.Tenant]
		j, waits := p.waiting[w.Job]
		if !ok || policy.When == nil || !waits || !slices.Contains(lackRoom, w.Code) {
			continue
		}
		if len(p.jobs[w.Tenant]) == 0 {
			p.order = append(p.order, w.Tenant)
		}
		p.jobs[w.Tenant] = append(p.jobs[w.Tenant], j)
		for _, a := range p.path(w.Tenant) {
			p.waits[a] = append(p.waits[a], p.waited(j))
		}
	}
	for _, list := range p.waits {
		slices.SortFunc(list, func(a, b time.Duration) int { return cmp.Compare(b, a) })
	}
}

// tenant decides on the jobs and the machines of one tenant.
func (p *pass) tenant(t berth.TenantID) {
	policy, has := p.Policies[t]
	var going []scaler.Job
	over := p.over(t)
	for _, j := range p.jobs[t] {
		switch {
		case !p.gone[j.ID]:
		case over:
			p.note(db.BurstNote{Job: j.ID, Code: string(scaler.NoteBudget)})
		case p.blind(t, j.ID):
			p.note(p.Notes[j.ID])
		default:
			going = append(going, p.job(j))
		}
	}
	pools := p.pools(t)
	// Machines in pools that the tenant may no longer use are still drained once they are empty.
	own := len(pools)
	for _, m := range p.fleet[t] {
		if !slices.Contains(pools, m.pool) {
			pools = append(pools, m.pool)
		}
	}
	for i, pool := range pools {
		in := p.input(t, policy, pool)
		if i < own {
			in.Jobs = going
		} else {
			in.Policy.Min = 0
		}
		if !has {
			in.Policy = scaler.Policy{Idle: p.idle(policy, t)}
		}
		if over { // empty machines are drained at once, and do not return
			noteSpent(p, t, in)
			in.Policy.Idle, in.Policy.IdleCost, in.Policy.Min = 0, 0, 0
		}
		going = p.carry(t, pool, in, i+1 < own)
	}
	noteUnserved(p, t, policy, pools[:own])
}

// weigh adds the jobs of a tenant that an offer may run to the options, and notes why the others may not burst.
// A job for which machines boot stays chosen, so that a new plan does not strand them.
func (p *pass) weigh(t berth.TenantID, options map[berth.JobID]scaler.Option) {
	policy := p.Policies[t]
	jobs := make([]scaler.Job, len(p.jobs[t]))
	for i, j := range p.jobs[t] {
		jobs[i] = p.job(j)
	}
	cost, why, until := p.costs(t, policy, jobs, p.pools(t))
	rule := scaler.BurstPolicy{Budget: policy.When.PlannedWaitOver.Std(), HourOfWait: policy.When.HourOfWait}
	for _, j := range jobs {
		c, offered := cost[j.ID]
		switch {
		case p.boots(t, j.ID), offered && p.crowded(t, j.Job):
			p.gone[j.ID] = true
		case offered:
			options[j.ID] = scaler.Option{Cost: c, Policy: rule}
		default:
			n := db.BurstNote{Job: j.ID, Code: string(why[j.ID])}
			if at := until[j.ID]; why[j.ID] == scaler.NoteClosed && !at.IsZero() {
				n.Until = &at
			}
			p.note(n)
		}
	}
}

// costs returns the least cost of each job's run over the pools. For a job without an offer it returns the reason
// that came closest to a launch, and the earliest time at which a closed offer may be tried.
func (p *pass) costs(t berth.TenantID, policy spec.Burst, jobs []scaler.Job, pools []string) (
	cost map[berth.JobID]float64, why map[berth.JobID]scaler.NoteCode, until map[berth.JobID]time.Time) {
	cost, why = map[berth.JobID]float64{}, map[berth.JobID]scaler.NoteCode{}
	until = map[berth.JobID]time.Time{}
	for _, j := range jobs {
		why[j.ID] = scaler.NoteForbid
	}
	for _, pool := range pools {
		in := p.input(t, policy, pool)
		in.Jobs = jobs
		costs, reasons := scaler.Costs(in)
		for id, c := range costs {
			if old, ok := cost[id]; !ok || c < old {
				cost[id] = c
			}
		}
		at := reopens(in.Offers, p.Now)
		for id, reason := range reasons {
			why[id] = scaler.Later(why[id], reason)
			if !at.IsZero() && (until[id].IsZero() || at.Before(until[id])) {
				until[id] = at
			}
		}
	}
	return cost, why, until
}

// reopens returns the earliest time at which a closed offer may be tried, or zero.
func reopens(offers []scaler.Offer, now time.Time) (at time.Time) {
	for _, o := range offers {
		u := o.Breaker.Until
		if o.Breaker.Step > 0 && u.After(now) && !u.Equal(never) && (at.IsZero() || u.Before(at)) {
			at = u
		}
	}
	return at
}

// boots reports whether a machine that the last pass noted for the job still boots.
func (p *pass) boots(t berth.TenantID, job berth.JobID) bool {
	n, ok := p.Notes[job]
	return ok && slices.ContainsFunc(p.fleet[t], func(m machine) bool {
		return m.State == scaler.Launching && slices.Contains(n.Machines, m.Row.ID)
	})
}

// blind reports whether a machine of unknown capacity boots for the job. The machine may have room for the job,
// so no other machine is launched before it joins.
func (p *pass) blind(t berth.TenantID, job berth.JobID) bool {
	return slices.ContainsFunc(p.fleet[t], func(m machine) bool {
		return m.unknown && m.State == scaler.Launching && slices.Contains(p.Notes[job].Machines, m.Row.ID)
	})
}

// over reports whether the spend of the tenant, or of a tenant above, has reached the share of its limit at which
// machines are drained.
func (p *pass) over(t berth.TenantID) bool {
	return slices.ContainsFunc(p.path(t), func(a berth.TenantID) bool {
		policy, s := p.Policies[a].WithDefaults(), p.Spent[a]
		return policy.Spend != nil && s.Limit > 0 && s.Settled+s.Reserved >= policy.Spend.Drain*s.Limit
	})
}

// note adds a note. A planned start that has hardly moved stays as it was, so that rows seldom change.
func (p *pass) note(n db.BurstNote) {
	if p.noted[n.Job] {
		return
	}
	p.noted[n.Job] = true
	if old, ok := p.Notes[n.Job]; ok && old.Code == n.Code && old.Start != nil && n.Start != nil {
		if moved := n.Start.Sub(*old.Start).Abs(); moved < max(30*time.Second, n.Start.Sub(p.Now)/10) {
			n.Start = old.Start
		}
	}
	p.out.Notes = append(p.out.Notes, n)
}

// carry calls the scaler for one pool and adds its decision to the outcome. It returns the jobs that the
// next pool is to take, if there is one.
func (p *pass) carry(t berth.TenantID, pool string, in scaler.Input, more bool) (left []scaler.Job) {
	d := scaler.Decide(in)
	expectDrains(p, in)
	if d.Missing > 0 {
		noteMissing(p, t, pool, d)
	}
	p.out.Drain = append(p.out.Drain, d.Drain...)
	p.out.Undrain = append(p.out.Undrain, d.Undrain...)
	for i := 0; i < len(d.Launches); {
		l := d.Launches[i]
		n := 1
		// Machines without a job are requested one by one, since some are better than none.
		for len(l.Jobs) > 0 && i+n < len(d.Launches) && slices.Equal(d.Launches[i+n].Jobs, l.Jobs) {
			n++
		}
		i += n
		r := cloud.Request{Pool: pool, Provider: l.Offer.Provider, Offering: l.Offer.Offering, Price: l.Offer.Price,
			Tenant: t, Estimate: time.Duration(l.Cost / l.Offer.Price * float64(time.Hour))}
		p.out.Requests = append(p.out.Requests, Request{r, n, l.Jobs})
		concerns := r.Concerned()
		for _, b := range p.Breakers {
			if concerns(b.Breaker) {
				p.tried[string(b.Scope)+" "+b.Key] = true
			}
		}
		for _, above := range p.path(t) {
			p.count[above] += n
			p.granted[above] += l.Cost * float64(n)
			for range n {
				p.growth[above] = append(p.growth[above], p.Now)
			}
		}
	}
	for i, n := range d.Notes {
		shown := p.shown(t, n, in.Offers)
		if slices.Contains(scaler.Refusing, n.Code) {
			// The next pool may have an offer. The reason of the pool that came closest to a launch is shown.
			if old, ok := p.passed[n.Job]; ok && scaler.Later(n.Code, scaler.NoteCode(old.Code)) != n.Code {
				shown = old
			}
			p.passed[n.Job] = shown
			if more {
				left = append(left, in.Jobs[i])
				continue
			}
		}
		p.note(shown)
	}
	return left
}

// shown returns a note of the scaler as it is stored.
func (p *pass) shown(t berth.TenantID, n scaler.Note, offers []scaler.Offer) db.BurstNote {
	out := db.BurstNote{Job: n.Job, Code: string(n.Code), Machines: n.Machines}
	switch n.Code {
	case scaler.NoteCovered:
		// Machines that are ready need no words: the job starts in a moment.
		if old, ok := p.Notes[n.Job]; ok && old.Code == string(scaler.NoteLaunched) && p.boots(t, n.Job) {
			return old
		}
	case scaler.NoteClosed:
		if old, ok := p.Notes[n.Job]; ok && old.Code == string(scaler.NoteLaunched) && p.boots(t, n.Job) {
			return old // a machine of the gang tries the offer
		}
		if at := reopens(offers, p.Now); !at.IsZero() {
			out.Until = &at
		}
	}
	return out
}
