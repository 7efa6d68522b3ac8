package backfill

import (
	"time"

	"berth"
	"berth/placement/cluster"
)

// HoldWindows holds the whole free capacity of the machines whose maintenance window is near. Only
// jobs that end before may use it, and no job is preempted there. HoldWindows returns the first time
// at which one of the other machines with a window closes; zero without such a machine.
func (r *Reservations) HoldWindows() (far time.Time) {
	for i := range r.cluster.Windows {
		w := &r.cluster.Windows[i]
		n := r.cluster.Nodes[w.Machine]
		if n == nil {
			continue
		}
		n.Near = w.Near(r.Now)
		switch {
		case !n.Placeable():
		case n.Near:
			x := Reservation{At: r.From(w.Closes), Grant: wholeMachine(n), Until: w.Ends, Firm: true}
			if !w.Ends.After(r.Now) {
				x.Until = time.Time{} // a window that is over stays in force until its removal
			}
			r.Keep(n, x)
		case far.IsZero() || w.Closes.Before(far):
			far = w.Closes
		}
	}
	return far
}

// wholeMachine is the total capacity of a machine, as a grant.
func wholeMachine(n *cluster.Node) berth.Grant {
	g := berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: n.Total}
	for _, d := range n.GPUs {
		g.GPUs = append(g.GPUs, berth.DeviceShare{Index: d.Index, Milli: cluster.Whole})
	}
	return g
}

// crosses reports whether the present job would run into the maintenance window of a machine if it
// started at a time. Near windows are reservations of the machine instead.
func (r *Reservations) crosses(n *cluster.Node, at time.Time) bool {
	return !r.bare && n.Window != nil && !n.Near && n.Window.Crosses(at, r.Limit)
}

// afterWindow reports whether a time is after the maintenance window of a machine that still gets
// work. All jobs leave the machine before.
func afterWindow(n *cluster.Node, at time.Time) bool {
	w := n.Window
	return w != nil && !n.Near && !w.Ends.IsZero() && !at.Before(w.Ends)
}

// withWindow appends the end of the machine's maintenance window to a list of releases, since the
// present job may start then. It reports whether the window has such an end.
func (r *Reservations) withWindow(n *cluster.Node, list []release) ([]release, bool) {
	if n.Window == nil || n.Near || n.Window.Ends.IsZero() {
		return list, false
	}
	return append(list, release{at: n.Window.Ends, grant: &nothing}), true
}

var nothing berth.Grant
