package autoscale_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/autoscale"
	"berth/internal/control/cloud"
	"berth/placement"
	"berth/spec"
)

// kept gives a tenant a least number of machines in a pool.
func kept(f *autoscale.Facts, t berth.TenantID, pool string, n int) {
	p := f.Policies[t]
	p.MinMachines = append(p.MinMachines, spec.BurstMin{Pool: pool, Machines: n})
	f.Policies[t] = p
}

func TestDecideKeepsALeastNumberOfMachines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		change   func(*autoscale.Facts)
		requests string
		missing  string
	}{
		{name: "machines are requested one by one, without a job", change: func(f *autoscale.Facts) { kept(f, "a", "", 2) },
			requests: "[1 big in default for a [] 1 big in default for a []]"},
		{name: "also by a policy that sends no job", change: func(f *autoscale.Facts) {
			f.Policies["a"] = spec.Burst{Allow: []string{"lab/here"}}
			kept(f, "a", "", 1)
		}, requests: "[1 big in default for a []]"},
		{name: "machines that live count", change: func(f *autoscale.Facts) {
			kept(f, "a", "", 3)
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady)
			launched(f, "m2", "a", cloud.LaunchUnresolved, "")
			launched(f, "m3", "a", cloud.LaunchServing, berth.MachineSuspect)
		}, requests: "[]"},
		{name: "a machine with a silent engine counts", change: func(f *autoscale.Facts) {
			kept(f, "a", "", 1)
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady)
			f.Machines[1].EngineSilentSince = now.Add(-10 * time.Minute)
		}, requests: "[]"},
		{name: "a blocked machine is replaced, since it may stay blocked", change: func(f *autoscale.Facts) {
			kept(f, "a", "", 1)
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady)
			f.Machines[1].Blocked = "did not stop jobs despite kill orders"
		}, requests: "[1 big in default for a []]"},
		{name: "a machine that joined after the mirror was read counts", change: func(f *autoscale.Facts) {
			kept(f, "a", "", 1)
			launched(f, "m1", "a", cloud.LaunchServing, "").MachineState = berth.MachineJoining
		}, requests: "[]"},
		{name: "a machine whose drain has ended since the mirror was read counts", change: func(f *autoscale.Facts) {
			kept(f, "a", "", 1)
			l := launched(f, "m1", "a", cloud.LaunchServing, berth.MachineDraining)
			l.MachineState, l.DrainActor, l.DrainedAt = berth.MachineReady, "", time.Time{}
		}, requests: "[]"},
		{name: "a machine that was retired after the mirror was read is replaced", change: func(f *autoscale.Facts) {
			kept(f, "a", "", 1)
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady).MachineState = berth.MachineRetired
		}, requests: "[1 big in default for a []]"},
		{name: "an empty machine stays while another has a silent engine", change: func(f *autoscale.Facts) {
			kept(f, "a", "", 1)
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady)
			f.Machines[1].EngineSilentSince = now.Add(-10 * time.Minute)
			empty(launched(f, "m2", "a", cloud.LaunchServing, berth.MachineReady))
		}, requests: "[]"},
		{name: "a lost machine is replaced", change: func(f *autoscale.Facts) {
			kept(f, "a", "", 1)
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineLost)
		}, requests: "[1 big in default for a []]"},
		{name: "a machine whose end is requested is replaced", change: func(f *autoscale.Facts) {
			kept(f, "a", "", 1)
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady).StopAt = now
		}, requests: "[1 big in default for a []]"},
		{name: "an empty machine stays", change: func(f *autoscale.Facts) {
			kept(f, "a", "", 1)
			empty(launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady))
		}, requests: "[]"},
		{name: "a machine that a restored database had lost counts", change: func(f *autoscale.Facts) {
			kept(f, "a", "", 2)
			kept(f, "b", "", 1)
			launched(f, "m1", "b", cloud.LaunchServing, berth.MachineReady)
			f.Adopted = []db.Adopted{{Pool: spec.DefaultPool, Type: "big"}, {Pool: "other", Type: "big"}}
		}, requests: "[1 big in default for a []]"},
		{name: "a lost machine of another type does not count", change: func(f *autoscale.Facts) {
			f.Policies["a"] = spec.Burst{Allow: []string{"lab/here"}, MinMachines: []spec.BurstMin{{Machines: 1, Types: []string{"big"}}}}
			f.Adopted = []db.Adopted{{Pool: spec.DefaultPool, Type: "other"}}
		}, requests: "[1 big in default for a []]"},
		{name: "nothing is launched while admission is paused", change: func(f *autoscale.Facts) {
			f.Paused = true
			kept(f, "a", "", 1)
		}, requests: "[]", missing: "[a/default 1 paused]"},
		{name: "nothing is launched beyond the spend", change: func(f *autoscale.Facts) {
			spent(f, 60, 40)
			kept(f, "a", "", 1)
		}, requests: "[]", missing: "[a/default 1 budget]"},
		{name: "a pool of another tenant has none", change: func(f *autoscale.Facts) {
			f.Accounts.Providers["lab"] = cloud.Account{Regions: []string{"here"}, Pools: map[string]json.RawMessage{"theirs": nil}}
			f.Pools = []placement.Pool{{Name: "theirs", Tenants: []berth.TenantID{"b"}}}
			kept(f, "a", "theirs", 2)
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady).Pool = "theirs" // from before the rule
		}, requests: "[]", missing: "[a/theirs 2 forbidden]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := full()
			c.change(f)
			o := autoscale.Decide(*f)
			missing := ""
			for _, m := range o.Missing {
				missing = fmt.Sprintf("[%s/%s %d %s]", m.Tenant, m.Pool, m.Machines, m.Why)
			}
			if requested(o) != c.requests || missing != c.missing || o.Drain != nil {
				t.Errorf("requests %s, missing %s, drain %v\nwant %s, %s", requested(o), missing, o.Drain, c.requests, c.missing)
			}
		})
	}
}

