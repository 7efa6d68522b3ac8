package explain

import (
	"fmt"
	"strings"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/placement/queue"
	"berth/spec"
)

// windowCondition is the clause that the machine is not held for a maintenance window, which only jobs
// that end before may use.
func windowCondition() condition {
	return condition{name: "maintenance", fails: func(n *cluster.Node) bool { return n.Window != nil && n.Near },
		one: "is reserved for maintenance", many: "are reserved for maintenance",
		none: "every machine is reserved for maintenance"}
}

// windowText names the machines that close and the times.
func windowText(r ruledOut) string {
	var list []string
	for _, n := range r.some {
		list = append(list, fmt.Sprintf("%s is reserved for maintenance from %s", n.ID, stampText(n.Window.Closes)))
	}
	if more := r.count - len(r.some); more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, "; ")
}

func stampText(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// windowBlocker names the machines that the job could use if they did not close for maintenance
// before its end; ok is false without such a machine.
func (r *Reading) windowBlocker(e *queue.Entry) (b Blocker, ok bool) {
	var some []berth.MachineID
	var text string
	for i := range r.cluster.Windows {
		w := &r.cluster.Windows[i]
		n := r.cluster.Nodes[w.Machine]
		// Only the next window of a machine counts, only on a machine that takes work, and only if the job would
		// still run in it.
		if n == nil || n.Window != w || !n.Placeable() || !w.Crosses(r.Now, e.TimeLimit) || !matches(e.Class, n) {
			continue
		}
		if some = append(some, w.Machine); text == "" {
			text = windowReason(w, e, r.Now)
		}
	}
	if some == nil {
		return b, false
	}
	short := fmt.Sprintf("%s is reserved for maintenance", some[0])
	if more := len(some) - 1; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
		short = fmt.Sprintf("%d machines are reserved for maintenance", len(some))
	}
	const change = "set a time_limit that ends before, or wait for the end of the maintenance"
	return Blocker{Code: "maintenance", Text: text, Short: short, Change: change, Machines: some}, true
}

// windowReason says why a window keeps a job from its machine.
func windowReason(w *cluster.Window, e *queue.Entry, now time.Time) string {
	text := fmt.Sprintf("%s is reserved for maintenance from %s: this job ", w.Machine, stampText(w.Closes))
	if e.TimeLimit > 0 {
		return text + "may run until " + stampText(now.Add(e.TimeLimit))
	}
	lead := spec.Duration(w.Closes.Sub(w.Lead)).String()
	return text + "has no time_limit, and such jobs start no later than " + lead + " before"
}

// matches reports whether the class may use machines of this kind.
func matches(c *cluster.Class, n *cluster.Node) bool {
	for _, m := range c.Matches {
		if m.Kind == n.Kind {
			return true
		}
	}
	return false
}
