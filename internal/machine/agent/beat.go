package agent

import (
	"context"
	"time"
)

// beat is the grid of instants at which an agent does all its periodic work. Waking
// an idle process costs more than most of the work that it wakes for: looks at
// seventeen members at one instant cost one wake, at seventeen instants seventeen.
//
// Intervals share the grid by their multiples: work of every second meets work of
// every ten seconds each tenth time. The grid begins with the agent's process, so
// that the agents of a cluster do not act at one instant.
type beat struct{ origin time.Time }

func newBeat() beat { return beat{origin: time.Now()} }

// next returns the time to the next multiple of every: more than zero, at most every.
func (b beat) next(every time.Duration) time.Duration {
	return every - time.Since(b.origin)%every
}

// sleep waits for the next multiple of every, or returns the cause of ctx's end.
func (b beat) sleep(ctx context.Context, every time.Duration) error {
	return sleep(ctx, b.next(every))
}
