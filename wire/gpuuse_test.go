package wire_test

import (
	"testing"

	"berth/wire"
)

// The kernel of a collective operation that waits for a peer looks busy by its utilization alone.
func TestAKernelThatWaitsIsNoWork(t *testing.T) {
	t.Parallel()
	is := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		claim string
		use   wire.GPUUse
		want  bool
	}{
		{"training", wire.GPUUse{Utilization: 0.97, MemoryBusy: is(0.4), Watts: is(560), LimitWatts: is(700)}, true},
		{"training that computes more than it reads", wire.GPUUse{Utilization: 1, MemoryBusy: is(0.02), Watts: is(650), LimitWatts: is(700)}, true},
		{"training of a small model", wire.GPUUse{Utilization: 0.6, MemoryBusy: is(0.12), Watts: is(180), LimitWatts: is(700)}, true},
		{"a kernel that waits", wire.GPUUse{Utilization: 1, MemoryBusy: is(0), Watts: is(125), LimitWatts: is(700)}, false},
		{"a kernel that waits, on a small device", wire.GPUUse{Utilization: 1, MemoryBusy: is(0.01), Watts: is(32), LimitWatts: is(72)}, false},
		{"a kernel that waits, power not known", wire.GPUUse{Utilization: 1, MemoryBusy: is(0)}, false},
		{"memory not known", wire.GPUUse{Utilization: 1, Watts: is(125), LimitWatts: is(700)}, false},
		{"no limit known", wire.GPUUse{Utilization: 1, MemoryBusy: is(0), Watts: is(600), LimitWatts: is(0)}, false},
		{"only the utilization is known", wire.GPUUse{Utilization: 0.01}, true},
		{"idle", wire.GPUUse{Utilization: 0, MemoryBusy: is(0), Watts: is(70), LimitWatts: is(700)}, false},
		{"not known", wire.GPUUse{Utilization: -1, MemoryBusy: is(0.5)}, false},
	} {
		if got := c.use.Works(); got != c.want {
			t.Errorf("%s: works is %v", c.claim, got)
		}
	}
}