// The leader launches the least number without a job, once, and replaces a machine that is lost.
func TestALoopKeepsALeastNumberOfMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sells(offered("big", 8))
	if err := w.db.Burst.Set(t.Context(), "default", spec.Burst{Allow: []string{"lab/here"}, Idle: spec.Duration(time.Minute),
		MinMachines: []spec.BurstMin{{Machines: 2, Types: []string{"big"}}}}, "user:test"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.pass()
		w.join(gpus)
	}
	list := w.launches()
	if len(list) != 2 || list[0].State != string(cloud.LaunchServing) {
		t.Fatalf("launches %+v: want 2", list)
	}
	w.exec(`UPDATE launches SET empty_since = now() - interval '1 hour'`)
	w.pass()
	if state := w.machine(list[0].Machine); state != berth.MachineReady {
		t.Errorf("an empty machine of the least number is %s", state)
	}
	w.exec(`UPDATE machines SET state = 'lost' WHERE id = $1`, list[0].Machine)
	for i := range w.facts.Machines {
		if w.facts.Machines[i].ID == list[0].Machine {
			w.facts.Machines[i].State = berth.MachineLost
		}
	}
	w.pass()
	if list = w.launches(); len(list) != 3 {
		t.Errorf("%d launches after the loss of a machine: want a third one", len(list))
	}
	if n, err := w.db.Scaling.Notes(t.Context()); err != nil || len(n) != 0 {
		t.Errorf("notes %v, %v", n, err)
	}
}

// The metric counts each machine that is not in service, for whatever reason.
func TestMachinesOutOfServiceAreCounted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*autoscale.Facts)
		want   int
	}{
		"in service": {func(f *autoscale.Facts) {
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady)
			launched(f, "m2", "a", cloud.LaunchServing, berth.MachineSuspect)
		}, 0},
		"one is launched, one boots": {func(f *autoscale.Facts) { launched(f, "m1", "a", cloud.LaunchSent, "") }, 2},
		"beyond the spend":           {func(f *autoscale.Facts) { spent(f, 60, 40) }, 2},
		"paused":                     {func(f *autoscale.Facts) { f.Paused = true }, 2},
		"adopted":                    {func(f *autoscale.Facts) { f.Adopted = []db.Adopted{{Pool: spec.DefaultPool, Type: "big"}} }, 1},
	} {
		f := full()
		kept(f, "a", "", 2)
		c.change(f)
		if o := autoscale.Decide(*f); o.OutOfService != c.want {
			t.Errorf("%s: %d out of service, want %d", name, o.OutOfService, c.want)
		}
	}
}

// A launch that the database refuses is missing, as one that the pass does not decide.
func TestALoopLogsKeptMachinesThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sells(offered("big", 8))
	if err := w.db.Burst.Set(t.Context(), "default", spec.Burst{Allow: []string{"lab/here"}, MinMachines: []spec.BurstMin{{Machines: 2}}},
		"user:test"); err != nil {
		t.Fatal(err)
	}
	w.exec(`UPDATE cluster SET incarnation = incarnation + 1`) // nothing is launched before the first list of the cloud
	var log bytes.Buffer
	w.loop.Logger = slog.New(slog.NewTextHandler(&log, nil))
	w.pass()
	const want = `msg="fewer machines than min_machines" tenant=default pool=default missing=2 reason=closed`
	if !strings.Contains(log.String(), want) {
		t.Errorf("log: %s", log.String())
	}
}

// The tenants below keep no machines by the policy of a tenant above.
func TestPoliciesOfTenantsBelowKeepNoMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	if err := w.db.Tenants.Create(ctx, spec.NewTenant{ID: "below", Parent: "default"}); err != nil {
		t.Fatal(err)
	}
	if err := w.db.Burst.Set(ctx, "default", spec.Burst{MinMachines: []spec.BurstMin{{Machines: 1}}}, "user:test"); err != nil {
		t.Fatal(err)
	}
	policies, err := w.db.Burst.Policies(ctx)
	if err != nil || len(policies["default"].MinMachines) != 1 || policies["below"].MinMachines != nil {
		t.Errorf("%+v, %v", policies, err)
	}
	row, err := w.db.Burst.Get(ctx, "below")
	if err != nil || row.Above.MinMachines != nil || row.Effective.MinMachines != nil {
		t.Errorf("%+v, %v", row, err)
	}
}

// The offering that gave a machine last is tried first among equal ones.
func TestALoopTriesTheZoneThatSucceededLast(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	zone := func(name string) db.OfferRow {
		o := offered("big", 8)
		o.Zone = name
		return o
	}
	w.sells(zone("b")) // the only one at first
	wait(w.facts, string(berth.NewJobID(time.Now())), "default", 1)
	w.pass()
	w.sells(zone("a"), zone("b"))
	wait(w.facts, string(berth.NewJobID(time.Now())), "default", 1)
	w.pass()
	list := w.launches()
	if len(list) != 2 || list[0].Zone != "b" || list[1].Zone != "b" {
		t.Errorf("launches %+v: want two in zone b", list)
	}
}
