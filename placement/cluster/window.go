package cluster

import (
	"slices"
	"strings"
	"time"

	"berth"
)

// Window is the next maintenance window of a machine.
type Window struct {
	ID      int64
	Machine berth.MachineID
	Closes  time.Time // no job may run on the machine from then on
	Lead    time.Time // no job without a time limit starts on the machine from then on
	Ends    time.Time // when the machine returns; zero: it does not return by itself
}

// Near reports whether the whole free capacity of the machine is held for the window.
func (w *Window) Near(now time.Time) bool { return !now.Before(w.Lead) }

// Crosses reports whether a job would run into the window if it started at a time and ran for its
// time limit; 0: it has none.
func (w *Window) Crosses(start time.Time, limit time.Duration) bool {
	switch {
	case !w.Ends.IsZero() && !start.Before(w.Ends):
		return false
	case limit > 0:
		return start.Add(limit).After(w.Closes)
	}
	return w.Near(start)
}

// Schedule replaces the maintenance windows. Of several windows of a machine the earliest counts: a
// job that ends before it ends before the others.
func (s *Cluster) Schedule(windows []Window) {
	for id := range s.windows {
		if n := s.Nodes[id]; n != nil {
			n.Window = nil
		}
	}
	s.Windows = slices.SortedFunc(slices.Values(windows), func(a, b Window) int {
		if c := strings.Compare(string(a.Machine), string(b.Machine)); c != 0 {
			return c
		}
		return a.Closes.Compare(b.Closes)
	})
	s.Windows = slices.CompactFunc(s.Windows, func(a, b Window) bool { return a.Machine == b.Machine })
	s.windows = make(map[berth.MachineID]*Window, len(s.Windows))
	for i := range s.Windows {
		w := &s.Windows[i]
		s.windows[w.Machine] = w
		if n := s.Nodes[w.Machine]; n != nil {
			n.Window = w
		}
	}
}
