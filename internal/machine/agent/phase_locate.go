package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth"
	"berth/activities/node"
	"berth/failure"
	"berth/wire"
)

// locatePhase opens the member's folder and decides how its life goes on: with the
// container of an earlier process, with a new container, or not at all.
type locatePhase struct {
	*core
	scratch *scratch
	equip   func() *checkpointUploader // makes the helpers that need the folder
	fencing *fencing
	plan    *stopPlan
	pulled  *pulledImages
	images  *images
	proof   *deviceProof
	health  *engineHealth
	result  *result
	adopts  bool

	kept    *keptFolders
	present func(berth.AllocationID) bool // a member of the allocation is here
}

// Do opens the member's folder and searches the engine for its container. A member that had a
// container which is gone ends here as vanished. at_most_one work goes on only if a deadman
// watches this machine.
func (p *locatePhase) Do(context.Context) (phase, error) {
	if p.claim.Held != nil {
		if ended, err := p.obtain(*p.claim.Held); ended != "" || err != nil {
			return ended, err
		}
	}
	if err := p.scratch.open(p.name(), p.claim.checkpoints() != ""); err != nil {
		return p.result.notStarted(failure.CauseEngine, err.Error())
	}
	uploader := p.equip()
	if p.adopts { // its processes are no foreign ones, also while the engine gives no answer
		p.proof.enter(p.claim.GPUs, p.alloc, p.name())
	}
	found, err := p.find()
	if err != nil {
		return "", err
	}
	if p.adopts && (found == nil || found.State == node.ContainerCreated) {
		p.proof.leave(p.claim.GPUs, p.alloc) // the check proves the devices before it runs
	}
	if found != nil {
		return p.adopt(*found, uploader), nil
	}
	if p.claim.atMostOne() {
		if err := p.fencing.fence.demand(p.ctx); err != nil && p.ctx.Err() == nil {
			return p.result.notStarted(failure.CauseEngine, "this machine cannot run at_most_one work: "+err.Error())
		}
	}
	if p.hadContainer() {
		return p.result.notStarted(failure.CauseVanished, "the container is gone and its end was not observed")
	}
	return phasePull, nil
}

// obtain takes over the folder of the failed member. It gives up at an order to stop, and after Timing.KeptLimit: the
// removal of the failed member may hang, and the debug job has capacity that other jobs may need.
func (p *locatePhase) obtain(held wire.HeldFiles) (ended phase, err error) {
	wait := openPreparation(p.ctx, p.plan.orders, p.reports, p.timing.KeptLimit)
	err = p.takeOver(wait.ctx, held)
	if err != nil && wait.ctx.Err() == nil {
		ended, err = p.result.notStarted(failure.CauseInputInvalid, err.Error())
	}
	return wait.close(ended, err, p.result)
}

// takeOver moves the folder of the failed member that this debug job holds to its own place. The failed
// member may have to be removed first; once it is gone, the folder is there, or was not kept.
func (p *locatePhase) takeOver(ctx context.Context, held wire.HeldFiles) error {
	since := time.Now() // when the failed member was last seen
	for wait := p.timing.backoff(); ; {
		if p.present(held.Alloc) {
			since = time.Now()
		}
		ok, err := p.kept.take(held.Alloc, p.name())
		if ok || err != nil {
			return err
		}
		if time.Since(since) > p.timing.KeptPatience {
			return errors.New("the files of the failed attempt are no longer on this machine")
		}
		if err := wait.wait(ctx); err != nil {
			return err
		}
	}
}

// find looks for a container that an earlier process created. A new member has none:
// otherwise the engine's check of names finds it at its creation. A member that has
// begun by the record is looked for even if this process has not adopted it: its end
// must not be reported while its container lives.
//
// The engine may give no state of this container alone: it does not answer, or answers an error. Then nothing is
// known about the member: find asks until the engine gives the state, and until then the member reports no end and
// holds its capacity. The member warns of this once the engine has answered probes for EnginePatience since: an engine
// that is silent as a whole is reported for the machine, and a busy one gives the state later.
func (p *locatePhase) find() (*node.Container, error) {
	if !p.adopts && p.claim.Phase == berth.PhaseClaimed && !p.claim.Orders.Start {
		return nil, nil
	}
	begun, warned := time.Now(), false
	for wait := p.timing.backoff(); ; {
		c, err := p.runtime.Inspect(p.ctx, p.name())
		switch {
		case err == nil && p.owns(c):
			return &c, nil
		case err == nil:
			p.log.Error("container name is taken by a foreign container", "container", c.Name)
			return nil, nil // the creation will fail and report it
		case errors.Is(err, node.ErrNoContainer):
			return nil, nil
		case p.ctx.Err() != nil:
			return nil, context.Cause(p.ctx)
		}
		p.log.Warn("container engine does not give the state of the container, will retry", "err", err)
		if !warned && p.health.answersAfter(begun) > p.timing.EnginePatience {
			warned = true
			p.reports.warn(fmt.Sprintf(unknownState, err))
		}
		if err := wait.wait(p.ctx); err != nil {
			return nil, err
		}
	}
}

// unknownState is the warning of a member whose container's state the engine does not give, with the engine's error.
const unknownState = "the container engine answers, but does not give the state of this member's container (%v): " +
	"the member may run, and keeps its capacity until the engine gives the state"

// hadContainer reports whether a container of the member must have existed.
func (p *locatePhase) hadContainer() bool {
	return p.claim.Phase == berth.PhaseRunning || p.claim.Phase == berth.PhaseExited ||
		p.claim.Orders.Start || p.scratch.memo().Begun
}

// adopt takes over the container of an earlier process, with the state that this
// process noted in the memo.
func (p *locatePhase) adopt(c node.Container, uploader *checkpointUploader) phase {
	p.fencing.list(c)
	p.proof.contains(p.alloc, c.ID)
	p.images.noteAgain(p.claim.Tenant, p.claim.Spec.Image)
	p.pulled.adopt(p.identity, p.claim.Spec.Image)
	m := p.scratch.memo()
	p.plan.adopt(m, c.StartedAt)
	if m.Restored != nil {
		p.reports.edit(later, func(r *wire.RankReport) { r.Restored = m.Restored })
	}
	if uploader != nil {
		uploader.skip(m.Restored, m.RestoredOf)
	}
	if c.State == node.ContainerCreated {
		return phaseGive
	}
	p.proof.enter(p.claim.GPUs, p.alloc, p.name())
	return phaseWatch
}
