package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/lib/failpoint"
)

// Why a rank's context ends.
var (
	errAgentStops = errors.New("the agent stops")         // the container stays
	errAbandoned  = errors.New("the rank is not ours")    // the container goes
	errDisowned   = errors.New("no row knows the rank")   // the container stays, in quarantine
	errStopped    = errors.New("stopped before it began") // an order came before the start
	errTooSlow    = errors.New("it takes too long to prepare")
	errGivenUp    = errors.New("the server does not take it") // of what a rank leaves behind
)

// member is the life of one member on this machine, from its claim until nothing of
// it is left. One goroutine runs all of it. Orders and verdicts reach it through
// orders and ctx.
type member struct {
	*identity
	sup     *Supervisor
	log     *slog.Logger
	orders  *orders
	reports *reporter
	adopts  bool // a container or a folder of it may exist here
	// withdrawn: the job ended before this machine claimed the member, whose end is
	// all that remains to be reported.
	withdrawn bool

	began  time.Time       // when this process started it
	ctx    context.Context // ends with errAbandoned, errDisowned or errAgentStops
	cancel context.CancelCauseFunc

	// Of the goroutine alone, after the claim.
	claim     berth.Claim
	claimedAt time.Time // when the claim was sent that was answered
	container string    // id, of at_most_one work once it has one
	network   string    // made for its gang on this engine; "" if none was
	scratch   *scratch
	keeper    *keeper  // nil without checkpoints
	shipper   *shipper // of its log
	meter     *meter   // of its use; nil before it runs
	fate      fate
	helpers   sync.WaitGroup // what keeper and shipper do at the same time
	ended     atomic.Bool    // the container has ended
}

func newMember(s *Supervisor, alloc berth.AllocationID, job berth.JobID, number, attempt int) *member {
	ctx, cancel := context.WithCancelCause(s.ctx)
	m := &member{
		identity: &identity{
			machine: s.cfg.Machine, cluster: s.control.clusterID,
			alloc: alloc, job: job, number: number, attempt: attempt,
		},
		sup: s, log: s.log.With("job_id", job, "attempt", attempt, "alloc", alloc),
		orders: newOrders(), ctx: ctx, cancel: cancel, began: time.Now(),
	}
	m.reports = newReporter(m.identity, m.log, s.outbox.poke)
	return m
}

func (r *member) runtime() node.Runtime { return r.sup.cfg.Runtime }

func (r *member) timing() Timing { return r.sup.cfg.Timing }

// abandon ends the member: its container is killed and removed.
func (r *member) abandon() { r.cancel(errAbandoned) }

// disown ends the member and leaves its container running.
func (r *member) disown() { r.cancel(errDisowned) }

// order takes an assignment.
func (r *member) order(a berth.Assignment) {
	if a.Orders.Forget || a.State == berth.AllocOrphaned {
		r.abandon()
		return
	}
	r.reports.setRank(a.Rank) // no other source names it before the claim
	r.orders.take(a.Orders, a.RunLimit.Std())
}

// run is the rank's goroutine.
func (r *member) run() {
	defer r.release()
	err := r.live()
	if errors.Is(err, errAgentStops) || r.sup.ctx.Err() != nil {
		return
	}
	if errors.Is(context.Cause(r.ctx), errDisowned) {
		return
	}
	if err != nil && !errors.Is(err, errAbandoned) {
		r.log.Error("member given up", "err", err)
	}
	r.abandon() // whoever waits for it waits no longer
	r.helpers.Wait()
	if r.clear() == nil && r.endFenced() == nil {
		r.sup.finished(r)
	}
}

// release ends what works for the rank. The container stays as it is.
func (r *member) release() {
	r.cancel(nil)
	r.helpers.Wait()
	if r.scratch != nil {
		r.scratch.close()
	}
}

// live is the rank's life up to the order to forget it, which comes as
// errAbandoned.
func (r *member) live() error {
	exit, err := r.execute()
	if err != nil {
		return err
	}
	if exit, err = r.concluded(exit); err != nil {
		return err
	}
	if err := r.seal(exit); err != nil {
		return err
	}
	select {
	case <-r.reports.recorded:
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
	_ = failpoint.Hit("agent.seal.after")
	r.log.Info("rank sealed", "cause", exit.Cause, "code", exit.Code)
	r.tellRank(exit)
	<-r.ctx.Done()
	return context.Cause(r.ctx)
}

// clear removes the container and the scratch folder, however long that takes.
func (r *member) clear() error {
	if !r.known {
		return nil
	}
	_ = failpoint.Hit("agent.remove.before")
	for wait := r.timing().backoff(); ; {
		err := r.runtime().Remove(r.sup.ctx, r.name())
		if err == nil {
			err = errors.Join(r.sup.vault.remove(r.name()), removeScratch(r.sup.cfg.StateDir, r.name()))
		}
		if err == nil {
			_ = failpoint.Hit("agent.remove.after")
			r.leave(r.sup.ctx)
			return nil
		}
		if r.sup.ctx.Err() != nil {
			return err
		}
		r.log.Warn("leftovers not removed; tried again", "err", err)
		if err := wait.wait(r.sup.ctx); err != nil {
			return err
		}
	}
}

// take claims the work, however long the control plane is away. An order to
// stop that is here already makes the claim needless.
func (r *member) take() error {
	ctx, span := r.traced(r.ctx, "claim")
	err := r.takeIn(ctx)
	span.Set(r.attributes()...)
	span.End(faultOf(ctx, nil, err))
	return err
}

func (r *member) takeIn(ctx context.Context) error {
	for wait := r.timing().backoff(); ; {
		if !r.adopts && stops(r.orders.standing()) {
			return errStopped
		}
		asked := time.Now()
		claim, err := r.sup.control.claimWork(ctx, berth.RunRequest{Job: r.job, Attempt: r.attempt, Alloc: r.alloc})
		switch {
		case err == nil:
			r.claimed(claim)
			r.claimedAt = asked
			return nil
		case r.ctx.Err() != nil:
			return context.Cause(r.ctx)
		case refused(err) && !r.adopts && stops(r.orders.standing()):
			return errStopped
		case refused(err):
			r.log.Info("claim refused", "err", err)
			return errAbandoned
		}
		r.log.Warn("claim not answered; tried again", "err", err)
		if err := wait.wait(r.ctx); err != nil {
			return err
		}
	}
}

func (r *member) claimed(c berth.Claim) {
	r.claim = c
	r.identity.claimed(c.Rank)
	r.reports.claimed(c.Rank)
	r.orders.merge(c.Orders, c.RunLimit.Std())
}

// grace is the time between SIGTERM and SIGKILL that the job asked for.
func (r *member) grace() time.Duration {
	if g := r.claim.Spec.StopGrace; g != nil {
		return g.Std()
	}
	return berth.DefaultStopGrace
}

// resources that are real: declared devices exist on paper only.
func (r *member) engineGPUs() []string {
	if r.sup.cfg.GPUs.Declared() {
		return nil
	}
	return slices.Clone(r.claim.GPUs)
}
