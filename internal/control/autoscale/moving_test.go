package autoscale_test

import (
	"slices"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/autoscale"
	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
	"berth/placement"
	"berth/spec"
)

// runs adds a running gang that uses the machines whole.
func runs(f *autoscale.Facts, id berth.JobID, t berth.TenantID, machines ...berth.MachineID) *placement.Running {
	r := spec.Request{Members: len(machines), GPUs: gpus, GPUMilli: 1000, Execution: spec.AtLeastOnce}
	f.Classes[r.Class()] = r
	x := placement.Running{Job: id, Tenant: t, Class: r.Class(), Version: 1, Attempt: 1, SubmittedAt: now.Add(-3 * time.Hour),
		StartedAt: now.Add(-2 * time.Hour), TimeLimit: 5 * time.Hour}
	for i := range f.Machines {
		m := &f.Machines[i]
		if !slices.Contains(machines, m.ID) {
			continue
		}
		grant := berth.Grant{Machine: m.ID, Capacity: m.Total}
		m.Used = m.Total
		for d := range m.GPUs {
			m.GPUs[d].UsedMilli = 1000
			grant.GPUs = append(grant.GPUs, berth.DeviceShare{Index: d, Milli: 1000})
		}
		x.Ranks = append(x.Ranks, grant)
	}
	f.Running = append(f.Running, x)
	return &f.Running[len(f.Running)-1]
}

// noticed adds a spot machine with a job that its cloud will end in two minutes.
func noticed(f *autoscale.Facts) *placement.Running {
	l := launched(f, "m1", "a", cloud.LaunchServing, berth.MachineDraining)
	l.DrainActor, l.StopAt, l.StopDeadline, l.EmptySince = "agent:m1", now, now.Add(110*time.Second), time.Time{}
	f.Leaving = map[berth.MachineID]time.Time{"m1": l.StopDeadline}
	return runs(f, "r1", "a", "m1")
}

// replaced adds the replacement of the machine of noticed.
func replaced(f *autoscale.Facts, s cloud.LaunchState, m berth.MachineState) *db.FleetMachine {
	f.Notes["r1"] = db.BurstNote{Job: "r1", Code: "launched", Machines: []berth.MachineID{"m2"}}
	return launched(f, "m2", "a", s, m)
}

