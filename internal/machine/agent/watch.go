package agent

import (
	"context"
	"errors"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/lib/failpoint"
)

// fate is what is known of why a running rank will end.
type fate struct {
	begun time.Time // when its container was started
	cause berth.ExitCause
	at    time.Time // when we began to stop it
	says  string

	stage    stage
	saveBy   time.Time // then SIGTERM, saved or not
	killBy   time.Time // then SIGKILL
	baseline int64     // newest complete checkpoint when it was told to save
	again    time.Time // when to repeat a signal that may not have arrived
	deaf     bool      // it was told that SIGKILL does not end it
	nextSave time.Time // checkpoint.interval
}

// stage is how far the stopping of a container is.
type stage int

const (
	runs        stage = iota
	saves             // told to write a checkpoint
	terminates        // SIGTERM was sent
	dies              // SIGKILL was sent
	saveLook    = 100 * time.Millisecond
	killAgain   = 2 * time.Second
	deafAfter   = time.Minute
	signalLimit = 10 * time.Second
)

// ending is what the engine said of a container's end.
type ending struct {
	container node.Container
	vanished  bool
	// lostAt is when the engine was last lost sight of before the end, zero if
	// it was in sight.
	lostAt time.Time
	err    error
}

// watch follows a started container to its end: it carries out orders, keeps
// the job's own limits, and collects evidence.
func (r *member) watch() (berth.Exit, error) {
	r.reports.enter(0, berth.PhaseRunning) // at once: the job is running by this report
	r.log.Info("rank runs")
	r.shipper.begin()
	r.meter = newMeter(r)
	r.meter.begin()
	if r.keeper != nil {
		r.keeper.begin()
	}
	if p := r.claim.Spec.Checkpoint; p != nil && p.Interval > 0 {
		r.fate.nextSave = time.Now().Add(p.Interval.Std())
	}
	ended := make(chan ending, 1)
	go func() { ended <- r.awaitEnd() }()
	look := newLookout(r)
	for {
		timer := time.NewTimer(min(r.steer(look), time.Until(look.due)))
		select {
		case e := <-ended:
			timer.Stop()
			if e.err != nil {
				return berth.Exit{}, e.err
			}
			look.readProgress()
			x := r.evidence(e)
			x.Measured = r.meter.end()
			r.tellRun(x)
			return x, nil
		case <-r.orders.kick:
		case <-timer.C:
			look.readIfDue(time.Now())
		case <-r.ctx.Done():
			timer.Stop()
			<-ended // it ends with the context
			return berth.Exit{}, context.Cause(r.ctx)
		}
		timer.Stop()
	}
}

// awaitEnd waits for the container's end, whatever becomes of the engine
// meanwhile.
func (r *member) awaitEnd() ending {
	var lostAt time.Time
	for wait := r.timing().backoff(); ; {
		c, err := r.runtime().Wait(r.ctx, r.name())
		switch {
		case err == nil:
			return ending{container: c, lostAt: lostAt}
		case errors.Is(err, node.ErrNoContainer):
			return ending{vanished: true, lostAt: lostAt}
		case r.ctx.Err() != nil:
			return ending{err: context.Cause(r.ctx)}
		}
		if lostAt.IsZero() {
			lostAt = time.Now()
		}
		r.log.Warn("container engine lost; its containers are looked for again", "err", err)
		if err := wait.wait(r.ctx); err != nil {
			return ending{err: err}
		}
		if c, err := r.runtime().Inspect(r.ctx, r.name()); err == nil && c.State == node.ContainerRunning {
			lostAt = time.Time{} // it outlived the engine's absence
			wait.reset()
		}
	}
}

// steer does what is due now and returns when to look again.
func (r *member) steer(look *lookout) time.Duration {
	now, o, f := time.Now(), r.orders.standing(), &r.fate
	spec := r.claim.Spec
	if f.stage < dies && o.Kill {
		r.intend(berth.CauseOrdered, "killed by order")
		f.stage, f.killBy, f.again = terminates, now, time.Time{}
	}
	if f.stage == runs {
		limit := r.orders.runLimit()
		switch fault := r.sup.gpus.fault(r.claim.GPUs); {
		case o.Stop || o.Checkpoint:
			r.stop(now, berth.CauseOrdered, "stopped by order", o.Grace(), o.Checkpoint)
		case limit > 0 && now.Sub(f.begun) >= limit:
			r.stop(now, berth.CauseTimeLimit, "ran for its time_limit of "+berth.Duration(limit).String(), r.grace(), false)
		case fault != "":
			r.stop(now, berth.CauseGPU, fault, r.grace(), true)
		case spec.StallTimeout > 0 && look.quietFor(now) >= spec.StallTimeout.Std():
			r.stop(now, berth.CauseStalled, "no log, progress, checkpoint, CPU or GPU use for "+spec.StallTimeout.String(), r.grace(), false)
		}
	}
	next := time.Minute
	soon := func(at time.Time) {
		if !at.IsZero() {
			next = min(next, max(at.Sub(now), 0))
		}
	}
	switch f.stage {
	case runs:
		if limit := r.orders.runLimit(); limit > 0 {
			soon(f.begun.Add(limit))
		}
		if !f.nextSave.IsZero() && !now.Before(f.nextSave) {
			r.signal(spec.Checkpoint.Signal)
			f.nextSave = now.Add(spec.Checkpoint.Interval.Std())
		}
		soon(f.nextSave)
	case saves:
		if r.keeper.newest() > f.baseline || !now.Before(f.saveBy) {
			r.terminate(now)
		}
		soon(now.Add(saveLook))
		soon(f.killBy)
	case terminates, dies:
		switch {
		case !now.Before(f.killBy) && !now.Before(f.again):
			f.stage, f.again = dies, now.Add(killAgain)
			r.signal("SIGKILL")
			if !f.deaf && now.Sub(f.killBy) > deafAfter {
				f.deaf = true
				r.reports.warn("SIGKILL does not end it: it keeps what it holds until an operator has looked at machine " + string(r.sup.cfg.Machine))
			}
		case f.stage == terminates && !f.again.IsZero() && !now.Before(f.again):
			r.terminate(now)
		}
		soon(f.killBy)
		soon(f.again)
	}
	if f.stage == dies {
		next = max(time.Until(f.again), 0)
	}
	return next
}

