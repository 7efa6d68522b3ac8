package db_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/cloud"
	"berth/spec"
	"berth/wire"
)

// usage returns the rows of a filter, over all pages of two rows.
func usage(t *testing.T, d *db.DB, f db.UsageFilter) (all []wire.CloudUsage) {
	t.Helper()
	if f.At.IsZero() {
		f.Period, f.At = spec.SpendMonth, time.Now()
	}
	p := db.Paging{Limit: 2}
	for {
		list, next, err := d.Spend.Usage(t.Context(), f, p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, list...)
		if p.Cursor = next; next == "" {
			return all
		}
	}
}

func TestUsageContainsTheTenantsBelow(t *testing.T) {
	t.Parallel()
	d, ctx := budgeted(t, 10), t.Context()
	for m, tenant := range map[berth.MachineID]berth.TenantID{"v": "vision", "o": "org", "h": ""} {
		if err := launchFor(ctx, d, tenant, cheap, m, ""); err != nil {
			t.Fatal(err)
		}
	}
	run(t, d.Pool(), "v", "90 minutes")
	run(t, d.Pool(), "h", "90 minutes")
	mustExec(t, d.Pool(), `UPDATE launches SET state = 'terminating' WHERE machine IN ('v', 'h')`)
	mustExec(t, d.Pool(), `UPDATE launches SET state = 'failed', due_at = NULL WHERE machine IN ('v', 'h')`) // confirmed absent
	// All costs lie in the last two days, so the sum over the months of both ends has them.
	var names []berth.TenantID
	var settled, own, reserved float64
	for _, at := range slices.Compact([]time.Time{spec.SpendMonth.Start(time.Now().Add(-2 * time.Hour)), spec.SpendMonth.Start(time.Now())}) {
		names = nil
		for _, u := range usage(t, d, db.UsageFilter{Period: spec.SpendMonth, At: at}) {
			names = append(names, u.Tenant)
			if u.Tenant != "org" {
				continue
			}
			settled, own, reserved = settled+u.Settled, own+u.Own, reserved+u.Reserved
			if u.Limit != 10 || u.Share == nil || math.Abs(*u.Share-(u.Settled+u.Reserved)/10) > 1e-9 {
				t.Errorf("org: %+v", u)
			}
		}
	}
	if want := []berth.TenantID{"", "default", "lone", "org", "speech", "vision"}; !slices.Equal(names, want) {
		t.Errorf("rows of %v, want %v", names, want)
	}
	if settled < 3 || settled > 3.1 || own != 0 || reserved != 2 {
		t.Errorf("org: settled %g, own %g, reserved %g", settled, own, reserved)
	}
	for f, want := range map[db.UsageFilter]int{{Tenant: "org"}: 3, {Tenant: "org", Only: true}: 1, {Tenant: "lone"}: 1} {
		if rows := usage(t, d, f); len(rows) != want {
			t.Errorf("%+v: %+v", f, rows)
		}
	}
	_, _, err := d.Spend.Usage(ctx, db.UsageFilter{Tenant: "none", Period: spec.SpendDay, At: time.Now()}, db.Paging{})
	if berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("usage of an unknown tenant: %v", err)
	}
}

// Each level of a limit is reported once in its period, by one of several callers.
func TestLevelsOfALimitAreReportedOnce(t *testing.T) {
	t.Parallel()
	d, ctx := budgeted(t, 100), t.Context()
	setBurst(t, d, "org", spec.Burst{Allow: []string{"lab/eu-1"}, Spend: &spec.BurstSpend{Limit: 10, Warn: 0.5, StopNew: 0.8}})
	alerts := func() (levels []string) {
		t.Helper()
		results := make(chan []db.SpendAlert)
		for range 4 {
			go func() {
				list, err := d.Spend.Alert(ctx)
				if err != nil {
					t.Error(err)
				}
				results <- list
			}()
		}
		for range 4 {
			for _, a := range <-results {
				if a.Tenant != "org" || a.Limit != 10 {
					t.Errorf("%+v", a)
				}
				levels = append(levels, a.Level)
			}
		}
		return levels
	}
	launch := func(m berth.MachineID, hours time.Duration) {
		t.Helper()
		r := cheap
		r.Estimate = hours * time.Hour
		if err := launchFor(ctx, d, "vision", r, m, ""); err != nil {
			t.Fatal(err)
		}
	}
	launch("a", 2)
	if got := alerts(); got != nil {
		t.Errorf("at 40 %%: %v", got)
	}
	launch("b", 1)
	if got := alerts(); !slices.Equal(got, []string{"warn"}) {
		t.Errorf("at 60 %%: %v", got)
	}
	launch("c", 1)
	if got := alerts(); !slices.Equal(got, []string{"stop_new"}) {
		t.Errorf("at 80 %%: %v", got)
	}
	if got := alerts(); got != nil {
		t.Errorf("again: %v", got)
	}
	rows := usage(t, d, db.UsageFilter{Tenant: "org", Only: true})
	if a := rows[0].Alerts; len(a) != 2 || a[0].Level != "warn" || a[0].Used != 6 || a[1].Limit != 10 {
		t.Errorf("alerts of org: %+v", a)
	}
}

