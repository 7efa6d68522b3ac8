package dispatch

import "time"

// SweepMachinesEvery sets the interval of the sweep, before Run.
func SweepMachinesEvery(m *Machines, every time.Duration) { m.every = every }

// NewOver returns a dispatcher over rows that a test keeps in memory, so that it
// may run in simulated time. All else is proved over the real database.
func NewOver(t Temporal, r rows, o Options) *Dispatcher { return newDispatcher(t, r, o) }
