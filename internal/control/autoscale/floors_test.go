package autoscale_test

import (
	"testing"
	"time"

	"berth"
	"berth/internal/control/autoscale"
	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
)

// A machine that was launched for a job of an untrusted tenant, and that does not meet the security floors, is not
// followed by further ones.
func TestMachinesBelowTheFloorsAreNotLaunchedAgain(t *testing.T) {
	t.Parallel()
	// joined adds a machine of tenant a that joined a time ago, with a verdict or without.
	joined := func(f *autoscale.Facts, ago time.Duration, unmet string, unjudged bool) {
		l := launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady)
		l.JoinedAt = now.Add(-ago)
		m := &f.Machines[len(f.Machines)-1]
		m.Unmet, m.Unjudged = unmet, unjudged
	}
	known := func(f *autoscale.Facts, unmet string, seen time.Duration) {
		row := scaler.MachineOf(f.Offers[0].Offer, "m0")
		row.Unmet = unmet
		f.Joined = map[string]autoscale.Joined{"lab/here/big": {Row: row, At: now.Add(-seen)}}
	}
	unjudged := func(f *autoscale.Facts, seen time.Duration) {
		known(f, "no report", seen)
		j := f.Joined["lab/here/big"]
		j.Row.Unjudged = true
		f.Joined["lab/here/big"] = j
	}
	const one = "[1 big in default for a [j1]]"
	for _, c := range []struct {
		name     string
		change   func(*autoscale.Facts)
		requests string
		codes    string
	}{
		{"a machine of which nothing is known is launched", func(*autoscale.Facts) {}, one, "[j1:launched]"},
		{"while it boots, it covers the job", func(f *autoscale.Facts) { launched(f, "m1", "a", cloud.LaunchSent, "") }, "[]", "[j1:covered]"},
		{"and before the verdict, too", func(f *autoscale.Facts) { joined(f, time.Minute, "no report", true) }, "[]", "[j1:covered]"},
		{"an agent that never reports is no machine for the job", func(f *autoscale.Facts) { joined(f, 6*time.Minute, "no report", true) }, "[]", "[j1:no_fit]"},
		{"nor is a machine below the floors", func(f *autoscale.Facts) { joined(f, time.Minute, "runc is old", false) }, "[]", "[j1:no_fit]"},
		{"after its end no further one is launched", func(f *autoscale.Facts) { known(f, "runc is old", 23*time.Hour) }, "[]", "[j1:no_fit]"},
		{"for a day", func(f *autoscale.Facts) { known(f, "runc is old", 24*time.Hour) }, one, "[j1:launched]"},
		{"before its verdict, a machine counts like the one before it", func(f *autoscale.Facts) {
			known(f, "runc is old", time.Hour)
			joined(f, time.Minute, "no report", true)
		}, "[]", "[j1:no_fit]"},
		{"the last machine counts", func(f *autoscale.Facts) {
			joined(f, time.Hour, "runc is old", false)
			l := launched(f, "m0", "a", cloud.LaunchServing, berth.MachineLost)
			l.JoinedAt = now.Add(-time.Minute)
		}, one, "[j1:launched]"},
		{"a machine without a verdict teaches", func(f *autoscale.Facts) { unjudged(f, 59*time.Minute) }, "[]", "[j1:no_fit]"},
		{"for an hour", func(f *autoscale.Facts) { unjudged(f, time.Hour) }, one, "[j1:launched]"},
		{"a machine that is lost before its verdict is replaced", func(f *autoscale.Facts) {
			joined(f, time.Minute, "no report", true)
			f.Fleet[len(f.Fleet)-1].MachineState = berth.MachineLost
		}, one, "[j1:launched]"},
		{"trusted tenants get machines below the floors", func(f *autoscale.Facts) {
			f.Tenants[0].Untrusted = false
			known(f, "runc is old", time.Hour)
		}, one, "[j1:launched]"},
	} {
		f := full()
		f.Tenants[0].Untrusted = true // root, above a
		wait(f, "j1", "a", 1)
		c.change(f)
		f.Planner.Policy.Backfill = 0
		o := autoscale.Decide(*f)
		if requested(o) != c.requests || codes(o) != c.codes {
			t.Errorf("%s: %s %s, want %s %s", c.name, requested(o), codes(o), c.requests, c.codes)
		}
	}
}
