package agent

import (
	"fmt"
	"time"

	"berth/failure"
	"berth/wire"
)

// heeded is the notice of the machine's end for which the container was signaled to save.
type heeded struct {
	Notice string    `json:"notice,omitempty"` // seenNotices.EndID
	At     time.Time `json:"at,omitzero"`
	Until  time.Time `json:"until,omitzero"` // the machine's end; an exit long after it has other causes
}

// holds reports whether the machine is about to end at a time, by the notice.
func (h heeded) holds(at time.Time) bool {
	return h.Notice != "" && !at.Before(h.At) && at.Before(h.Until.Add(staleNotice))
}

// heed sends the checkpoint signal for a notice of the cloud, once for each notice, and returns the time
// at which it must be called again; zero: after a new notice. The number of the notice is stored before
// the signal, so that a later process does not repeat the signal.
//
// A notice of the machine's end reaches each container with a checkpoint.signal that is older than the
// notice, even if its program may exit on the signal: the time is short, and the exit counts as a drain
// (see exitOnNotice). Advice concerns only jobs with checkpoint.interval. Like an order to save, it waits for
// the first interval.
func (s *stopPlan) heed(now time.Time, seen seenNotices) (again time.Time) {
	k := s.claim.Spec.Checkpoint
	if k == nil || k.Signal == "" {
		return time.Time{}
	}
	switch end := seen.End; {
	case end != nil && s.heeds.Notice != seen.EndID && s.begun.Before(seen.EndSeen):
		s.heedEnd(now, seen.EndID, *end)
	case !s.heedAgain.IsZero() && !now.Before(s.heedAgain):
		s.signalForEnd(now)
	case !seen.Advice.IsZero() && !seen.Advice.Equal(s.advised) && k.Interval > 0:
		s.advised = seen.Advice
		s.remember(func(m *memo) { m.Advised = seen.Advice })
		if s.begun.Before(seen.AdviceHeard) {
			s.saveOnce(now)
		}
	}
	return s.heedAgain
}

// heedEnd carries out a notice of the machine's end.
func (s *stopPlan) heedEnd(now time.Time, id string, end wire.CloudNotice) {
	s.log.Info("signaling the job to save before the end of the machine", "notice", end.String())
	s.heeds = heeded{Notice: id, At: now, Until: end.Deadline}
	s.remember(func(m *memo) { m.Heeds = s.heeds })
	s.measureSave()
	if lead, took := end.StopBy().Sub(now), s.saveTook+s.uploader.took(); took > max(lead, 0) {
		s.reports.warn(standsOn(end, took, lead, s.uploader.newest()))
	}
	s.signalForEnd(now)
}

// standsOn describes a job whose next checkpoint will probably be too late.
func standsOn(end wire.CloudNotice, took, lead time.Duration, newest int64) string {
	stands := "and it has no complete one"
	if newest >= 0 {
		stands = fmt.Sprintf("so the job stands on its last complete one, of step %d", newest)
	}
	return fmt.Sprintf("%s, and its jobs must stop within %s; the last checkpoint took %s to write and store, %s",
		end.Reason(), max(lead, 0).Round(time.Second), took.Round(time.Second), stands)
}

// signalForEnd sends the signal, and schedules a repetition if the signal may not have arrived.
func (s *stopPlan) signalForEnd(now time.Time) {
	s.heedAgain = time.Time{}
	s.scheduleSave(now)
	if !s.requestSave(now) {
		s.heedAgain = now.Add(time.Second)
	}
}

// exitOnNotice returns the cause of an exit that the signal for a notice may have caused. A program
// without checkpoint.interval may save and exit with any code. A program with an interval continues after the
// signal, so its exit with code 0 is a regular end.
func (s *stopPlan) exitOnNotice(code int, at time.Time) (failure.ExitCause, string) {
	if s.cause != "" || !s.heeds.holds(at) || code == 0 && s.claim.Spec.Checkpoint.Interval > 0 {
		return "", ""
	}
	return failure.CauseOrdered, "ended after it was signaled to save, since the cloud ends this machine"
}

// remember changes the memo for later processes.
func (s *stopPlan) remember(edit func(*memo)) {
	m := s.scratch.memo()
	edit(&m)
	if err := s.scratch.remember(m); err != nil {
		s.log.Warn("cannot store the state of a signal to save", "err", err)
	}
}