func TestOffersShowTheRefusalsOfTheirCloud(t *testing.T) {
	t.Parallel()
	d, ctx := dbtest.DB(t, db.Options{}), t.Context()
	offer := func(region, zone, gpus string) cloud.Offer {
		o := cloud.Offer{Offering: cloud.Offering{Region: region, Zone: zone, Type: "x", Market: cloud.Spot}, CPUs: 4,
			MemoryMiB: 1024, Price: 1, Source: "list", AsOf: time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)}
		if gpus != "" {
			o.GPUs, o.GPUType = 1, gpus
		}
		return o
	}
	all := []cloud.Offer{offer("r", "", "H100"), offer("r", "z", ""), offer("s", "", "A100")}
	if err := d.Offers.Replace(ctx, "lab", all, "berthd"); err != nil {
		t.Fatal(err)
	}
	for k, o := range map[cloud.Kind]cloud.Offer{cloud.Capacity: all[0], cloud.Quota: all[2]} {
		named, _ := cloud.Request{Provider: "lab", Offering: o.Offering}.Trips(&cloud.Error{Kind: k})
		if err := d.Launches.Trip(ctx, named, func(b cloud.Breaker, now time.Time) cloud.Breaker {
			return b.Trip(k, "no "+string(k), now)
		}); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for p := (db.Paging{Limit: 2}); ; {
		list, next, err := d.Offers.List(ctx, db.OfferFilter{Provider: "lab"}, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			if (o.Closed != "") != (o.ClosedUntil != nil) || !o.AsOf.Equal(all[0].AsOf) {
				t.Errorf("%+v", o)
			}
			got = append(got, o.Name()+": "+o.Closed)
		}
		if p.Cursor = next; next == "" {
			break
		}
	}
	if want := []string{"lab/r/x/spot: no capacity", "lab/r/z/x/spot: ", "lab/s/x/spot: no quota"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	list, _, err := d.Offers.List(ctx, db.OfferFilter{GPUType: "A100"}, db.Paging{})
	if err != nil || len(list) != 1 || list[0].Region != "s" {
		t.Errorf("offers with A100: %+v, %v", list, err)
	}
}

// An attempt costs the greatest of its shares of the machine, for the time for which it holds them.
func TestTheCostOfAnAttemptIsItsShareOfTheMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, insertLaunch, "m1", 1, "t1", "requested")
	mustExec(t, s.pool, `UPDATE launches SET state = 'failed', due_at = NULL`)
	mustExec(t, s.pool, `INSERT INTO launches (machine, n, pool, provider, region, type, market, incarnation, token, actor, price, created_at)
		VALUES ('m1', 2, 'p', 'test', 'r', 'x', 'spot', 1, 't2', 'user:test', 10, now() - interval '1 day')`)
	mustExec(t, s.pool, `UPDATE machines SET cpu_m = 4000, mem_mb = 16384, gpu_milli = 2000 WHERE id = 'm1'`)
	id := s.submit(nil)
	attempt := s.place(id, "m1")
	mustExec(t, s.pool, `UPDATE allocations SET reserved_at = now() - interval '30 minutes' WHERE job = $1`, id)
	s.claim(id, attempt, 0)
	job := s.job(id)
	// One of two GPUs for half an hour, at $10.
	if a := job.Attempts[0]; a.Cost == nil || *a.Cost < 2.5 || *a.Cost > 2.7 || job.Cost == nil || *job.Cost != *a.Cost {
		t.Errorf("attempt %+v, job cost %v", a, job.Cost)
	}
	// A call about the end has the same figures.
	s.signs()
	told := s.submit(hooks([]string{"running", "succeeded"}))
	again := s.place(told, "m1")
	mustExec(t, s.pool, `UPDATE allocations SET reserved_at = now() - interval '30 minutes' WHERE job = $1`, told)
	s.claim(told, again, 0)
	s.run(told)
	s.exit(told, again, 0, exited(0))
	s.settle(told, again)
	costs := one[string](s, `SELECT string_agg(concat(status, ':', round((body -> 'data' ->> 'cost')::numeric, 1),
		' ', round((body -> 'data' ->> 'attempt_cost')::numeric, 1)), ', ' ORDER BY seq) FROM notices WHERE job = $1`, told)
	if costs != "running: , succeeded:2.5 2.5" {
		t.Errorf("calls have the costs %q", costs)
	}
	own := s.submit(nil)
	s.place(own, "m2")
	if job := s.job(own); job.Cost != nil || job.Attempts[0].Cost != nil {
		t.Errorf("a job on a machine without a launch: %+v", job.Attempts)
	}
}
