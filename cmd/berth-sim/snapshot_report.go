package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"berth"
	"berth/db/history"
	"berth/spec"
)

// ready returns the state of a machine that serves with a capacity.
func ready(at time.Time, c berth.Capacity) history.RecordedState {
	return history.RecordedState{At: at, State: berth.MachineReady, Capacity: c}
}

// tally sums up how the jobs of a period fared in the record or in a replay.
type tally struct {
	name   string
	by     map[berth.TenantID]*waitTally
	total  waitTally
	used   berth.Capacity            // times seconds, see held
	owned  berth.Capacity            // of the machines in service, times seconds
	cost   float64                   // US dollars
	firsts map[berth.JobID]time.Time // first start of each job that became ready in the period
	policy string                    // order of the queue; "": as it was
	fleet  int                       // machines in service at some time
}

// waitTally sums up the waits and preemptions of one tenant.
type waitTally struct {
	waits     []float64 // seconds from ready to first start; to the end of the period or the withdrawal without one
	waiting   int       // jobs that did not start
	preempted int       // runs
}

// add counts a job.
func (o *tally) add(j *history.RecordedJob, wait time.Duration, started bool) {
	for _, f := range []*waitTally{&o.total, o.of(j.Tenant)} {
		f.waits = append(f.waits, max(0, wait.Seconds()))
		if !started {
			f.waiting++
		}
	}
}

func (o *tally) preempt(t berth.TenantID, runs int) {
	o.total.preempted += runs
	o.of(t).preempted += runs
}

func (o *tally) of(t berth.TenantID) *waitTally {
	if o.by[t] == nil {
		o.by[t] = &waitTally{}
	}
	return o.by[t]
}

// held adds the use of a request from one time to another, within the period.
func (o *tally) held(r *recording, c berth.Capacity, from, to time.Time) {
	s := int64(min2(to, origin.Add(r.period())).Sub(max2(from, origin)) / time.Second)
	if s > 0 {
		o.used = o.used.Add(berth.Capacity{CPUMilli: c.CPUMilli * s, GPUMilli: c.GPUMilli * s})
	}
}

// whole returns the capacity of all members of a request, without their disks.
func whole(q spec.Request) berth.Capacity {
	c := q.Total()
	c.DiskMiB = 0
	return c
}

// counts reports whether a job's wait counts: it became ready in the period.
func (r *recording) counts(j *history.RecordedJob) bool {
	return j.ReadyAt != nil && !j.ReadyAt.Before(r.head.Since)
}

// recorded returns the tally in the rows.
func (r *recording) recorded(fleet []fleetMachine) *tally {
	o := r.newTally("recorded", fleet, false)
	end := origin.Add(r.period())
	for i := range r.jobs {
		j := &r.jobs[i]
		preempted := 0
		for k := range j.Attempts {
			a := &j.Attempts[k]
			freed, _ := r.freed(j, a)
			o.held(r, whole(r.classes[j.Class]), r.at(a.PlacedAt), freed)
			if a.Outcome == berth.ReasonPreempted && !freed.Before(origin) {
				preempted++
			}
		}
		o.preempt(j.Tenant, preempted)
		if !r.counts(j) {
			continue
		}
		ready, until := r.at(*j.ReadyAt), end
		if j.FinishedAt != nil {
			until = r.at(*j.FinishedAt)
		}
		if len(j.Attempts) > 0 {
			until = r.at(j.Attempts[0].PlacedAt)
			o.firsts[j.ID] = until
		}
		o.add(j, until.Sub(ready), len(j.Attempts) > 0)
	}
	return o
}

