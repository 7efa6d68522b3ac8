package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
)

// watchPhase follows a started container to its end: it carries out orders, enforces the job's
// own limits, and collects evidence.
type watchPhase struct {
	*core
	orders   *orders
	plan     *stopPlan
	door     *door
	scratch  *scratch
	helpers  *sync.WaitGroup
	disk     *diskWatch
	shipper  *logShipper
	sampler  *usageSampler
	uploader *checkpointUploader // nil without checkpoints
	progress *progressWatcher
	hang     *hangWatch
	lines    *lineBoard
	network  string // the engine's, of the job alone; "": another one
	refused  *refusedNames
	evidence *evidence
	spans    spans
	result   *result
}

// ending is the engine's account of a container's end.
type ending struct {
	container node.Container
	vanished  bool
	// lostAt is when the engine stopped to answer before the end; zero: it answered.
	lostAt time.Time
	err    error
}

// Do reports the member as running and starts the helpers, then steers until the engine reports
// the container's end. It wakes for orders and for the next moment at which the stop plan or the
// progress watcher has work to do.
func (p *watchPhase) Do(ctx context.Context) (phase, error) {
	p.reports.enter(0, berth.PhaseRunning) // at once: this report makes the job running
	p.log.Info("member running")
	p.shipper.begin()
	p.sampler.begin()
	if p.uploader != nil {
		p.uploader.begin()
	}
	p.plan.disk = p.disk.join(p.core, p.orders.nudge)
	p.plan.begin()
	p.plan.notices.join(p.plan)
	defer p.plan.notices.leave(p.plan)
	if left := leftExecs(p.scratch); len(left) > 0 {
		p.helpers.Go(func() { endLeftExecs(ctx, p.core, p.scratch, left) })
	}
	p.door.open(p.ctx)
	p.lines.nudge()
	defer p.refused.watch(p.network, p.reports.warn)()
	defer p.door.close(errContainerOver)
	ended := make(chan ending, 1) // the buffer lets awaitEnd return after ctx's end
	go func() { ended <- p.awaitEnd() }()
	p.progress.begin()
	for {
		timer := time.NewTimer(min(p.plan.steer(p.progress, p.hang), time.Until(p.progress.due)))
		select {
		case e := <-ended:
			timer.Stop()
			if e.err != nil {
				return "", e.err
			}
			p.plan.stuck.drop(p.alloc)
			p.plan.disk.ended.Store(true)
			p.hang.end()
			p.progress.read() // the job may have written its progress right before its end
			x := p.evidence.exit(e)
			x.Measured = p.sampler.end()
			p.spans.run(x)
			p.result.exit = x
			return phaseAcknowledge, nil
		case <-p.orders.kick:
		case <-timer.C:
			p.progress.readIfDue(time.Now())
		case <-ctx.Done():
			timer.Stop()
			<-ended // it ends with the context
			return "", context.Cause(ctx)
		}
		timer.Stop()
	}
}

// awaitEnd waits for the container's end, also while the engine is away.
func (p *watchPhase) awaitEnd() ending {
	var lostAt time.Time
	for wait := p.timing.backoff(); ; {
		c, err := p.runtime.Wait(p.ctx, p.name())
		switch {
		case err == nil:
			return ending{container: c, lostAt: lostAt}
		case errors.Is(err, node.ErrNoContainer):
			return ending{vanished: true, lostAt: lostAt}
		case p.ctx.Err() != nil:
			return ending{err: context.Cause(p.ctx)}
		}
		if lostAt.IsZero() {
			lostAt = time.Now()
		}
		// An engine that restarts loses the call, and containers may outlive it. So the end counts only once the
		// engine itself reports it.
		p.log.Warn("container engine lost, looking up its containers", "err", err)
		if err := wait.wait(p.ctx); err != nil {
			return ending{err: err}
		}
		if c, err := p.runtime.Inspect(p.ctx, p.name()); err == nil && c.State == node.ContainerRunning {
			lostAt = time.Time{} // the container has outlived the engine's absence
			wait.reset()
		}
	}
}
