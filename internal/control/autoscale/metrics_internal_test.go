package autoscale

import (
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/db"
	"berth/internal/control/cloud"
)

// A breaker that time ends is open. One of a whole provider or pool waits for a person, also while one launch tries it.
// If no launch tries it for an hour, no admin needs to correct anything now.
func TestMetricsTellBreakersWithoutAnEndApart(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	breaker := func(scope cloud.Scope, key string, step int, until time.Time) db.ProbedBreaker {
		return db.ProbedBreaker{Breaker: cloud.Breaker{Scope: scope, Key: key, Step: step, Until: until}}
	}
	tried := breaker(cloud.ScopeProvider, "tried", 1, now.Add(-time.Hour))
	tried.Probing = true
	m := NewMetrics()
	m.show(map[cloud.LaunchState]db.LaunchCount{cloud.LaunchTerminating: {N: 2, Oldest: time.Hour}}, []db.ProbedBreaker{
		breaker(cloud.ScopeProvider, "quota/eu-1", 1, now.Add(time.Minute)),
		breaker(cloud.ScopeProvider, "rights", 2, time.Time{}),
		breaker(cloud.ScopeProvider, "uncallable", 1, now.Add(time.Minute)),
		breaker(cloud.ScopeProvider, "may be tried", 3, now.Add(-59*time.Minute)),
		breaker(cloud.ScopeProvider, "forgotten", 1, now.Add(-time.Hour)), tried,
		breaker(cloud.ScopePool, "lab/p", 1, time.Time{}), breaker(cloud.ScopePool, "lab/q", 0, time.Time{}),
		breaker(cloud.ScopePool, "lab/p/eu-1/a", 1, now.Add(time.Minute)),
		breaker(cloud.ScopeOffering, "lab/eu-1/a/big/spot", 3, now.Add(-time.Minute)),
	}, now)
	r := prometheus.NewRegistry()
	r.MustRegister(m)
	check := func(step string, want map[string]float64) {
		t.Helper()
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if v := m.GetGauge().GetValue(); v != 0 {
					got[f.GetName()+" "+m.GetLabel()[0].GetValue()] = v
				}
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", step, got, want)
		}
	}
	check("a leader", map[string]float64{"berth_cloud_launches terminating": 2, "berth_cloud_launch_state_seconds terminating": 3600,
		"berth_cloud_breakers_open provider": 3, "berth_cloud_breakers_open pool": 2,
		"berth_cloud_breakers_lasting provider": 4, "berth_cloud_breakers_lasting pool": 1})
	m.reset()
	check("no longer the leader", map[string]float64{})
}
