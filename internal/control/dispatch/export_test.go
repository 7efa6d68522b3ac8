package dispatch

// NewOver returns a dispatcher over rows that a test keeps in memory, so that it
// may run in simulated time. All else is proved over the real database.
func NewOver(t Temporal, r rows, o Options) *Dispatcher { return newDispatcher(t, r, o) }
