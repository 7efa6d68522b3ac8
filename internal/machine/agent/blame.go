package agent

import (
	"context"
	"slices"
	"time"

	"berth"
	"berth/activities/node"
)

const (
	infoLimit    = 10 * time.Second // for a word of the engine after an end
	restoreKills = time.Minute      // after its start an engine may still end what it cannot restore
	logPatience  = 10 * time.Second // for the last lines, before an end is told without them
	maxTailLine  = 512
)

// endedBySignal are the exit codes of a program that was told to stop: by
// SIGKILL, SIGTERM or SIGINT, or of a Go program that is process 1 and has no
// handler.
var endedBySignal = []int{2, 128 + 2, 128 + 9, 128 + 15}

// engineFault says what the engine has to do with an end that nobody here
// ordered, "" if nothing shows that it has.
//
// An engine without live-restore takes its containers along. Where it shuts
// down in order it stops them first and is still there to say so; where it is
// killed its successor ends them; and where nobody watched, that it began later
// than the container is what is left to see.
func (r *member) engineFault(e ending) string {
	c := e.container
	if c.Signaled {
		return "it was stopped through the container engine, and not by Berth"
	}
	ctx, cancel := context.WithTimeout(r.ctx, infoLimit)
	defer cancel()
	info, err := r.runtime().Info(ctx)
	if err == nil {
		r.sup.health.note(info)
	}
	if r.sup.health.keepsContainers() {
		return ""
	}
	switch {
	case err != nil && r.ctx.Err() == nil:
		return "the container engine went away as it ended"
	case !e.lostAt.IsZero() && c.FinishedAt.After(e.lostAt.Add(-time.Second)):
		return "the container engine stopped and took its containers along"
	case info.StartedAt.IsZero() || !c.StartedAt.Before(info.StartedAt):
		return ""
	case c.FinishedAt.After(info.StartedAt.Add(-time.Second)) && c.FinishedAt.Before(info.StartedAt.Add(restoreKills)):
		return "the container engine was started anew and ended what it found"
	case slices.Contains(endedBySignal, c.ExitCode) || c.ExitCode == 0:
		return "the container engine was restarted since it began, and took its containers along"
	}
	return ""
}

// xidLog is an inventory that also remembers the XIDs which leave a device
// usable: they are the application's fault, or notes.
type xidLog interface {
	// ApplicationXid is the latest of one of these devices since then, 0 for none.
	ApplicationXid(uuids []string, since time.Time) uint64
}

// applicationXid is the driver's last word on the rank's devices while it ran.
func (r *member) applicationXid(c node.Container) uint64 {
	log, ok := r.sup.cfg.GPUs.(xidLog)
	if !ok || len(r.claim.GPUs) == 0 {
		return 0
	}
	return log.ApplicationXid(r.claim.GPUs, c.StartedAt)
}

// remember keeps the last lines, for the sign in them.
func (s *shipper) remember(l node.LogLine) {
	text := l.Text
	if len(text) > maxTailLine {
		text = text[:maxTailLine]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tail) == 2*berth.SignLines {
		s.tail = slices.Delete(s.tail, 0, berth.SignLines)
	}
	s.tail = append(s.tail, text)
}

// lastLines are the last lines of the log, once the engine has given them all;
// one that keeps them for long is not waited for.
func (s *shipper) lastLines(ctx context.Context) []string {
	patience := time.NewTimer(logPatience)
	defer patience.Stop()
	select {
	case <-s.wasRead:
	case <-patience.C:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tail)
}