// replayed returns the tally of a replay that has reached the end of the period.
func (r *recording) replayed(name string, x *replay, s setting) *tally {
	o := r.newTally(name, s.machines, s.burst != nil)
	o.policy = s.policy.Order.String()
	end := origin.Add(r.period())
	if s.burst != nil {
		s.burst.account(o, end)
	}
	for _, stretch := range x.stretches {
		o.held(r, whole(stretch.task.request), stretch.start, stretch.end)
	}
	for _, t := range x.running {
		o.held(r, whole(t.request), t.started, end)
	}
	for i := range r.jobs {
		j := &r.jobs[i]
		t := x.tasks[j.ID]
		if t == nil {
			continue // not ready
		}
		o.preempt(j.Tenant, len(t.gaveWay))
		if !r.counts(j) {
			continue
		}
		until, started := end, !t.first.IsZero()
		switch {
		case started:
			until = t.first
			o.firsts[j.ID] = until
		case !t.finished.IsZero():
			until = t.finished
		}
		o.add(j, until.Sub(origin.Add(t.submitted)), started)
	}
	return o
}

// newTally returns a tally with the capacity and the cost of a fleet. If a replay is scaled, its launches replace the
// recorded ones of the scaler, which have a tenant.
func (r *recording) newTally(name string, fleet []fleetMachine, scaled bool) *tally {
	o := &tally{name: name, by: map[berth.TenantID]*waitTally{}, firsts: map[berth.JobID]time.Time{}}
	present := map[berth.MachineID]bool{"": true} // launches without a machine cost, too
	for i := range fleet {
		m := &fleet[i]
		present[m.ID] = true
		if served, _ := r.served(m); served > 0 {
			o.fleet++
		}
		r.own(o, m)
		if m.added {
			o.cost += r.price(m) * r.period().Hours()
		}
	}
	for i := range r.launches {
		if l := &r.launches[i]; present[l.Machine] && !(scaled && l.Tenant != "") {
			o.cost += r.costOf(l)
		}
	}
	return o
}

// own adds the capacity of a machine while it was in service.
func (r *recording) own(o *tally, m *fleetMachine) {
	for i, s := range m.States {
		to := origin.Add(r.period())
		if i+1 < len(m.States) {
			to = r.at(m.States[i+1].At)
		}
		if seconds := int64(to.Sub(max2(r.at(s.At), origin)) / time.Second); seconds > 0 && !gone(s.State) {
			o.owned = o.owned.Add(berth.Capacity{CPUMilli: s.CPUMilli * seconds, GPUMilli: s.GPUMilli * seconds})
		}
	}
}

// costOf returns the settled cost of a launch within the period.
func (r *recording) costOf(l *history.RecordedLaunch) float64 {
	if l.SettledTo == nil || !l.SettledTo.After(l.CreatedAt) {
		return 0
	}
	all := l.SettledTo.Sub(l.CreatedAt)
	inside := all
	if l.CreatedAt.Before(r.head.Since) {
		inside = max(0, l.SettledTo.Sub(r.head.Since))
	}
	return float64(l.Settled) / 1e6 * inside.Seconds() / all.Seconds()
}

// price returns the price of an hour of the machine that an added one is a copy of; 0: unknown.
func (r *recording) price(m *fleetMachine) (price float64) {
	for _, l := range r.launches {
		if l.Machine != "" && l.Machine == m.copyOf {
			price = l.Price
		}
	}
	return price
}

// report prints the tallies: the record first, then its replay, then the changed setting.
func (r *recording) report(w io.Writer, lives []life, shapes []shape, list []*tally) error {
	fmt.Fprintf(w, "period      %s to %s, %s\n", r.head.Since.UTC().Format(time.RFC3339),
		r.head.TakenAt.UTC().Format(time.RFC3339), spec.Duration(r.period().Round(time.Second)))
	r.describeJobs(w, lives)
	for i, s := range shapes {
		title := "shapes"
		if i > 0 {
			title = ""
		}
		fmt.Fprintf(w, "%-12s%d x %s\n", title, len(s.machines), s.name)
	}
	r.describeFit(w, list[0], list[1])
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SETTING\tORDER\tMACHINES\tJOBS\tNOT STARTED\tWAIT MEAN\tP50\tP99\tPREEMPTED\t"+
		"GPU USE\tCPU USE\tCOST")
	for _, o := range list {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", o.name, dash(o.policy), o.fleet, o.total.cells(),
			use(o.used.GPUMilli, o.owned.GPUMilli), use(o.used.CPUMilli, o.owned.CPUMilli), r.dollars(o))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	fmt.Fprintln(t, "TENANT\tSETTING\tJOBS\tNOT STARTED\tWAIT MEAN\tP50\tP99\tPREEMPTED")
	for _, tenant := range r.tenants {
		for _, o := range list {
			if f := o.by[tenant.ID]; f != nil && len(f.waits) > 0 {
				fmt.Fprintf(t, "%s\t%s\t%s\n", r.names[tenant.ID], o.name, f.cells())
			}
		}
	}
	return t.Flush()
}

