package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/autoscale"
	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
	"berth/internal/lib/jobfile"
	"berth/placement"
	"berth/spec"
)

// burstFile is a file of berth burst set.
type burstFile struct {
	Burst spec.Burst `json:"burst"`
}

// burstPolicies returns the effective policies of the tenants, with the changes of --burst: TENANT=FILE.
func (r *recording) burstPolicies(changes []string) (map[berth.TenantID]spec.Burst, error) {
	own, parents := map[berth.TenantID]spec.Burst{}, map[berth.TenantID]berth.TenantID{}
	for _, b := range r.bursts {
		own[b.Tenant] = b.Policy
	}
	for _, c := range changes {
		name, path, ok := strings.Cut(c, "=")
		at := slices.IndexFunc(r.tenants, func(t tenantRecord) bool { return r.names[t.ID] == name })
		if !ok || at < 0 {
			return nil, fmt.Errorf("--burst %q: allowed is TENANT=FILE with a tenant of the snapshot", c)
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var f burstFile
		err = jobfile.Decode(path, src, &f, func() []berth.FieldError {
			faults := f.Burst.Validate()
			for i := range faults {
				faults[i].Field = "burst." + faults[i].Field
			}
			return faults
		})
		if err != nil {
			return nil, err
		}
		if err := r.knowsPlaces(f.Burst.Allow); err != nil {
			return nil, fmt.Errorf("--burst %s: %w", c, err)
		}
		own[r.tenants[at].ID] = f.Burst.WithDefaults()
	}
	for _, t := range r.tenants {
		parents[t.ID] = t.Parent
	}
	all := map[berth.TenantID]spec.Burst{}
	for _, t := range r.tenants {
		if b, ok := effectiveBurst(t.ID, own, parents); ok {
			all[t.ID] = b
		}
	}
	return all, nil
}

// effectiveBurst returns the policy that holds for a tenant, from the policies of single tenants.
func effectiveBurst(t berth.TenantID, own map[berth.TenantID]spec.Burst,
	parents map[berth.TenantID]berth.TenantID) (spec.Burst, bool) {
	var path []spec.Burst
	for at := t; at != ""; at = parents[at] {
		if b, ok := own[at]; ok {
			path = append([]spec.Burst{b}, path...)
		}
	}
	b, ok := spec.EffectiveBurst(path...)
	if _, has := own[t]; !has {
		b = b.Inherited()
	}
	return b, ok
}

// knowsPlaces refuses a provider/region without an offer in the snapshot: the scaler would launch nothing there. A
// snapshot with pseudonyms has other names of providers than a policy.
func (r *recording) knowsPlaces(allow []string) error {
	var known []string
	for _, o := range r.offers {
		if place := o.Provider + "/" + o.Region; !slices.Contains(known, place) {
			known = append(known, place)
		}
	}
	for i, a := range allow {
		if !slices.Contains(known, a) {
			return fmt.Errorf("burst.allow[%d] %q: the snapshot has no offer there: allowed are %s", i, a,
				strings.Join(known, ", "))
		}
	}
	return nil
}

// scaled returns a setting in which the scaler launches machines, in place of its recorded ones.
func (r *recording) scaled(s setting, changes []string) (setting, error) {
	if len(r.offers) == 0 {
		return s, errors.New("--burst: the snapshot has no offers of clouds, so the scaler would launch nothing")
	}
	policies, err := r.burstPolicies(changes)
	if err != nil {
		return s, err
	}
	s.burst = r.newBurster(policies)
	launched := map[berth.MachineID]bool{}
	for _, l := range r.launches {
		launched[l.Machine] = launched[l.Machine] || l.Tenant != ""
	}
	s.machines = slices.DeleteFunc(slices.Clone(s.machines), func(m fleetMachine) bool { return launched[m.ID] })
	return s, nil
}

// burster runs the production scaler (autoscale.Decide) in a replay. Launches always succeed, at the prices of the
// snapshot, and their machines boot for a fixed time.
type burster struct {
	*recording
	policies map[berth.TenantID]spec.Burst
	parents  map[berth.TenantID]berth.TenantID
	offers   []db.OfferRow
	accounts cloud.Accounts
	boot     time.Duration
	every    time.Duration // between passes

	fleet []*db.FleetMachine // with the machines that have ended
	notes map[berth.JobID]db.BurstNote
	runs  *placement.RunTimes
	turn  int
}

// usualBoot is the time from a launch to the join where the snapshot has no launch that joined.
const usualBoot = 4 * time.Minute

// newBurster returns a scaler for a replay. Its providers have the offers of the snapshot.
func (r *recording) newBurster(policies map[berth.TenantID]spec.Burst) *burster {
	b := &burster{recording: r, policies: policies, parents: map[berth.TenantID]berth.TenantID{},
		accounts: cloud.Accounts{Providers: map[string]cloud.Account{}}, boot: usualBoot,
		every: max(5*time.Second, r.period()/20_000).Truncate(time.Second),
		notes: map[berth.JobID]db.BurstNote{}, runs: placement.NewRunTimes()}
	for _, t := range r.tenants {
		b.parents[t.ID] = t.Parent
	}
	for _, o := range r.offers {
		row := db.OfferRow{Provider: o.Provider}
		row.Offering = cloud.Offering{Region: o.Region, Zone: o.Zone, Type: o.Type, Market: cloud.Market(o.Market)}
		row.CPUs, row.MemoryMiB, row.GPUs, row.GPUType, row.Price = o.CPUs, o.MemoryMiB, o.GPUs, o.GPUType, o.Price
		b.offers = append(b.offers, row)
		a := b.accounts.Providers[o.Provider]
		if !slices.Contains(a.Regions, o.Region) {
			a.Regions = append(a.Regions, o.Region)
		}
		b.accounts.Providers[o.Provider] = a
	}
	var boots []time.Duration
	for _, l := range r.launches {
		if l.JoinedAt != nil {
			boots = append(boots, l.JoinedAt.Sub(l.CreatedAt))
		}
	}
	if len(boots) > 0 {
		slices.Sort(boots)
		b.boot = max(0, boots[len(boots)/2])
	}
	return b
}

// attach lets the scaler decide in a replay, from the begin of the period on.
func (b *burster) attach(x *replay) {
	x.strategy = observing{x.strategy, func(t *task) {
		b.runs.Add(placement.Like{Tenant: t.tenant, Name: t.like, Class: t.class,
			GPUs: placement.GPUsOf(whole(t.request)), SubmittedAt: origin.Add(t.submitted)}, t.done)
	}}
	var step func(x *replay)
	step = func(x *replay) {
		b.pass(x)
		x.schedule(change{x.now.Add(b.every), step})
	}
	x.schedule(change{origin.Add(b.every), step})
}

// schedule adds a change in the order of time.
func (r *replay) schedule(c change) {
	i := slices.IndexFunc(r.changes, func(o change) bool { return o.at.After(c.at) })
	if i < 0 {
		i = len(r.changes)
	}
	r.changes = slices.Insert(r.changes, i, c)
}

// alive returns the machines that have not ended.
func (b *burster) alive() []*db.FleetMachine {
	var list []*db.FleetMachine
	for _, m := range b.fleet {
		if m.EndedFirst.IsZero() {
			list = append(list, m)
		}
	}
	return list
}

// pass is one pass of the scaler.
func (b *burster) pass(x *replay) {
	alive := b.alive()
	if len(alive) == 0 && x.snapshot.Jobs() == 0 {
		return
	}
	b.refresh(x, alive)
	b.turn++
	f := b.facts(x, alive)
	out := autoscale.Decide(f)
	b.notes = map[berth.JobID]db.BurstNote{}
	for _, n := range out.Notes {
		b.notes[n.Job] = n
	}
	for _, q := range out.Requests {
		var names []berth.MachineID
		for range q.Machines {
			m := &db.FleetMachine{Record: cloud.Record{Machine: nodeName(2*maxSimMachines + len(b.fleet)), N: 1,
				State: cloud.LaunchRequested, Pool: q.Pool, Provider: q.Provider, Offering: q.Offering, Price: q.Price,
				Tenant: q.Tenant, Actor: db.ScalerActor, CreatedAt: x.now}}
			b.fleet, names = append(b.fleet, m), append(names, m.Machine)
		}
		for _, j := range q.Jobs { // the notes of a launch name its machines, so that none is launched twice
			b.notes[j] = db.BurstNote{Job: j, Code: string(scaler.NoteLaunched), Machines: names}
		}
	}
	b.settle(x, out)
}

// refresh lets machines join, and notes since when they are empty.
func (b *burster) refresh(x *replay, alive []*db.FleetMachine) {
	for _, m := range alive {
		if m.JoinedAt.IsZero() && !x.now.Before(m.CreatedAt.Add(b.boot)) {
			m.State, m.JoinedAt = cloud.LaunchServing, x.now
			x.snapshot.UpsertMachine(b.row(m))
		}
		busy := slices.ContainsFunc(x.running, func(t *task) bool {
			return slices.ContainsFunc(t.grants, func(g berth.Grant) bool { return g.Machine == m.Machine })
		})
		switch {
		case busy || m.JoinedAt.IsZero():
			m.EmptySince = time.Time{}
		case m.EmptySince.IsZero():
			m.EmptySince = x.now
		}
	}
}

// row returns the machine of a launch after its join, with the nominal capacity of its offer.
func (b *burster) row(m *db.FleetMachine) placement.Machine {
	i := slices.IndexFunc(b.offers, func(o db.OfferRow) bool {
		return o.Provider == m.Provider && o.Offering == m.Offering
	})
	row := scaler.Offer{Offer: b.offers[i].Offer}.Machine(m.Machine)
	row.Pool, row.Market, row.Price = m.Pool, string(m.Market), m.Price
	return row
}

// settle carries out drains, returns and ends.
func (b *burster) settle(x *replay, out autoscale.Outcome) {
	for _, m := range b.alive() {
		row, ok := x.snapshot.Machine(m.Machine)
		switch {
		case !ok:
		case slices.Contains(out.Drain, m.Machine):
			row.State, m.DrainActor, m.DrainedAt = berth.MachineDraining, db.ScalerActor, x.now
			x.snapshot.UpsertMachine(row)
		case slices.Contains(out.Undrain, m.Machine):
			row.State, m.DrainActor, m.DrainedAt = berth.MachineReady, "", time.Time{}
			x.snapshot.UpsertMachine(row)
		case slices.Contains(out.Stop, m.Machine) && !m.EmptySince.IsZero():
			m.EndedFirst = x.now
			x.snapshot.RemoveMachine(m.Machine)
		}
	}
}

// facts returns the input of a pass, as the leader reads it from rows.
func (b *burster) facts(x *replay, alive []*db.FleetMachine) autoscale.Facts {
	f := autoscale.Facts{Now: x.now, Turn: b.turn, Policies: b.policies, Offers: b.offers, Notes: b.notes,
		Accounts: b.accounts, Planner: x.planner, RunTimes: b.runs, Saves: map[berth.JobID]bool{},
		Spent:  map[berth.TenantID]db.Spent{},
		Mirror: autoscale.Mirror{At: x.now, Classes: map[string]spec.Request{}}}
	bursts := map[berth.TenantID]bool{}
	for t := range b.policies {
		bursts[t] = true
		f.Spent[t] = b.spent(t, x.now)
	}
	x.snapshot.EachMachine(func(m placement.Machine) { f.Machines = append(f.Machines, m) })
	x.snapshot.EachRunning(func(r placement.Running) { f.Running = append(f.Running, r) })
	x.snapshot.EachJob(func(j placement.Job) { f.Waiting = append(f.Waiting, j) })
	slices.SortFunc(f.Machines, func(a, b placement.Machine) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(f.Running, func(a, b placement.Running) int { return cmp.Compare(a.Job, b.Job) })
	f.Waiting = autoscale.Urgent(f.Waiting, bursts)
	for _, r := range b.classes {
		f.Classes[r.Class()] = r
	}
	for _, j := range f.Waiting {
		t := x.tasks[j.ID]
		f.Saves[j.ID] = t.saves || t.checkpoint > 0
	}
	for _, a := range x.tenants {
		f.Tenants = append(f.Tenants, a.Tenant)
	}
	slices.SortFunc(f.Tenants, func(a, b placement.Tenant) int { return cmp.Compare(a.ID, b.ID) })
	for _, p := range b.pools {
		f.Pools = append(f.Pools, placement.Pool{Name: p.Name, Tenants: p.Tenants})
	}
	for _, m := range alive {
		f.Fleet = append(f.Fleet, *m)
	}
	for _, m := range b.fleet {
		f.Growth = append(f.Growth, db.Grown{Tenant: m.Tenant, At: m.CreatedAt})
	}
	return f
}

// spent returns the money of a tenant and all tenants below, and the room that the limits on its path leave.
func (b *burster) spent(t berth.TenantID, now time.Time) db.Spent {
	s := db.Spent{Room: math.Inf(1)}
	for at := t; at != ""; at = b.parents[at] {
		policy := b.policies[at].WithDefaults()
		if policy.Spend == nil {
			continue
		}
		settled, reserved := b.costs(at, now, policy.Spend.Period)
		s.Room = min(s.Room, policy.Spend.Limit*policy.Spend.StopNew-settled-reserved)
		if at == t {
			s.Limit, s.Settled, s.Reserved = policy.Spend.Limit, settled, reserved
		}
	}
	return s
}

// costs returns the costs of a tenant and of all tenants below in the present period, and the reservations beyond: an
// hour for each launch.
func (b *burster) costs(t berth.TenantID, now time.Time, period spec.SpendPeriod) (settled, reserved float64) {
	at := b.head.Since.Add(now.Sub(origin)).UTC()
	start := time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, time.UTC)
	day := time.Date(at.Year(), at.Month(), at.Day(), 0, 0, 0, 0, time.UTC)
	switch period {
	case spec.SpendDay:
		start = day
	case spec.SpendWeek:
		start = day.AddDate(0, 0, -(int(day.Weekday())+6)%7)
	}
	begin := now.Add(-at.Sub(start))
	for _, m := range b.fleet {
		of := m.Tenant
		for of != "" && of != t {
			of = b.parents[of]
		}
		if of == "" {
			continue
		}
		ran := b.until(m, now).Sub(m.CreatedAt)
		settled += m.Price * max(0, b.until(m, now).Sub(max2(m.CreatedAt, begin))).Hours()
		if m.EndedFirst.IsZero() {
			reserved += m.Price * max(0, cloud.LeastReserved-ran).Hours()
		}
	}
	return settled, reserved
}

// until returns the end of a machine, or now.
func (b *burster) until(m *db.FleetMachine, now time.Time) time.Time {
	if m.EndedFirst.IsZero() {
		return now
	}
	return m.EndedFirst
}

// account adds the capacity and the costs of the launched machines to a tally.
func (b *burster) account(o *tally, end time.Time) {
	for _, m := range b.fleet {
		o.fleet++
		o.cost += m.Price * b.until(m, end).Sub(m.CreatedAt).Hours()
		if m.JoinedAt.IsZero() {
			continue
		}
		c, s := b.row(m).Total, int64(b.until(m, end).Sub(m.JoinedAt)/time.Second)
		o.owned = o.owned.Add(berth.Capacity{CPUMilli: c.CPUMilli * s, GPUMilli: c.GPUMilli * s})
	}
}
