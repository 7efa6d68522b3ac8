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

// rank is one container's life. Its goroutine runs the whole of it, top to
// bottom; what others tell it (orders, verdicts) lies in the fields under mu.
type rank struct {
	sup     *Supervisor
	log     *slog.Logger
	alloc   berth.AllocationID
	job     berth.JobID
	attempt int
	number  int
	named   bool // number is known; without a claim or a label it is not
	adopts  bool // something of it may exist here
	// withdrawn: its job ended before this machine claimed it; only its end is
	// to be reported.
	withdrawn bool

	began  time.Time       // when this process took it up
	ctx    context.Context // ends with errAbandoned or errAgentStops
	cancel context.CancelCauseFunc
	sealed chan struct{} // closed when the server has its end on record
	kick   chan struct{} // something under mu changed

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

	mu       sync.Mutex
	orders   berth.Orders
	runLimit time.Duration
	report   berth.RankReport
	version  int64 // of report
	taken    int64 // version the server has
	due      time.Time
	logEnd   int64
}

func newRank(s *Supervisor, alloc berth.AllocationID, job berth.JobID, number, attempt int) *rank {
	ctx, cancel := context.WithCancelCause(s.ctx)
	return &rank{
		sup: s, alloc: alloc, job: job, number: number, attempt: attempt,
		log: s.log.With("job_id", job, "attempt", attempt, "alloc", alloc),
		ctx: ctx, cancel: cancel, began: time.Now(),
		sealed: make(chan struct{}),
		kick:   make(chan struct{}, 1),
		report: berth.RankReport{Alloc: alloc, Job: job, Attempt: attempt, Rank: number},
	}
}

// name is the container's name.
func (r *rank) name() string { return berth.ContainerName(r.job, r.number, r.attempt) }

func (r *rank) runtime() node.Runtime { return r.sup.cfg.Runtime }

func (r *rank) timing() Timing { return r.sup.cfg.Timing }

// abandon ends the rank: its container is killed and removed.
func (r *rank) abandon() { r.cancel(errAbandoned) }

// disown ends the rank and leaves its container to run.
func (r *rank) disown() { r.cancel(errDisowned) }

// run is the rank's goroutine.
func (r *rank) run() {
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
func (r *rank) release() {
	r.cancel(nil)
	r.helpers.Wait()
	if r.scratch != nil {
		r.scratch.close()
	}
}

// live is the rank's life up to the order to forget it, which comes as
// errAbandoned.
func (r *rank) live() error {
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
	case <-r.sealed:
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
func (r *rank) clear() error {
	if !r.named {
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

// order takes an assignment. Orders only add up: the server never takes one
// back, and an older set must not.
func (r *rank) order(a berth.Assignment) {
	if a.Orders.Forget || a.State == berth.AllocOrphaned {
		r.abandon()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Rank = a.Rank // before the claim nobody else tells
	was, limit := r.orders, r.runLimit
	r.mergeOrders(a.Orders)
	r.runLimit = a.RunLimit.Std()
	if r.orders != was || r.runLimit != limit {
		r.nudge()
	}
}

// orderStart takes the order to start by itself.
func (r *rank) orderStart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.orders.Start {
		r.orders.Start = true
		r.nudge()
	}
}

// mergeOrders adds orders; r.mu is held.
func (r *rank) mergeOrders(o berth.Orders) {
	r.orders.Start = r.orders.Start || o.Start
	r.orders.Checkpoint = r.orders.Checkpoint || o.Checkpoint
	r.orders.Stop = r.orders.Stop || o.Stop
	r.orders.Kill = r.orders.Kill || o.Kill
	if stops(o) {
		r.orders.GraceMS = o.GraceMS
	}
}

func (r *rank) standing() berth.Orders {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.orders
}

func (r *rank) limit() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runLimit
}

// nudge wakes the goroutine to look at the orders again.
func (r *rank) nudge() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// tell changes the rank's report, which becomes due after the delay: what will
// soon be overtaken need not be sent.
func (r *rank) tell(delay time.Duration, edit func(*berth.RankReport)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	edit(&r.report)
	r.version++
	at := time.Now().Add(delay)
	if r.due.IsZero() || at.Before(r.due) {
		r.due = at
	}
	r.sup.poke()
}

func (r *rank) tellPhase(delay time.Duration, p berth.Phase) {
	r.tell(delay, func(report *berth.RankReport) { report.Phase = p })
}

func (r *rank) warn(text string) {
	r.log.Warn("rank warns", "warning", text)
	r.tell(0, func(report *berth.RankReport) {
		if report.Warning != "" {
			text = report.Warning + "; " + text
		}
		report.Warning = text
	})
}

// present is the report as it stands, and when it is due; zero if the server
// has it. Whether anybody waits for the rank's end only the control plane can
// know: one of the version before is told that nobody does, and then it tells the
// workflow.
func (r *rank) present() (berth.RankReport, int64, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.report
	p.Unwaited = p.Phase == berth.PhaseSealed
	return p, r.version, r.due
}

// dueAt returns when the report is due; zero: the server has it.
func (r *rank) dueAt() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.due
}

// reported notes that the server has taken a report.
func (r *rank) reported(p berth.RankReport, version int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = max(r.taken, version)
	if p.Warning == r.report.Warning {
		r.report.Warning = "" // it is an event now; saying it again costs the server a look
	}
	if r.taken == r.version {
		r.due = time.Time{}
	}
	if p.Phase == berth.PhaseSealed {
		r.closeSealed()
	}
}

// postpone makes the present report due again after a while.
func (r *rank) postpone(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due = time.Now().Add(d)
}

func (r *rank) closeSealed() {
	select {
	case <-r.sealed:
	default:
		close(r.sealed)
	}
}

func (r *rank) reportAgain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.version > 0 {
		r.due = time.Now()
	}
}

func (r *rank) phase() berth.Phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.report.Phase
}

func (r *rank) setLogEnd(end int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logEnd = end
}

// take claims the work, however long the control plane is away. An order to
// stop that is here already makes the claim needless.
func (r *rank) take() error {
	ctx, span := r.traced(r.ctx, "claim")
	err := r.takeIn(ctx)
	span.Set(r.about()...)
	span.End(faultOf(ctx, nil, err))
	return err
}

func (r *rank) takeIn(ctx context.Context) error {
	for wait := r.timing().backoff(); ; {
		if !r.adopts && stops(r.standing()) {
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
		case refused(err) && !r.adopts && stops(r.standing()):
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

func (r *rank) claimed(c berth.Claim) {
	r.claim, r.number, r.named = c, c.Rank, true
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Rank = c.Rank
	if r.report.Phase == "" {
		r.report.Phase = berth.PhaseClaimed
	}
	r.mergeOrders(c.Orders)
	r.runLimit = c.RunLimit.Std()
	r.logEnd = c.LogOffset
}

// grace is the time between SIGTERM and SIGKILL that the job asked for.
func (r *rank) grace() time.Duration {
	if g := r.claim.Spec.StopGrace; g != nil {
		return g.Std()
	}
	return berth.DefaultStopGrace
}

// resources that are real: declared devices exist on paper only.
func (r *rank) engineGPUs() []string {
	if r.sup.cfg.GPUs.Declared() {
		return nil
	}
	return slices.Clone(r.claim.GPUs)
}
