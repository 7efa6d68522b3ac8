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

// noStart are the reasons for which no start is known, by the code of the blocker that decides. A job
// without an entry waits for the ends of other jobs.
var noStart = map[string]string{
	"held": "on hold", "paused": "starts are paused", "control_plane": "the control plane does not keep up",
	"not_accepted": "the control plane has not picked it up", "needs": "it needs other jobs",
	"quota": "the quota does not allow it", "parallel": "its array runs as many as it may",
	"unsatisfiable": "no machine can run it", "no_machines": "no machine has joined",
	"engine_silent": "container engines do not answer", "maintenance": "machines are reserved for maintenance",
}

// unknownStart is the text for a job without an estimated start, with the reason. If only other jobs keep the
// job waiting, the reason is that the ends of those jobs are unknown. run is the job's own expected run time; nil
// if too few jobs have ended to predict any.
func unknownStart(list []wire.Blocker, f wire.Fit, run *wire.RunTime) string {
	// A server of an earlier version names no machines in the blocker no_room.
	shut := slices.ContainsFunc(f.Clauses, func(c wire.FitClause) bool {
		return c.After == f.Machines && c.Name == "state"
	})
	running, ahead := false, false
	for _, b := range list {
		if text := noStart[b.Code]; text != "" {
			return "unknown (" + text + ")"
		}
		if b.Code == "no_room" && (shut || len(b.Machines) > 0) {
			return "unknown (no machine that could run it accepts jobs)"
		}
		running = running || b.Code == "no_room"
		ahead = ahead || b.Code == "behind" || b.Code == "reserved"
	}
	who := "running jobs"
	switch {
	case !running && !ahead:
		return "unknown"
	case !running:
		who = "jobs ahead"
	case ahead:
		who = "running jobs or jobs ahead"
	}
	if run != nil {
		return "unknown (" + who + " have no time_limit)"
	}
	return "unknown (" + who + " have no time_limit, and too few jobs have ended to predict)"
}

// startCell formats an estimated start for a table: the time until then.
func startCell(at *time.Time, now time.Time) string {
	switch {
	case at == nil:
		return "unknown"
	case !at.After(now):
		return "now"
	}
	return "in " + span(at.Sub(now))
}
