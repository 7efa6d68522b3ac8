package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"berth"
	"berth/wire"
)

// Reasons for the end of a member's context.
var (
	errAgentStops = errors.New("the agent stops")       // the container stays
	errAbandoned  = errors.New("the rank is not ours")  // the container is removed
	errDisowned   = errors.New("no row knows the rank") // the container stays, in quarantine
)

// member is one member of a job on this machine, from its claim until its last leftover is
// removed. One goroutine leads it through its phases. Orders and verdicts reach it through orders
// and through its context.
//
// The type holds the parts that phases share and hands each phase the ones that it needs. The
// work itself is in the phases.
type member struct {
	*core
	sup    *Supervisor
	cancel context.CancelCauseFunc
	began  time.Time // when this process started it

	adopts    bool   // a container or a folder of it may exist here
	withdrawn bool   // its job ended before the claim; only its end is to be reported
	network   string // created for its job on this engine; "": none

	orders  *orders
	spans   spans
	stage   *stager
	retry   *retrier
	scratch *scratch
	fencing *fencing
	checker *checker
	plan    *stopPlan
	recipe  recipe
	result  result
	helpers sync.WaitGroup // goroutines that work for it

	preparation *preparation // nil outside of its phases

	door *door // of sessions of users

	shipper  *logShipper         // nil before the folder is open
	uploader *checkpointUploader // nil without checkpoints
	metric   *bestMetric         // nil without checkpoint.keep_best
	sampler  *usageSampler       // nil before the container runs
	hang     *hangWatch          // nil before the container runs
}

// newMember returns a member that has not begun. Its context ends with the supervisor's.
func newMember(s *Supervisor, alloc berth.AllocationID, job berth.JobID, number, attempt int) *member {
	ctx, cancel := context.WithCancelCause(s.ctx)
	id := &identity{
		machine: s.cfg.Machine, cluster: s.control.clusterID,
		alloc: alloc, job: job, attempt: attempt, number: number,
	}
	log := s.log.With("job_id", job, "attempt", attempt, "alloc", alloc)
	c := &core{
		identity: id, ctx: ctx, log: log, timing: s.cfg.Timing, beat: s.beat,
		runtime: withFailpoints(s.cfg.Runtime),
		reports: newReporter(id, log, s.outbox.poke), claim: &claim{},
	}
	m := &member{
		core: c, sup: s, cancel: cancel, began: time.Now(),
		orders: newOrders(), spans: spans{id, s.cfg.Traces},
		stage: &stager{s.stages, alloc},
		door:  &door{},
		retry: &retrier{
			ctx: ctx, log: log, timing: s.cfg.Timing, stage: &stager{s.stages, alloc}, counts: s.cfg.Metrics,
		},
		scratch: &scratch{state: s.cfg.StateDir},
	}
	m.fencing = &fencing{core: c, fence: s.fence, orders: m.orders, scratch: m.scratch}
	m.checker = &checker{core: c, checks: s.cfg.Checks}
	m.plan = &stopPlan{
		core: c, orders: m.orders, scratch: m.scratch, gpus: s.gpus, notices: s.notices, stuck: s.stuck,
		health: s.health,
	}
	return m
}

// abandon ends the member: its container is killed and removed.
func (m *member) abandon() { m.cancel(errAbandoned) }

// disown ends the member and leaves its container running.
func (m *member) disown() { m.cancel(errDisowned) }

// order takes an assignment.
func (m *member) order(a wire.Assignment) {
	if a.Orders.Forget || a.State == berth.AllocOrphaned {
		m.abandon()
		return
	}
	m.reports.setRank(a.Rank) // before the claim, assignments are the only source
	m.orders.take(a.Orders, a.RunLimit.Std())
}

// run is the member's goroutine: it runs the phases one after the other.
func (m *member) run() {
	defer m.release()
	p := phaseClaim
	for !p.ends() {
		ctx := m.enter(p)
		next, err := m.Do(ctx, p)
		next, err = m.exit(p, next, err)
		if err != nil {
			next = m.interrupted(err)
		}
		p = next
	}
	if p == phaseGone {
		m.sup.finished(m)
	}
}

// Do does one phase and returns the next one.
func (m *member) Do(ctx context.Context, p phase) (next phase, err error) {
	return m.worker(p).Do(ctx)
}

