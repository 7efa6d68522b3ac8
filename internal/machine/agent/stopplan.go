package agent

import (
	"context"
	"errors"
	"time"

	"berth"
	"berth/activities/node"
	"berth/failure"
	"berth/spec"
)

// stopPlan decides whether and how a running container is stopped, and carries that
// out: by the job's signal for a checkpoint, then SIGTERM, then SIGKILL. The first
// cause is the cause of the exit. Of the member's goroutine alone.
type stopPlan struct {
	*core
	orders   *orders
	scratch  *scratch
	gpus     *gpuHealth
	notices  *noticeBoard
	uploader *checkpointUploader // nil without checkpoints
	disk     *diskUser           // nil before the container runs
	stuck    *stuckBoard
	health   *engineHealth

	begun time.Time // when the container was started
	cause failure.ExitCause
	at    time.Time // when the agent began to stop it
	says  string

	stage    stage
	saveBy   time.Time // then SIGTERM, saved or not
	killBy   time.Time // then SIGKILL
	baseline int64     // newest complete checkpoint at the signal to save
	again    time.Time // when to repeat a signal that may not have arrived
	deaf     bool      // a warning was sent that SIGKILL does not end it
	nextSave time.Time // by checkpoint.interval
	saved    int64     // berth.Orders.Save that was carried out last

	savedFor   time.Duration // time limit before which the signal to save was sent
	limitAgain time.Time     // when to repeat that signal, which may not have arrived
	heeds      heeded        // notice of the machine's end that was carried out last
	heedAgain  time.Time     // when to repeat its signal, which may not have arrived
	advised    time.Time     // advice of the cloud that was carried out last
	asked      time.Time     // when the running container was last signaled to save; zero: it has saved since
	askedAfter int64         // newest complete checkpoint at that signal
	saveTook   time.Duration // from the signal to the complete checkpoint, of the last one measured
}

// stage is the progress of stopping a container.
type stage int

const (
	runs        stage = iota
	saves             // the signal to write a checkpoint was sent
	terminates        // SIGTERM was sent
	dies              // SIGKILL was sent
	saveLook    = 100 * time.Millisecond
	killAgain   = 2 * time.Second
	signalLimit = 10 * time.Second
)

// adopt takes over the plan of an earlier process.
func (s *stopPlan) adopt(m memo, begun time.Time) {
	s.cause, s.at, s.says, s.begun, s.saved = m.Intent, m.IntentAt, m.IntentSays, begun, m.Saved
	s.savedFor, s.heeds, s.advised = m.SavedFor, m.Heeds, m.Advised
}

// begin schedules the first checkpoint of a job with checkpoint.interval.
func (s *stopPlan) begin() {
	if k := s.claim.Spec.Checkpoint; k != nil && k.Interval > 0 {
		s.nextSave = time.Now().Add(k.Interval.Std())
	}
}

// steer does the work that is due now and returns the time until the next look.
func (s *stopPlan) steer(signs *progressWatcher, hang *hangWatch) time.Duration {
	now, o := time.Now(), s.orders.standing()
	if s.stage < dies && o.Kill {
		s.kill(now, failure.CauseOrdered, "killed by order")
	}
	if full := s.fullDisk(); s.stage < dies && full != nil {
		s.kill(now, full.cause, full.says) // without a grace, in which it would write more
	}
	if s.stage == runs {
		s.decide(now, o, signs, hang)
	}
	if s.stage == runs {
		s.save(now, o.Save)
	}
	var heedAgain time.Time
	seen := s.notices.present()
	if s.stage == runs {
		heedAgain = s.heed(now, seen)
	}
	if heedAgain.IsZero() {
		s.notices.sent(s, seen.EndID)
	}
	next := time.Minute
	soon := func(at time.Time) {
		if !at.IsZero() {
			next = min(next, max(at.Sub(now), 0))
		}
	}
	switch s.stage {
	case runs:
		if limit := s.orders.runLimit(); limit > 0 {
			soon(s.begun.Add(limit))
		}
		if !s.nextSave.IsZero() && !now.Before(s.nextSave) {
			s.requestSave(now)
			s.scheduleSave(now)
		}
		soon(s.nextSave)
		soon(heedAgain)
		soon(s.saveBeforeLimit(now))
		soon(hang.next())
	case saves:
		if s.uploader.newest() > s.baseline || !now.Before(s.saveBy) {
			s.terminate(now)
		}
		soon(now.Add(saveLook))
		soon(s.killBy)
	case terminates, dies:
		s.finish(now)
		soon(s.killBy)
		soon(s.again)
	}
	if s.stage == dies {
		next = max(time.Until(s.again), 0)
	}
	return next
}

