package scheduler

import (
	"context"
	"errors"
	"time"

	"berth"
	"berth/db"
	"berth/lifecycle"
)

// drainBatch bounds the jobs that one pass notifies of drains, orders to move, and judges to hang.
const drainBatch = 100

// judgeFor bounds the verdicts of one pass: many verdicts on a slow database must not keep the pass from draining
// machines, nor the next pass from marking silent machines as suspect.
const judgeFor = db.BeaconTTL / 2

// reaper judges silent machines and moves work off drained ones.
type reaper struct {
	*Scheduler
	term   db.Term
	counts *counter
	now    func() time.Time
	// Machines judged within the last minute. One with work of a longer lost_after
	// is not yet lost, and the database counts lost machines only.
	passed  map[berth.MachineID]time.Time
	waiting db.WaitingCursor // among machines that have not returned from maintenance
}

// run judges silent machines until the term ends. A failed pass does not end the term: the next
// one may succeed, and the placer must go on meanwhile.
func (r *reaper) run(ctx context.Context) error {
	for sleep(ctx, reapEvery) {
		if err := r.pass(ctx); err != nil && ctx.Err() == nil {
			r.Logger.Error("cannot check silent and draining machines", "err", err)
		}
	}
	return ctx.Err()
}

// pass marks silent machines as suspect, passes verdicts on machines that were silent for too
// long and on gangs that hang, and drains machines on which jobs fail again and again.
func (r *reaper) pass(ctx context.Context) error {
	suspects, err := r.DB.Machines.MarkSuspect(ctx, r.term, r.Silence)
	if err != nil {
		return err
	}
	for _, id := range suspects {
		r.Logger.Warn("machine is silent", "machine_id", id)
	}
	// Work is placed on ready machines only, so the planner reads the machines again.
	if len(suspects) > 0 {
		r.DB.Hub().Publish(db.TopicQueue, "")
	}
	if err := r.judge(ctx); err != nil {
		return err
	}
	unknown := r.judgeHosts(ctx)
	lemons, err := r.DB.Machines.DrainLemons(ctx, r.term)
	if err != nil {
		return errors.Join(unknown, err)
	}
	for _, l := range lemons {
		r.Logger.Error("machine drained after repeated failures", "machine_id", l.Machine, "reason", l.Reason)
	}
	unmaintained := r.maintain(ctx)
	notified, unannounced := r.DB.Attempts.AnnounceDrains(ctx, r.term, drainBatch)
	if notified > 0 {
		r.Logger.Info("notified jobs of drained machines", "jobs", notified)
	}
	// Deadlines hold also where a notice fails.
	moved, err := r.DB.Attempts.DrainOverdue(ctx, r.term, drainBatch)
	if moved > 0 {
		r.Logger.Info("ordered jobs off draining machines", "jobs", moved)
	}
	hung, unjudged := r.writes.hangs.JudgeHangs(ctx, r.term, drainBatch)
	if hung > 0 {
		r.Logger.Info("ordered hung gangs to stop", "jobs", hung)
	}
	return errors.Join(unknown, unmaintained, unannounced, err, unjudged)
}

// judgeHosts judges the container engines of machines by the security floors.
func (r *reaper) judgeHosts(ctx context.Context) error {
	changed, err := r.DB.Machines.JudgeHosts(ctx, r.term, r.Floors.Fingerprint(), r.Floors.Judge)
	for _, v := range changed {
		if v.Met {
			r.Logger.Info("machine meets the security floors", "machine_id", v.Machine, "verdict", v.Text)
		} else {
			r.Logger.Warn("machine does not meet the security floors", "machine_id", v.Machine, "verdict", v.Text)
		}
	}
	return err
}

// maintain begins and ends maintenance windows.
func (r *reaper) maintain(ctx context.Context) error {
	steps, err := r.DB.Maintenance.Pass(ctx, r.term, drainBatch, &r.waiting)
	for _, x := range steps {
		attrs := []any{"machine_id", x.Machine, "window", x.Window, "note", x.Note}
		switch x.Act {
		case lifecycle.MaintenanceDrain:
			r.Metrics.closed.Inc()
			r.Logger.Info("machine closed for maintenance", attrs...)
		case lifecycle.MaintenanceReturn:
			r.Metrics.returned.Inc()
			r.Logger.Info("machine returned from maintenance", attrs...)
		case lifecycle.MaintenanceWait:
			r.Logger.Warn("machine cannot return from maintenance", attrs...)
		default:
			r.Logger.Info("maintenance of machine changed", attrs...)
		}
	}
	if err != nil {
		return err
	}
	waiting, err := r.DB.Maintenance.Waiting(ctx)
	r.Metrics.waiting.Set(float64(waiting))
	return err
}

// judge passes verdicts on the machines that are due for one. The first count of a term may hold all verdicts, so none
// precedes it.
func (r *reaper) judge(ctx context.Context) error {
	if !r.counts.done.Load() {
		return nil
	}
	due, budget, err := r.DB.Machines.Overdue(ctx, r.Silence)
	if err != nil {
		return err
	}
	return r.judgeAll(ctx, due, budget)
}

// judgeAll passes verdicts within the database's budget for a minute, which counts machines declared
// lost. passed counts the other machines with a verdict. The rest waits for a later pass.
func (r *reaper) judgeAll(ctx context.Context, due []db.Overdue, budget int) error {
	now := r.now()
	// The budget is for a minute: older verdicts no longer count.
	for id, at := range r.passed {
		if now.Sub(at) > time.Minute {
			delete(r.passed, id)
		}
	}
	for _, m := range due {
		if r.now().Sub(now) > judgeFor {
			return nil
		}
		if _, again := r.passed[m.Machine]; !again && len(r.passed) >= budget {
			r.Logger.Error("more silent machines than may be declared lost in a minute", "machine_id", m.Machine,
				"silent", len(due))
			return nil
		}
		v, err := r.writes.verdicts.PassVerdict(ctx, r.term, m.Machine, r.Silence)
		if err != nil {
			return err
		}
		if len(v.Jobs) == 0 && !v.Lost {
			continue // it was heard meanwhile
		}
		r.tell(m.Machine, v)
		if v.Lost { // counted by the database from now on
			delete(r.passed, m.Machine)
			budget--
		} else {
			if r.passed == nil {
				r.passed = map[berth.MachineID]time.Time{}
			}
			r.passed[m.Machine] = now
		}
	}
	return nil
}

// tell publishes a verdict to the jobs' workflows and callers, to the queue and to the machine.
func (r *reaper) tell(machine berth.MachineID, v db.Verdict) {
	r.Logger.Warn("machine declared lost", "machine_id", machine, "jobs", len(v.Jobs), "lost", v.Lost)
	r.Metrics.orphaned.Add(float64(len(v.Jobs)))
	if v.Lost {
		r.Metrics.lost.Inc()
	}
	hub := r.DB.Hub()
	for _, id := range v.Jobs {
		hub.Publish(db.TopicJob, string(id))
	}
	hub.Publish(db.TopicQueue, string(machine))
	hub.Publish(db.TopicMachine, string(machine))
	r.Poker.Poke(v.Jobs...)
}