// enter shows the stage of a phase and returns the phase's context.
func (m *member) enter(p phase) context.Context {
	m.stage.enter(p.row().stage)
	switch p.row().scope {
	case underMember:
		return m.ctx
	case underPreparation:
		if m.preparation == nil {
			m.preparation = openPreparation(m.ctx, m.orders, m.reports, m.timing.PreparePatience)
		}
		return m.preparation.ctx
	case underMachine:
		return m.sup.ctx
	default:
		panic("unknown scope of phase " + string(p))
	}
}

// exit closes the preparation after its last phase.
func (m *member) exit(p, next phase, err error) (phase, error) {
	if m.preparation == nil || err == nil && next.row().scope == underPreparation {
		return next, err
	}
	ended := m.preparation
	m.preparation = nil
	return ended.close(next, err, &m.result)
}

// interrupted returns the phase that follows an error.
func (m *member) interrupted(err error) phase {
	switch {
	case errors.Is(err, errAgentStops), m.sup.ctx.Err() != nil:
		return phaseLeft
	case errors.Is(context.Cause(m.ctx), errDisowned):
		return phaseLeft
	case !errors.Is(err, errAbandoned):
		m.log.Error("member abandoned", "err", err)
	}
	m.abandon() // the helpers must not outlive it
	return phaseRemove
}

// release ends the goroutines that work for the member. The container stays as it is.
func (m *member) release() {
	m.stage.enter("")
	m.cancel(nil)
	m.helpers.Wait()
	m.scratch.close()
	m.sup.disk.leave(m.plan.disk)
	m.sup.pulled.leave(m.identity)
	m.sup.stuck.leave(m.identity)
	m.sup.proof.leave(m.claim.GPUs, m.alloc)
}

// equip creates the helpers that need the claim and the folder.
func (m *member) equip() *checkpointUploader {
	if m.claim.Spec.Checkpoint != nil {
		if best := m.claim.Spec.Checkpoint.Best; best != nil {
			m.metric = &bestMetric{name: best.Metric, workspace: m.scratch.workspace}
		}
		m.uploader = &checkpointUploader{
			core: m.core, control: m.sup.control, retry: m.retry, scratch: m.scratch,
			spans: m.spans, helpers: &m.helpers, metric: m.metric,
		}
		m.uploader.resume()
		m.plan.uploader = m.uploader
	}
	m.shipper = &logShipper{
		core: m.core, control: m.sup.control, retry: m.retry, folder: m.scratch.dir, helpers: &m.helpers,
	}
	m.shipper.resume()
	return m.uploader
}

// worker returns the worker of a phase, with the parts of the member that the phase needs.
func (m *member) worker(p phase) worker {
	switch p {
	case phaseClaim:
		return &claimPhase{
			core: m.core, control: m.sup.control, orders: m.orders, spans: m.spans, result: &m.result,
			adopts: m.adopts, withdrawn: m.withdrawn,
		}
	case phaseLocate:
		return &locatePhase{
			core: m.core, scratch: m.scratch, equip: m.equip, fencing: m.fencing, plan: m.plan,
			images: m.sup.images, pulled: m.sup.pulled, proof: m.sup.proof, health: m.sup.health, result: &m.result,
			adopts: m.adopts, kept: m.sup.kept, present: m.sup.hasMember,
		}
	case phasePull, phaseWorkdir, phaseInputs, phaseRestore, phaseCreate, phaseGive, phaseCheck:
		return m.preparer(p)
	case phaseReady, phaseStart, phaseWatch, phaseAcknowledge:
		return m.runner(p)
	case phaseFence:
		return &fencePhase{fencing: m.fencing, result: &m.result}
	case phaseSeal:
		return &sealPhase{
			core: m.core, vault: m.sup.vault, retry: m.retry,
			shipper: m.shipper, sampler: m.sampler, uploader: m.uploader, hang: m.hang,
			outputs: &outputStore{core: m.core, control: m.sup.control, retry: m.retry, scratch: m.scratch},
			after:   &aftermath{core: m.core, checker: m.checker, proof: m.sup.proof},
			spans:   m.spans, result: &m.result,
		}
	case phaseRecord:
		return &recordPhase{core: m.core, began: m.began, spans: m.spans, result: &m.result}
	case phaseForget:
		return forgetPhase{}
	case phaseRemove:
		return &removePhase{
			identity: m.identity, log: m.log, timing: m.timing, runtime: m.runtime,
			state: m.sup.cfg.StateDir, kept: m.sup.kept, vault: m.sup.vault, mounts: m.sup.mounts, stuck: m.sup.stuck,
			network: m.network, walls: m.sup.walls, fencing: m.fencing, helpers: &m.helpers,
		}
	default:
		panic("no worker for phase " + string(p))
	}
}

