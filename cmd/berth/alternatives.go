package main

import (
	"fmt"

	"berth/wire"
)

// addAlternatives adds the other hardware of a job with alternatives: the numbers as in BERTH_ALTERNATIVE,
// and the wait before each.
func addAlternatives(s *sheet, j wire.Job) {
	if j.Alternative == nil || j.Spec == nil {
		return
	}
	full, label := j.Spec.WithDefaults(), "hardware"
	for i := range 1 + len(full.Alternatives) {
		text := fmt.Sprintf("%d: %s", i, resourcesText(full.ResourcesOf(i)))
		if i > 0 && full.Alternatives[i-1].After > 0 {
			text += fmt.Sprintf(", after %s", full.Alternatives[i-1].After)
		}
		switch {
		case i != *j.Alternative || j.Attempt == 0:
		case j.Status.HoldsCapacity():
			text += " (in use)"
		default:
			text += " (used last)"
		}
		s.add(label, text)
		label = " "
	}
}

// addChoices adds each hardware that a job may take: from when on, and why it does not get it now. In a plan
// the waits have not begun.
func addChoices(a *app, s *sheet, list []wire.HardwareFit, plan bool) {
	label := "hardware"
	for _, x := range list {
		s.add(label, choiceText(a, x, plan))
		label = " "
	}
}

// nextChoice describes the first hardware after the preferred one, with the number of further ones; "" without
// another.
func nextChoice(a *app, list []wire.HardwareFit) string {
	if len(list) < 2 {
		return ""
	}
	text := choiceText(a, list[1], false)
	if more := len(list) - 2; more > 0 {
		text += fmt.Sprintf("; %d more (-o wide)", more)
	}
	return text
}

// choiceText describes one hardware for addChoices.
func choiceText(a *app, x wire.HardwareFit, plan bool) string {
	text := fmt.Sprintf("%d: %s", x.Number, resourcesText(x.Resources))
	switch {
	case x.OpensAt != nil:
		text += ", from " + clock(*x.OpensAt, a.now())
	case plan && x.After > 0:
		text += ", after " + x.After.String()
	case x.After > 0:
		text += ", open"
	}
	if len(x.Blockers) > 0 {
		return text + ": " + a.outTerm.paint(warn, oneLine(x.Blockers[0].Message))
	}
	return text + ": " + oneLine(x.Room)
}
