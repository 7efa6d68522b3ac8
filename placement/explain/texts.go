package explain

import (
	"fmt"
	"strconv"
	"strings"

	"berth"
	"berth/placement/cluster"
	"berth/wire"
)

// described fills in the texts of an explanation. closed are the machines that could run the request, but
// accept no jobs.
func described(e Explanation, conditions []condition, after []ruledOut, closed ruledOut) Explanation {
	e.Summary = summaryText(e, conditions, after)
	e.Short, e.Shut = shortText(e, conditions, after)
	if closed.count == 0 || closed.count < e.FitEver {
		return e
	}
	for _, n := range closed.some {
		e.Closed = append(e.Closed, n.ID)
		e.Draining = e.Draining || n.State == berth.MachineDraining || n.State == wire.MachineDrained
	}
	// The conditions that other machines fail are no reason to wait: the request and the machines' equipment
	// would have to change.
	e.Short, e.Shut = shutText(closed), true
	if closed.count < e.Machines {
		e.Summary = "no machine that could run the job is ready " + machinesText(closed)
	}
	return e
}

// countText renders a number of machines that fail a condition, and names machines that accept no jobs or have
// a detail.
func countText(r ruledOut, cond condition) string {
	text := strconv.Itoa(r.count) + " " + cond.many
	if r.count == 1 {
		text = "1 " + cond.one
	}
	switch {
	case r.count == 0:
	case cond.name == "state":
		text += " " + machinesText(r)
	case cond.detail != nil:
		text += " " + detailText(cond, r)
	}
	return text
}

// machinesText names the first machines that accept no jobs, with the reason of each, in parentheses.
func machinesText(r ruledOut) string {
	var list []string
	for _, n := range r.some {
		list = append(list, stateText(&n.Machine))
	}
	if more := r.count - len(r.some); more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return "(" + strings.Join(list, "; ") + ")"
}

// noneText describes a condition that no machine meets.
func noneText(c condition, r ruledOut) string {
	switch {
	case c.name == "state":
		return c.none + " " + machinesText(r)
	case c.name == "maintenance":
		return windowText(r)
	case c.detail != nil:
		return c.none + " " + detailText(c, r)
	}
	return c.none + mostText(c, r)
}

// mostText names the machine with the largest amount among the machines that fail a condition, such as
// " (most: 0.5 on m1)"; "" if no machine has any.
func mostText(c condition, r ruledOut) string {
	if r.best == nil || c.most.of(r.best) <= 0 {
		return ""
	}
	return fmt.Sprintf(" (most: %s on %s)", c.most.text(c.most.of(r.best)), r.best.ID)
}

// stateText says why a machine gets no jobs.
func stateText(m *cluster.Machine) string {
	switch {
	case m.State == berth.MachineReady:
		return fmt.Sprintf("%s %s", m.ID, m.Blocked)
	case (m.State == berth.MachineDraining || m.State == wire.MachineDrained) && m.Reason != "":
		return fmt.Sprintf("%s is %s: %s", m.ID, m.State, m.Reason)
	}
	return fmt.Sprintf("%s is %s", m.ID, m.State)
}
