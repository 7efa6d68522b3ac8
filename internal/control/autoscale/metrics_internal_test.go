package autoscale

import (
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/db"
	"berth/internal/control/cloud"
)

// A breaker with an end is open, and one without an end waits for a person too.
func TestMetricsTellBreakersWithoutAnEndApart(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	breaker := func(scope cloud.Scope, step int, until time.Time) db.ProbedBreaker {
		return db.ProbedBreaker{Breaker: cloud.Breaker{Scope: scope, Step: step, Until: until}}
	}
	m := NewMetrics()
	m.show(map[cloud.LaunchState]db.LaunchCount{cloud.LaunchTerminating: {N: 2, Oldest: time.Hour}}, []db.ProbedBreaker{
		breaker(cloud.ScopeProvider, 1, now.Add(time.Minute)), breaker(cloud.ScopeProvider, 2, time.Time{}),
		breaker(cloud.ScopePool, 1, time.Time{}), breaker(cloud.ScopePool, 0, time.Time{}),
		breaker(cloud.ScopeOffering, 3, now.Add(-time.Minute)),
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
		"berth_cloud_breakers_open provider": 2, "berth_cloud_breakers_open pool": 1,
		"berth_cloud_breakers_lasting provider": 1, "berth_cloud_breakers_lasting pool": 1})
	m.reset()
	check("no longer the leader", map[string]float64{})
}
