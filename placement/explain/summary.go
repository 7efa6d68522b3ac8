package explain

import (
	"fmt"
	"slices"
	"strings"

	"berth"
	"berth/wire"
)

// summaryText renders the explanation as one line: the machines that each clause rules
// out, each machine counted once, and the machines that fit.
func summaryText(e Explanation, conditions []condition, after []ruledOut) string {
	var parts []string
	for _, c := range e.Clauses {
		if c.After > 0 {
			parts = append(parts, c.Text)
		}
	}
	text := ""
	switch {
	case e.Machines == 0:
		return "there are no machines"
	case e.FitNow == 1:
		text = fmt.Sprintf("1 of %d machines has room now", e.Machines)
	case e.FitNow > 0:
		text = fmt.Sprintf("%d of %d machines have room now", e.FitNow, e.Machines)
	case len(parts) == 1:
		// A single clause rules out all machines, so its own sentence says more than a count.
		i := slices.IndexFunc(after, func(r ruledOut) bool { return r.count > 0 })
		text, parts = noneText(conditions[i], after[i]), nil
	default:
		text, parts = noRoomText(e, conditions, after), nil
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	if e.Members != nil && e.Members.Now < e.Members.Asked {
		text += fmt.Sprintf("; room for %d of %d members", e.Members.Now, e.Members.Asked)
	}
	if e.Scarce != nil {
		text += "; " + e.Scarce.String()
	}
	if e.ScarceBlocks != nil {
		text += "; " + e.ScarceBlocks.String()
	}
	return text
}

// noRoomText describes machines of which none has room, for several reasons. If all machines that meet the other
// conditions lack the same free amount, the text begins with the amount: only there an end of jobs helps.
// Otherwise the text counts the machines of each reason.
func noRoomText(e Explanation, conditions []condition, after []ruledOut) string {
	var parts, others []string
	var short []int // the conditions on free amounts that rule out a machine
	kind := "no ready machine"
	for i, r := range after {
		if r.count == 0 {
			continue
		}
		text := countText(r, conditions[i])
		if conditions[i].needs != "" {
			short = append(short, i)
			text += mostText(conditions[i], r)
		} else {
			others = append(others, text)
			if conditions[i].name != "state" {
				kind = "no suitable machine"
			}
		}
		parts = append(parts, text)
	}
	if len(short) != 1 {
		return fmt.Sprintf("none of %d machines has room now: %s", e.Machines, strings.Join(parts, ", "))
	}
	text := strings.Replace(noneText(conditions[short[0]], after[short[0]]), "no machine", kind, 1)
	return fmt.Sprintf("%s; of %d machines, %s", text, e.Machines, strings.Join(others, ", "))
}

// shortText is summaryText in a few words: the one condition that explains the most. These
// are free amounts before all others, since a machine that fails no earlier condition lacks
// only these. The text is empty without a machine that fails a condition: Class counts each
// machine either as one with room or under the first condition that it fails.
func shortText(e Explanation, conditions []condition, after []ruledOut) (text string, shut bool) {
	if e.Members != nil && e.FitNow > 0 && e.Members.Now < e.Members.Asked {
		return fmt.Sprintf("no room: %d of %d members have room now", e.Members.Now, e.Members.Asked), false
	}
	if e.FitNow > 0 {
		return "", false
	}
	// The index of the condition with the greatest weight; -1: none rules out a machine.
	most := -1
	weight := func(i int) int { // free amounts outweigh any number of machines
		if conditions[i].needs != "" {
			return after[i].count * (e.Machines + 1)
		}
		return after[i].count
	}
	for i := range after {
		if after[i].count > 0 && (most < 0 || weight(i) > weight(most)) {
			most = i
		}
	}
	if most < 0 {
		return "", false
	}
	c, r := conditions[most], after[most]
	switch {
	case c.name == "state":
		return shutText(r), true
	case c.detail != nil:
		text = "no room: " + c.detail(r.some[0])
		if more := r.count - 1; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		return text, false
	case c.needs == "":
		return "no room: " + c.none, false
	case r.best != nil && c.most.of(r.best) > 0:
		return fmt.Sprintf("no room: needs %s, most free %s (%s)", c.needs, c.most.text(c.most.of(r.best)),
			r.best.ID), false
	}
	return "no room: needs " + c.needs + ", none free", false
}

// shutText names the first machines that accept no jobs, such as "m1 draining (new disk)". Machines
// that are ready, but blocked, show the reason of the block.
func shutText(r ruledOut) string {
	m := &r.some[0].Machine
	text := fmt.Sprintf("%s %s", m.ID, m.State)
	switch {
	case m.State == berth.MachineReady:
		text = fmt.Sprintf("%s %s", m.ID, m.Blocked)
	case (m.State == berth.MachineDraining || m.State == wire.MachineDrained) && m.Reason != "":
		text += " (" + m.Reason + ")"
	}
	if more := r.count - 1; more > 0 {
		text += fmt.Sprintf(" and %d more not ready", more)
	}
	return text
}