// cells returns the columns from JOBS to PREEMPTED.
func (f *waitTally) cells() string {
	slices.Sort(f.waits)
	return fmt.Sprintf("%d\t%d\t%s\t%s\t%s\t%d", len(f.waits), f.waiting, span(mean(f.waits)),
		span(percentile(f.waits, 0.5)), span(percentile(f.waits, 0.99)), f.preempted)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// use formats the used part of a capacity.
func use(used, owned int64) string {
	if owned == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*part(used, owned))
}

// dollars formats the cost; without launches no price is known.
func (r *recording) dollars(o *tally) string {
	if len(r.launches) == 0 && o.cost == 0 {
		return "-"
	}
	return fmt.Sprintf("$%.2f", o.cost)
}

// describeJobs prints the jobs that are no plain ones, and how the replay treats them.
func (r *recording) describeJobs(w io.Writer, lives []life) {
	var before, open, guessed, unready, unplaced, budgets int
	for i := range r.jobs {
		j := &r.jobs[i]
		switch {
		case j.ReadyAt == nil:
			unready++
			continue
		case j.ReadyAt.Before(r.head.Since):
			before++
		}
		switch {
		case lives[i].open:
			open++
		case lives[i].guessed && j.FinishedAt == nil:
			guessed++
		case lives[i].guessed:
			unplaced++
		}
	}
	for _, t := range r.tenants {
		if t.GPUHours != nil {
			budgets++
		}
	}
	fmt.Fprintf(w, "jobs        %d\n", len(r.jobs))
	for _, x := range []struct {
		n    int
		text string
	}{
		{before, "were ready before the period: they take room, and their waits do not count"},
		{open, "run at the end, for an unknown time: they run to their limits, or to the end"},
		{guessed, "wait at the end, and their run times are unknown: those of similar jobs are used"},
		{unplaced, "ended before they started: they leave the queue at the recorded time"},
		{r.unplaced, "attempts held devices that their machines have no more: their jobs start again"},
		{unready, "are held or wait for other jobs: they are left out"},
		{r.head.Archived, "are archived and not in the file: the replay has too little load"},
		{budgets, "tenants have budgets of GPU hours: the replay does not apply them"},
	} {
		if x.n > 0 {
			fmt.Fprintf(w, "            %d %s\n", x.n, x.text)
		}
	}
}

// closeStart is the difference of two starts that counts as none.
const closeStart = time.Minute

// describeFit prints how far the replay of the recorded setting is from the record.
func (r *recording) describeFit(w io.Writer, truth, replayed *tally) {
	var off []float64
	near := 0
	for id, at := range truth.firsts {
		if b, ok := replayed.firsts[id]; ok {
			d := at.Sub(b).Abs()
			off = append(off, d.Seconds())
			if d <= closeStart {
				near++
			}
		}
	}
	if len(off) == 0 {
		fmt.Fprintln(w, "validation  no job started both in the record and in its replay: the accuracy is unknown")
		return
	}
	slices.Sort(off)
	a, b := mean(truth.total.waits), mean(replayed.total.waits)
	text := []string{fmt.Sprintf("mean wait %s, recorded %s", span(b), span(a))}
	if a > 0 {
		text = append(text, fmt.Sprintf("%+.0f %%", (b-a)/a*100))
	}
	fmt.Fprintf(w, "validation  replay of the recorded setting: %s\n", strings.Join(text, ", "))
	fmt.Fprintf(w, "            %d of %d first starts are within %s of the record, median difference %s, largest %s\n",
		near, len(off), spec.Duration(closeStart), span(percentile(off, 0.5)), span(off[len(off)-1]))
}
