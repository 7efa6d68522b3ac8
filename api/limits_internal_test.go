package api

import (
	"testing"

	"berth"
	"berth/spec"
	"berth/wire"
)

func TestTheLimitsOfAMemberAreThoseOfItsGroup(t *testing.T) {
	t.Parallel()
	s := spec.Job{Image: "busybox", Groups: []spec.Group{
		{Name: "head"},
		{Name: "worker", Resources: spec.GroupResources{CPUs: new(spec.MilliCPU(2000)), Memory: new(spec.MiB(64))}},
	}}.WithDefaults()
	for member, want := range [][2]float64{{1, float64(spec.DefaultMemory << 20)}, {2, 64 << 20}} {
		m := wire.MemberMetrics{Attempt: 1, Member: member,
			Series: []wire.MetricSeries{{Metric: wire.MetricCPU}, {Metric: wire.MetricMemory}}}
		setLimits(&m, wire.Job{Spec: &s}, nil)
		for i, limit := range want {
			if got := m.Series[i].Limit; got == nil || *got != limit {
				t.Errorf("member %d has no limit of %s of %v", member, m.Series[i].Metric, limit)
			}
		}
	}
}

// The head ran out of memory, so its group alone has more.
func TestOnlyTheGroupThatGrewShowsMoreMemory(t *testing.T) {
	t.Parallel()
	s := spec.Job{Image: "busybox", Retry: spec.RetryPolicy{OnOOM: "grow"}, Groups: []spec.Group{{Name: "head"}, {Name: "worker", Members: 2}}}.WithDefaults()
	job := wire.Job{Spec: &s, Attempts: []berth.Attempt{{Number: 1, Outcome: &berth.Reason{Code: berth.ReasonOOM}}, {Number: 2}}}
	was := float64(spec.DefaultMemory << 20)
	for _, c := range []struct {
		attempt, member int
		grown           map[int]spec.MiB
		want            float64 // 0: no limit is known
	}{
		{1, 0, nil, was},
		{2, 0, map[int]spec.MiB{0: spec.DefaultMemory * 3 / 2, 1: spec.DefaultMemory}, was * 1.5},
		{2, 1, map[int]spec.MiB{0: spec.DefaultMemory * 3 / 2, 1: spec.DefaultMemory}, was},
		{2, 1, map[int]spec.MiB{}, 0}, // archived
	} {
		m := wire.MemberMetrics{Attempt: c.attempt, Member: c.member, Series: []wire.MetricSeries{{Metric: wire.MetricMemory}}}
		setLimits(&m, job, c.grown)
		if got := m.Series[0].Limit; (got == nil) != (c.want == 0) || got != nil && *got != c.want {
			t.Errorf("attempt %d, member %d: limit is %v, want %v", c.attempt, c.member, got, c.want)
		}
	}
}
