package cluster

import (
	"math"

	"berth"
)

// Glance is an amount in 32-bit numbers, so that many are read quickly. A request that
// does not fit by glances does not fit.
type Glance struct{ CPU, Memory, GPU int32 }

// GlanceOf returns a capacity as a glance.
func GlanceOf(c berth.Capacity) Glance {
	return Glance{Short(c.CPUMilli), Short(c.MemoryMiB), Short(c.GPUMilli)}
}

// Within reports whether the amount may fit into o.
func (g Glance) Within(o Glance) bool {
	return g.CPU <= o.CPU && g.Memory <= o.Memory && g.GPU <= o.GPU
}

// Plus adds two glances; sums beyond 32 bits stay at the largest number.
func (g Glance) Plus(o Glance) Glance {
	return Glance{
		Short(int64(g.CPU) + int64(o.CPU)), Short(int64(g.Memory) + int64(o.Memory)), Short(int64(g.GPU) +
			int64(o.GPU)),
	}
}

// Short returns the nearest 32-bit number.
func Short(x int64) int32 { return int32(max(math.MinInt32, min(x, math.MaxInt32))) }
