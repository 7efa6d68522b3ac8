package scaler

import (
	"cmp"
	"slices"
	"time"
)

// Bounds of the time for which a failed zone is closed.
const (
	firstClosed = 3 * time.Minute
	mostClosed  = time.Hour
)

// Breaker closes an offering after a failure. The zero value is open. Callers keep breakers by the scope
// of the failure, usually zone, type and market.
//
// In berthd a Breaker is a view of the strictest cloud.Breaker of an offer, which package cloud opens and closes.
// Failed and Succeeded are the simulator's own rules for opening and closing (berth-sim burst b); berthd does not call
// them.
type Breaker struct {
	Until time.Time     // closed until then
	Step  time.Duration // how long the last failure closed it; 0 after a success
	Probe bool          // one try is under way since the time until which it was closed
}

// Failed returns the breaker after a failure: closed for 3 minutes at first, then for twice as long
// after each further failure, up to an hour. cloud.Breaker.Trip is the rule of berthd.
func (b Breaker) Failed(now time.Time) Breaker {
	step := min(max(firstClosed, 2*b.Step), mostClosed)
	return Breaker{Until: now.Add(step), Step: step}
}

// Succeeded returns the breaker after a success. berthd deletes the rows of its breakers instead.
func (b Breaker) Succeeded() Breaker { return Breaker{} }

// Allows reports whether a try is allowed now. A breaker that was closed allows one try at a time.
func (b Breaker) Allows(now time.Time) bool { return b.Step == 0 || !b.Probe && !now.Before(b.Until) }

// Tried returns the breaker at the start of a try.
func (b Breaker) Tried() Breaker {
	b.Probe = b.Step > 0
	return b
}

// Zone is a place to try.
type Zone struct {
	Name     string
	Price    float64 // of all machines, US dollars an hour
	Machines int     // that are needed there; 0 where all zones need as many
	Breaker  Breaker
	Won      time.Time // when the last machine was had there; zero: not lately
}

// Order returns the zones that may be tried now, in the order to try them: cheapest first; of equal prices
// the zones with the fewest machines, then the fewest failures in a row, then the latest success, then by name.
func Order(zones []Zone, now time.Time) []Zone {
	list := slices.DeleteFunc(slices.Clone(zones), func(z Zone) bool { return !z.Breaker.Allows(now) })
	slices.SortStableFunc(list, func(a, b Zone) int {
		return cmp.Or(cmp.Compare(a.Price, b.Price), cmp.Compare(a.Machines, b.Machines),
			cmp.Compare(a.Breaker.Step, b.Breaker.Step), b.Won.Compare(a.Won), cmp.Compare(a.Name, b.Name))
	})
	return list
}
