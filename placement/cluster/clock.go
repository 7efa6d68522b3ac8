package cluster

import (
	"math"
	"time"
)

// origin is the zero of ages. It is recent enough for a float64 of seconds to resolve
// microseconds.
var origin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// SinceOrigin returns the time since the origin of ages. It is bounded at about 70
// years, so that sums with it stay in range.
func SinceOrigin(t time.Time) time.Duration {
	const most = 1 << 61
	return max(-most, min(t.Sub(origin), most))
}

// Tick is a time in whole seconds from the origin of ages, rounded down.
type Tick int32

// AtOnce is before all other ticks. NoTick is after them and means never.
const (
	AtOnce Tick = math.MinInt32
	NoTick Tick = math.MaxInt32
)

// TickOf returns the tick of a time.
func TickOf(t time.Time) Tick { return TickAt(t.Sub(origin)) }

// TickAt returns the tick of a time since the origin of ages.
func TickAt(d time.Duration) Tick {
	s := d / time.Second
	if d < s*time.Second {
		s--
	}
	return min(Tick(Short(int64(s))), NoTick-1)
}

// Latest returns the last tick of a search that a time bounds. The zero time bounds
// nothing.
func Latest(t time.Time) Tick {
	if t.IsZero() {
		return NoTick - 1
	}
	return TickOf(t)
}