// preparer returns the worker of a phase before the container exists.
func (m *member) preparer(p phase) worker {
	s := m.sup
	place := placer{core: m.core, control: s.control, cache: s.cache, retry: m.retry, result: &m.result}
	switch p {
	case phasePull:
		return &pullPhase{
			core: m.core, control: s.control, access: s.access, signed: s.signed, pulled: s.pulled,
			stage: m.stage, recipe: &m.recipe, spans: m.spans, result: &m.result,
		}
	case phaseWorkdir:
		return &workdirPhase{placer: place, scratch: m.scratch, spans: m.spans}
	case phaseInputs:
		return &inputsPhase{
			placer: place, stage: m.stage, sources: s.sources, mounts: s.mounts, scratch: m.scratch, spans: m.spans,
		}
	case phaseRestore:
		return &restorePhase{
			core: m.core, control: s.control, disk: s.disk, retry: m.retry, scratch: m.scratch,
			uploader: m.uploader, recipe: &m.recipe, spans: m.spans, result: &m.result, manifests: s.manifests,
		}
	case phaseGive:
		return &givePhase{core: m.core, turns: s.turns, spans: m.spans, result: &m.result}
	case phaseCheck:
		return &checkPhase{core: m.core, checker: m.checker, proof: s.proof, result: &m.result}
	default:
		return &createPhase{
			core: m.core, cfg: &s.cfg, agent: s.ctx, recipe: &m.recipe, scratch: m.scratch, vault: s.vault,
			accounts: s.accounts, mounts: s.mounts, network: &m.network, walls: s.walls, turns: s.turns,
			images: s.images, pulled: s.pulled, fencing: m.fencing, proof: s.proof, helpers: &m.helpers, spans: m.spans,
			result: &m.result,
		}
	}
}

// runner returns the worker of a phase with a container.
func (m *member) runner(p phase) worker {
	s := m.sup
	switch p {
	case phaseReady:
		return &readyPhase{core: m.core, orders: m.orders, scratch: m.scratch, result: &m.result, adopts: m.adopts}
	case phaseStart:
		return &startPhase{
			core: m.core, orders: m.orders, fencing: m.fencing, plan: m.plan, turns: s.turns, walls: s.walls,
			network: m.network, spans: m.spans, result: &m.result,
		}
	case phaseAcknowledge:
		return &acknowledgePhase{orders: m.orders, adopts: m.adopts}
	default:
		// It exists from now on: a member without a run has no usage to store.
		m.sampler = &usageSampler{
			core: m.core, control: s.control, gpus: s.cfg.GPUs, folder: m.scratch.dir,
			adopts: m.adopts, helpers: &m.helpers, board: s.use,
		}
		progress := &progressWatcher{
			core: m.core, workspace: m.scratch.workspace,
			shipper: m.shipper, uploader: m.uploader, sampler: m.sampler, metric: m.metric,
		}
		m.hang = &hangWatch{
			core: m.core, control: s.control, orders: m.orders, signs: progress, gpus: s.cfg.GPUs, helpers: &m.helpers,
		}
		return &watchPhase{
			core: m.core, orders: m.orders, plan: m.plan, door: m.door, scratch: m.scratch, helpers: &m.helpers,
			disk: s.disk, shipper: m.shipper, sampler: m.sampler, uploader: m.uploader, progress: progress,
			hang: m.hang, lines: s.lines, network: m.network, refused: &s.walls.refused,
			evidence: &evidence{
				core: m.core, plan: m.plan, gpus: s.gpus, xids: s.cfg.GPUs, health: s.health, shipper: m.shipper,
			},
			spans: m.spans, result: &m.result,
		}
	}
}