// fullDisk returns the verdict on the member's disk space; nil: none. One that an earlier process
// has stored but perhaps not carried out stands: the member would else run on, and its end, even a
// good one, would count as caused by the verdict.
func (s *stopPlan) fullDisk() *diskVerdict {
	if s.cause == failure.CauseDiskLimit || s.cause == failure.CauseDiskReserve {
		return &diskVerdict{s.cause, s.says}
	}
	return s.disk.judged()
}

// decide begins to stop a running container if one of the causes for a stop applies: a hang, an
// order, a limit of the job, or an unhealthy device.
func (s *stopPlan) decide(now time.Time, o berth.Orders, signs *progressWatcher, hang *hangWatch) {
	stall, limit := s.claim.Spec.StallTimeout, s.orders.runLimit()
	hangs := hang.decide(now, o, s.cause == failure.CauseStalled)
	switch fault := s.gpus.fault(s.claim.GPUs); {
	case hang.collects():
		// A signal would change the evidence; its collection lasts for a moment.
	case hangs:
		s.stop(now, failure.CauseStalled, hang.says(), hang.grace(), false)
	case o.Stop || o.Checkpoint:
		s.stop(now, failure.CauseOrdered, "stopped on request", o.Grace(), o.Checkpoint)
	case limit > 0 && now.Sub(s.begun) >= limit:
		says := "ran for its time_limit of " + spec.Duration(limit).String()
		// The signal before the limit may be missing: no agent ran then, or the limit was lowered.
		s.stop(now, failure.CauseTimeLimit, says, s.claim.grace(), s.savesBeforeLimit(limit))
	case fault != "":
		s.stop(now, failure.CauseGPU, fault, s.claim.grace(), true)
	case stall > 0 && signs.quietFor(now) >= stall.Std():
		says := "no log, progress, checkpoint, CPU or GPU activity for " + stall.String() + " (stall_timeout)"
		s.stop(now, failure.CauseStalled, says, s.claim.grace(), false)
	}
}

// save sends the checkpoint signal for an order to save that was not carried out yet; the
// container continues, as after each signal of checkpoint.interval. A signal that may not have
// arrived is repeated after a second. The number is stored first, so that a later process does
// not repeat the signal.
//
// With an interval no signal is sent before the first one of the interval: the program may not
// have installed its handler, and the signal would then end it. The order may even be older than
// the container. Without an interval only a user gives the order.
func (s *stopPlan) save(now time.Time, order int64) {
	k := s.claim.Spec.Checkpoint
	if order <= s.saved || k == nil || k.Signal == "" {
		return
	}
	s.saved = order
	s.remember(func(m *memo) { m.Saved = order })
	s.saveOnce(now)
}

// saveOnce sends the checkpoint signal now, or with an interval not before its first signal.
func (s *stopPlan) saveOnce(now time.Time) {
	k := s.claim.Spec.Checkpoint
	if first := s.begun.Add(k.Interval.Std()); k.Interval > 0 && now.Before(first) {
		s.nextSave = first // sooner than begin has set it, if this process has adopted the container
		return
	}
	s.scheduleSave(now)
	if !s.requestSave(now) {
		s.nextSave = now.Add(time.Second)
	}
}

// scheduleSave sets the time of the next signal of checkpoint.interval; without an interval there
// is none.
func (s *stopPlan) scheduleSave(now time.Time) {
	s.nextSave = time.Time{}
	if k := s.claim.Spec.Checkpoint; k.Interval > 0 {
		s.nextSave = now.Add(k.Interval.Std())
	}
}

// requestSave sends the checkpoint signal to a container that continues to run. It reports
// whether the signal needs no repetition.
func (s *stopPlan) requestSave(now time.Time) bool {
	s.measureSave()
	if s.asked.IsZero() {
		s.asked, s.askedAfter = now, s.uploader.newest()
	}
	return s.signal(s.claim.Spec.Checkpoint.Signal)
}

// measureSave notes how long the job took to save after the last signal, once it has saved.
func (s *stopPlan) measureSave() {
	if !s.asked.IsZero() && s.uploader.newest() > s.askedAfter {
		s.saveTook, s.asked = s.uploader.foundAt().Sub(s.asked), time.Time{}
	}
}

// saveLead is the time between the last checkpoint signal and the time limit: the grace plus
// twice the time of the last save, at most half the limit.
func saveLead(limit, grace, lastSave time.Duration) time.Duration {
	return min(limit/2, grace+2*lastSave)
}

// savesBeforeLimit reports whether the job is to get a checkpoint signal before its time limit,
// and has not got it yet.
func (s *stopPlan) savesBeforeLimit(limit time.Duration) bool {
	k := s.claim.Spec.Checkpoint
	return k != nil && k.Signal != "" && k.Signal != "SIGTERM" && limit > 0 && s.savedFor != limit
}

