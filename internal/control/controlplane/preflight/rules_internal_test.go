package preflight

import (
	"testing"
	"time"

	"berth/db"
)

// state returns the state of the only finding that f adds.
func state(t *testing.T, f func(r *report)) State {
	t.Helper()
	r := &report{}
	f(r)
	if len(r.findings) != 1 {
		t.Fatalf("%d findings: %v", len(r.findings), r.findings)
	}
	return r.findings[0].State
}

func TestClocksMayDifferByASecond(t *testing.T) {
	t.Parallel()
	before := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	after := before.Add(3 * time.Second) // a slow answer is no difference
	for _, c := range []struct {
		at   time.Time
		want State
	}{
		{before, OK}, {after, OK}, {before.Add(time.Second), OK},
		{before.Add(-time.Second), OK}, {after.Add(time.Second), OK},
		{before.Add(-2 * time.Second), Advice}, {after.Add(9 * time.Second), Advice},
		{before.Add(-11 * time.Second), Fault}, {after.Add(time.Hour), Fault},
	} {
		if got := state(t, func(r *report) { r.clock(c.at, before, after) }); got != c.want {
			t.Errorf("database at %s, asked from %s to %s: %s, want %s", c.at, before, after, got, c.want)
		}
	}
}

func TestServersThatCannotServe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		found db.Inspection
		want  State
	}{
		"good":    {db.Inspection{Server: 150004, Conns: 100}, OK},
		"old":     {db.Inspection{Server: 140009, Conns: 100}, Fault},
		"standby": {db.Inspection{Server: 150004, Conns: 100, Standby: true}, Fault},
	} {
		if got := state(t, func(r *report) { r.server("db", c.found) }); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	for version, want := range map[string]bool{
		"1.28.3": true, "0.99.0": true, "1.29.0": false, "1.32.1": false, "2.0.0": false, "main": false, "": false,
	} {
		if got := older(version); got != want {
			t.Errorf("Temporal %q is too old: %v, want %v", version, got, want)
		}
	}
}

func TestATimeoutIsAddedToAnyConnectionString(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"postgres://u@h/d":                     "postgres://u@h/d?connect_timeout=5",
		"postgres://u@h/d?sslmode=disable":     "postgres://u@h/d?sslmode=disable&connect_timeout=5",
		"host=h user=u":                        "host=h user=u connect_timeout=5",
		"postgres://u@h/d?connect_timeout=100": "postgres://u@h/d?connect_timeout=100",
	} {
		if got := withTimeout(in, 5*time.Second); got != want {
			t.Errorf("%s becomes %s, want %s", in, got, want)
		}
	}
}
