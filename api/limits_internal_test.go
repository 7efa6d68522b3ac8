package api

import (
	"testing"

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
		setLimits(&m, wire.Job{Spec: &s})
		for i, limit := range want {
			if got := m.Series[i].Limit; got == nil || *got != limit {
				t.Errorf("member %d has no limit of %s of %v", member, m.Series[i].Metric, limit)
			}
		}
	}
}