// stop begins to stop the container for a cause: with save, by the signal that
// makes it write a checkpoint, then SIGTERM; SIGKILL after grace.
func (r *member) stop(now time.Time, cause berth.ExitCause, says string, grace time.Duration, save bool) {
	r.intend(cause, says)
	f := &r.fate
	f.killBy = now.Add(grace)
	p := r.claim.Spec.Checkpoint
	if !save || p == nil || p.Signal == "" || p.Signal == "SIGTERM" {
		r.terminate(now)
		return
	}
	f.stage, f.baseline, f.saveBy = saves, r.keeper.newest(), now.Add(grace*3/4)
	r.signal(p.Signal)
}

// terminate sends SIGTERM. If that fails it is sent again.
func (r *member) terminate(now time.Time) {
	f := &r.fate
	f.stage, f.again = terminates, time.Time{}
	if !r.signal("SIGTERM") {
		f.again = now.Add(time.Second)
	}
}

// intend notes why the container is about to be stopped, the first time, and so
// that a later process knows it too.
func (r *member) intend(cause berth.ExitCause, says string) {
	f := &r.fate
	if f.cause != "" {
		return
	}
	f.cause, f.at, f.says = cause, time.Now(), says
	r.log.Info("rank is stopped", "cause", cause, "why", says)
	m := r.scratch.memo()
	m.Intent, m.IntentAt, m.IntentSays = f.cause, f.at, f.says
	if err := r.scratch.remember(m); err != nil {
		r.log.Warn("intent not stored", "err", err)
	}
}

func (r *member) signal(name string) bool {
	ctx, cancel := context.WithTimeout(r.ctx, signalLimit)
	defer cancel()
	_ = failpoint.Hit("agent.stop.before")
	err := r.runtime().Signal(ctx, r.name(), name)
	_ = failpoint.Hit("agent.stop.after")
	if err != nil && r.ctx.Err() == nil && !errors.Is(err, node.ErrNoContainer) {
		r.log.Warn("signal not sent", "signal", name, "err", err)
		return false
	}
	return true
}

// evidence is the exit as the agent saw it.
func (r *member) evidence(e ending) berth.Exit {
	f, c := r.fate, e.container
	if e.vanished {
		return berth.Exit{
			Cause: berth.CauseVanished, Code: 255, Message: "its container was removed, and not by Berth",
			StartedAt: f.begun.UTC(), FinishedAt: time.Now().UTC(),
		}
	}
	x := berth.Exit{
		Cause: berth.CauseExited, Code: c.ExitCode, OOMKilled: c.OOMKilled, Message: c.Error,
		Complete: r.isComplete(), StartedAt: c.StartedAt, FinishedAt: c.FinishedAt,
	}
	engine := ""
	if f.cause == "" && (c.ExitCode != 0 || r.isIncomplete()) {
		engine = r.engineFault(e)
	}
	switch fault := r.sup.gpus.fault(r.claim.GPUs); {
	case f.cause != "" && !c.FinishedAt.Before(f.at):
		x.Cause, x.Message = f.cause, f.says
	case engine != "":
		x.Cause, x.Message = berth.CauseEngine, engine
	case c.ExitCode != 0 && fault != "":
		x.Cause, x.Message = berth.CauseGPU, fault
	}
	if x.Cause == berth.CauseExited && c.ExitCode != 0 {
		x.Sign = berth.SignOf(r.shipper.lastLines(r.ctx))
		x.Xid = r.applicationXid(c)
	}
	if c.OOMKilled && c.ExitCode == 0 {
		r.reports.warn("a process of it was killed for want of memory, and it exited 0 all the same")
	}
	return x
}

func (r *member) isComplete() bool {
	p := r.reports.progress()
	return p != nil && p.Total > 0 && p.Step >= p.Total
}

// isIncomplete: it has told its progress, and that is not the end.
func (r *member) isIncomplete() bool {
	p := r.reports.progress()
	return p != nil && p.Total > 0 && p.Step < p.Total
}
