package main

import (
	"fmt"
	"slices"
	"time"

	"berth/wire"
)

// jobReason returns the text of the column REASON: for a waiting job why it waits, then how
// its last attempt ended; for another job the reason of its status.
func jobReason(j wire.Job) string {
	if j.Waiting == nil {
		return whyText(j.Reason, j.CachedFrom)
	}
	text := j.Waiting.Message
	if j.Reason != nil && j.Reason.Message != text {
		text += "; last attempt: " + reasonText(j.Reason)
	}
	return text
}

// soonOver are the codes of reasons that usually pass within a second. A command that waits
// does not show them: they would only flicker.
var soonOver = []string{"not_accepted", "ready", "unknown"}

// waitCode returns the code of the reason for which a job waits, "" for none worth showing.
func waitCode(j wire.Job) string {
	if j.Waiting == nil || slices.Contains(soonOver, j.Waiting.Code) {
		return ""
	}
	return j.Waiting.Code
}

// addWaiting adds why a job waits, with its place and its estimated start, and the reason of
// its status.
func addWaiting(a *app, s *sheet, j wire.Job) {
	if w := j.Waiting; w != nil {
		text := a.outTerm.paint(warn, oneLine(w.Message))
		if w.Position > 0 {
			text += fmt.Sprintf(" (place %d in the queue)", w.Position)
		}
		s.add("waiting", text)
		if w.EstimatedStart != nil {
			s.add("starts", startText(a, w.EstimatedStart, w.Reserved, w.EstimatedBy))
		}
	}
	if j.Reason != nil {
		s.add("reason", oneLine(reasonText(j.Reason)))
		s.add("hint", oneLine(j.Reason.Hint))
	}
}

// startCell formats an estimated start for a table: the time until then, "-" if unknown.
func startCell(at *time.Time, now time.Time) string {
	switch {
	case at == nil:
		return "-"
	case !at.After(now):
		return "now"
	}
	return "in " + span(at.Sub(now))
}