// saveBeforeLimit sends the checkpoint signal once before the time limit, so that little work is
// lost when the job must stop. The job runs on until the limit, since it may complete its work.
// saveBeforeLimit returns the time at which the signal is due; zero: never.
func (s *stopPlan) saveBeforeLimit(now time.Time) time.Time {
	limit := s.orders.runLimit()
	if !s.savesBeforeLimit(limit) {
		return time.Time{}
	}
	s.measureSave()
	due := s.begun.Add(limit - saveLead(limit, s.claim.grace(), s.saveTook))
	if due.Before(s.limitAgain) {
		due = s.limitAgain
	}
	if now.Before(due) {
		return due
	}
	s.log.Info("signaling the job to save before its time limit", "limit", limit, "last_save", s.saveTook)
	if !s.requestSave(now) {
		s.limitAgain = now.Add(time.Second)
		return s.limitAgain
	}
	s.scheduleSave(now)
	s.savedFor = limit
	m := s.scratch.memo()
	m.SavedFor = limit
	if err := s.scratch.remember(m); err != nil { // the next process repeats the signal
		s.log.Warn("cannot store that the job was signaled to save", "err", err)
	}
	return time.Time{}
}

// finish repeats SIGTERM if the first may not have arrived, and sends SIGKILL once the grace is
// over, again and again until the container has ended. Only time in which the engine answers shows
// that the container is deaf: an engine that is away delivers no signal.
func (s *stopPlan) finish(now time.Time) {
	switch {
	case !now.Before(s.killBy) && !now.Before(s.again):
		s.stage, s.again = dies, now.Add(killAgain)
		s.signal("SIGKILL")
		if !s.deaf && s.health.answersAfter(s.killBy) > s.timing.DeafAfter {
			s.deaf = true
			s.stuck.add(s.identity, s.claim.mounts() && !s.claim.atMostOne())
			s.reports.warn("the container does not stop on SIGKILL and keeps its resources; " +
				"an operator must check machine " + string(s.machine))
		}
	case s.stage == terminates && !s.again.IsZero() && !now.Before(s.again):
		s.terminate(now)
	}
}

// stop begins to stop the container for a cause. With save the first signal is the one that makes
// the job write a checkpoint, then SIGTERM follows; SIGKILL follows after the grace.
func (s *stopPlan) stop(now time.Time, cause failure.ExitCause, says string, grace time.Duration, save bool) {
	s.intend(cause, says)
	s.killBy = now.Add(grace)
	k := s.claim.Spec.Checkpoint
	if !save || k == nil || k.Signal == "" || k.Signal == "SIGTERM" {
		s.terminate(now)
		return
	}
	s.baseline, s.saveBy = s.uploader.newest(), now.Add(grace*3/4)
	if !s.heeds.holds(now) || !s.heedAgain.IsZero() {
		s.stage = saves
		s.signal(k.Signal)
		return
	}
	// The signal for the notice is the one for this stop. A save that is in progress may complete.
	if s.measureSave(); s.asked.IsZero() {
		s.terminate(now)
		return
	}
	s.stage, s.baseline = saves, s.askedAfter
}

// kill makes the next step send SIGKILL.
func (s *stopPlan) kill(now time.Time, cause failure.ExitCause, says string) {
	s.intend(cause, says)
	s.stage, s.killBy, s.again = terminates, now, time.Time{}
}

// terminate sends SIGTERM, and schedules a repetition if that fails.
func (s *stopPlan) terminate(now time.Time) {
	s.stage, s.again = terminates, time.Time{}
	if !s.signal("SIGTERM") {
		s.again = now.Add(time.Second)
	}
}

// intend records the first cause for stopping the container, for this process and
// for the next one.
func (s *stopPlan) intend(cause failure.ExitCause, says string) {
	if s.cause != "" {
		return
	}
	s.cause, s.at, s.says = cause, time.Now(), says
	s.log.Info("stopping member", "cause", cause, "why", says)
	m := s.scratch.memo()
	m.Intent, m.IntentAt, m.IntentSays = s.cause, s.at, s.says
	if err := s.scratch.remember(m); err != nil {
		s.log.Warn("cannot store the intent to stop", "err", err)
	}
}

// signal sends a signal to the container. It reports whether the signal needs no
// repetition.
func (s *stopPlan) signal(name string) bool {
	ctx, cancel := context.WithTimeout(s.ctx, signalLimit)
	defer cancel()
	err := s.runtime.Signal(ctx, s.name(), name)
	if err != nil && s.ctx.Err() == nil && !errors.Is(err, node.ErrNoContainer) {
		s.log.Warn("cannot send signal", "signal", name, "err", err)
		return false
	}
	return true
}