func TestAMachineIsReplacedWithTheNotice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		change   func(*autoscale.Facts)
		requests string
		codes    string
		drain    []berth.MachineID
	}{
		{name: "while its job runs", change: func(f *autoscale.Facts) { noticed(f) },
			requests: "[1 big in default for a [r1]]", codes: "[r1:launched]"},
		{name: "not before the deadline is near", change: func(f *autoscale.Facts) {
			noticed(f)
			f.Leaving = nil
		}, requests: "[]", codes: "[]"},
		{name: "once: the replacement boots", change: func(f *autoscale.Facts) {
			noticed(f)
			replaced(f, cloud.LaunchRunning, "")
		}, requests: "[]", codes: "[r1:launched]"},
		{name: "and the replacement waits for the job", change: func(f *autoscale.Facts) {
			noticed(f)
			empty(replaced(f, cloud.LaunchServing, berth.MachineReady))
		}, requests: "[]", codes: "[r1:launched]"},
		{name: "also while the job stops", change: func(f *autoscale.Facts) {
			noticed(f).Stopping = true
			empty(replaced(f, cloud.LaunchServing, berth.MachineReady))
		}, requests: "[]", codes: "[r1:launched]"},
		{name: "also while the job uploads, and holds no capacity", change: func(f *autoscale.Facts) {
			r := noticed(f)
			replaced(f, cloud.LaunchServing, berth.MachineReady).EmptySince = now.Add(-time.Hour)
			r.Ranks = nil
		}, requests: "[]", codes: "[r1:launched]"},
		{name: "not once the job runs elsewhere", change: func(f *autoscale.Facts) {
			noticed(f)
			empty(replaced(f, cloud.LaunchServing, berth.MachineReady))
			f.Running = f.Running[:1]
			m := scaler.MachineOf(f.Offers[0].Offer, "free")
			m.Pool = spec.DefaultPool
			f.Machines = append(f.Machines, m)
			runs(f, "r1", "a", "free")
		}, requests: "[]", codes: "[]", drain: []berth.MachineID{"m2"}},
		{name: "a replacement without such a job is idle", change: func(f *autoscale.Facts) {
			noticed(f)
			empty(replaced(f, cloud.LaunchServing, berth.MachineReady))
			f.Running, f.Leaving = f.Running[:1], nil
		}, requests: "[]", codes: "[]", drain: []berth.MachineID{"m2"}},
		{name: "again if another job has taken the replacement", change: func(f *autoscale.Facts) {
			noticed(f)
			replaced(f, cloud.LaunchServing, berth.MachineReady).EmptySince = time.Time{}
			runs(f, "r2", "a", "m2")
		}, requests: "[1 big in default for a [r1]]", codes: "[r1:launched]"},
		{name: "not for a job that was ordered to stop, perhaps for good", change: func(f *autoscale.Facts) { noticed(f).Stopping = true },
			requests: "[]", codes: "[]"},
		{name: "not for a job that ends before", change: func(f *autoscale.Facts) { noticed(f).TimeLimit = 2*time.Hour + time.Minute },
			requests: "[]", codes: "[]"},
		{name: "not if the job has room elsewhere", change: func(f *autoscale.Facts) {
			noticed(f)
			m := scaler.MachineOf(f.Offers[0].Offer, "free")
			m.Pool = spec.DefaultPool
			f.Machines = append(f.Machines, m)
		}, requests: "[]", codes: "[]"},
		{name: "not while admission is paused", change: func(f *autoscale.Facts) {
			noticed(f)
			f.Paused = true
		}, requests: "[]", codes: "[]"},
		{name: "by another offer than the one that the notice has closed", change: func(f *autoscale.Facts) {
			noticed(f)
			refused(f, now.Add(3*time.Minute), false)
			f.Offers = append(f.Offers, offered("other", 9))
		}, requests: "[1 other in default for a [r1]]", codes: "[r1:launched]"},
		{name: "by one machine for a gang whose other machine stays", change: func(f *autoscale.Facts) {
			noticed(f)
			f.Running = f.Running[:1]
			launched(f, "m2", "a", cloud.LaunchServing, berth.MachineReady).EmptySince = time.Time{}
			runs(f, "r1", "a", "m1", "m2")
		}, requests: "[1 big in default for a [r1]]", codes: "[r1:launched]"},
		{name: "also if an admin launched it", change: func(f *autoscale.Facts) {
			noticed(f)
			f.Fleet = nil
		}, requests: "[1 big in default for a [r1]]", codes: "[r1:launched]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := full()
			c.change(f)
			running, machines := len(f.Running), f.Machines[1].Used
			o := autoscale.Decide(*f)
			if requested(o) != c.requests || codes(o) != c.codes || !slices.Equal(o.Drain, c.drain) {
				t.Errorf("requests %s, notes %s, drain %v\nwant %s, %s, %v", requested(o), codes(o), o.Drain, c.requests, c.codes, c.drain)
			}
			if len(f.Running) != running || f.Machines[1].Used != machines || len(f.Waiting) > 0 {
				t.Error("the facts have changed")
			}
		})
	}
}

// The loop launches the replacement in the pass after the notice, while the job runs.
func TestALoopReplacesAMachineWithTheNotice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sells(offered("big", 8), offered("other", 9))
	job := berth.NewJobID(time.Now())
	wait(w.facts, string(job), "default", 1)
	w.pass()
	w.facts.Waiting = nil
	w.join(gpus)
	m := &w.facts.Machines[1]
	*m = scaler.MachineOf(offered("big", 8).Offer, m.ID)
	m.Pool = spec.DefaultPool
	runs(w.facts, job, "default", m.ID)
	w.pass()
	if n := len(w.launches()); n != 1 {
		t.Fatalf("%d launches before the notice", n)
	}
	m.State = berth.MachineDraining
	w.exec(`UPDATE machines SET state = 'draining', reason = 'notice', drain_reason = 'notice', drain_deadline = now() + interval '110 s' WHERE id = $1`, m.ID)
	w.exec(`UPDATE launches SET stop_at = now(), stop_actor = 'agent:x', stop_reason = 'notice', stop_incarnation = 1`)
	for range 2 { // without the steps of the launches, which would retire a machine that has no work in the rows
		if err := w.loop.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	list := w.launches()
	if len(list) != 2 {
		t.Fatalf("%d launches after the notice: want the replacement", len(list))
	}
	notes, err := w.db.Scaling.Notes(t.Context())
	if err != nil || notes[job].Code != "launched" || len(notes[job].Machines) != 1 || notes[job].Machines[0] == m.ID {
		t.Errorf("notes %+v, %v", notes, err)
	}
}
