package cluster

import (
	"math"
	"time"
)

// origin is the zero of ages: near enough for a float64 to tell microseconds.
var origin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// SinceOrigin is a time, told from the origin of ages; those further away than
// some 70 years count as that far, so that what is added to it stays in range.
func SinceOrigin(t time.Time) time.Duration {
	const most = 1 << 61
	return max(-most, min(t.Sub(origin), most))
}

// Tick is a time in whole seconds from the origin of ages, rounded down.
type Tick int32

// AtOnce is before all other seconds, and noTick is after them: never.
const (
	AtOnce Tick = math.MinInt32
	NoTick Tick = math.MaxInt32
)

// TickOf returns the tick of a time.
func TickOf(t time.Time) Tick { return TickAt(t.Sub(origin)) }

// TickAt is a time, told from the origin of ages, in seconds.
func TickAt(d time.Duration) Tick {
	s := d / time.Second
	if d < s*time.Second {
		s--
	}
	return min(Tick(Short(int64(s))), NoTick-1)
}

// Latest is the last second in which something may be before a time that bounds
// a look; zero bounds nothing.
func Latest(t time.Time) Tick {
	if t.IsZero() {
		return NoTick - 1
	}
	return TickOf(t)
}
