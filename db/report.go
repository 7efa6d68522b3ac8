package db

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/failure"
	"berth/internal/lib/failpoint"
	"berth/wire"
)

// phaseOrder ranks the phases: the phase of a member never decreases.
var phaseOrder = map[berth.Phase]int{
	berth.PhaseNone: 0, berth.PhaseClaimed: 1, berth.PhasePulling: 2, berth.PhaseRestoring: 3,
	berth.PhasePrepared: 4, berth.PhaseRunning: 5, berth.PhaseExited: 6, berth.PhaseSealed: 7,
}

// reporting applies the reports of one call to the rows. A member that ends by itself, the
// usual case, changes only its allocation. The job's row is locked only where necessary:
// the last prepared member orders all members to start, the last start makes the job
// running, and events are numbered under that lock.
type reporting struct {
	tx      pgx.Tx
	machine berth.MachineID
	req     wire.SyncRequest
	actor   string // of the events

	part bool // of a split call: earlier parts may have stored its seq

	writes pgx.Batch // sent together, in lock order

	lockJobs map[berth.JobID]bool // jobs that must be locked
	starting map[berth.JobID]bool // jobs of lockJobs with a report of a started member
	jobs     map[berth.JobID]*reportedJob
	rows     map[berth.AllocationID]*reportedRow
	order    []berth.AllocationID // keys of rows in lock order
	owesKill bool                 // the machine has not yet confirmed the removal of all containers to remove
	gang     bool                 // this call ordered the members of a gang to start

	// The fields below are used after the commit.
	heard
	freed    bool                     // input of the leader's plan has changed
	sealed   []string                 // allocations whose end these reports sealed
	touched  map[berth.JobID]bool     // jobs to publish a hint for
	machines map[berth.MachineID]bool // other machines with new orders
	unfit    []*reportedRow           // members whose end reports that the operator's check finds the machine unfit
}

// heard is the result of applying the reports of a call; the call's answer contains it.
type heard struct {
	stale   []berth.AllocationID // not current: their containers are to be killed
	started []berth.AllocationID // ordered to start because of the reports, on the same machine
	refused []wire.Refused       // reports that can never be stored
	mark    *wire.Watermark      // the newest one when the reports were stored; nil: none were stored
	// quarantined: the cluster waits for its adoption, and the answer has no orders.
	quarantined bool
	known       bool // the answer is complete: machine not suspect, no later call was first
}

// add merges the result of one part of the call.
func (h *heard) add(part heard) {
	h.stale, h.started = append(h.stale, part.stale...), append(h.started, part.started...)
	h.known, h.quarantined = h.known && part.known, h.quarantined || part.quarantined
	if h.mark == nil {
		h.mark = part.mark
	}
}

// reportedJob is a job's row, locked for this call.
type reportedJob struct {
	ID      berth.JobID
	State   berth.State
	Attempt int
	Digest  string // of the image; "" before the first report of it

	moves     bool   // a report of a prepared or started member; all members are then locked
	newDigest string // of the image, reported for the first time
}

// reportedRow is a locked allocation with its columns and, in the lower-case fields, the
// changes.
type reportedRow struct {
	ID        berth.AllocationID
	Job       berth.JobID
	Attempt   int
	Rank      int
	Machine   berth.MachineID
	Epoch     int64 // of the machine when the allocation was reserved
	State     berth.AllocationState
	Phase     berth.Phase
	Sealed    bool
	HasExit   bool
	Orders    berth.Orders
	Forgotten bool // the machine has confirmed that the container is removed
	Started   bool

	changed  bool
	prepared bool // first by this report
	exit     *failure.Exit
	left     outputsLeft // known with the seal; the exit may already be recorded
	step     *berth.Progress
	begun    bool         // by this report: set started_at
	forget   bool         // set forgotten_at
	unfit    failure.Exit // by this report, with CheckFailed
}

// reportOnce applies the reports of a machine in one transaction and publishes the hints
// after the commit. part says that the same call may already have stored other reports.
func (d *Agents) reportOnce(
	ctx context.Context, machine berth.MachineID, req wire.SyncRequest, part bool,
) (heard, error) {
	lock, starting := map[berth.JobID]bool{}, map[berth.JobID]bool{}
	for _, p := range req.Reports {
		if err := checkReport(p); err != nil {
			return heard{}, err
		}
		if needsJob(p) {
			lock[p.Job] = true
		}
	}
	var r *reporting
	err := d.movedTx(ctx, func(tx pgx.Tx) error {
		r = &reporting{
			tx: tx, machine: machine, req: req, actor: AgentActor(machine), part: part, lockJobs: lock,
			starting: starting, touched: map[berth.JobID]bool{}, machines: map[berth.MachineID]bool{},
		}
		if err := r.run(ctx); err != nil || !r.gang {
			return err
		}
		// Here, in the transaction, and below, between the commit and the hints: no decorator of
		// Sync sees these moments, nor which reports start a gang.
		return failpoint.Hit("api.gang.before")
	})
	// Nothing is stored; the answer to the later call is the one that counts.
	if errors.Is(err, errOvertaken) {
		return heard{}, nil
	}
	if errors.Is(err, errMustLeap) {
		if _, err := vouch(ctx, d.core, req.Watermark); err != nil { // in a transaction of its own
			return heard{}, err
		}
		return heard{}, errRestored(machine)
	}
	if err != nil {
		return heard{}, err
	}
	if r.gang {
		if err := failpoint.Hit("api.gang.after"); err != nil {
			return heard{}, err
		}
	}
	if len(r.sealed) > 0 {
		d.hub.Publish(TopicEnd, r.sealed...)
	}
	for job := range r.touched {
		d.hub.Publish(TopicJob, string(job))
	}
	for m := range r.machines {
		d.hub.Publish(TopicMachine, string(m))
	}
	if r.freed {
		d.hub.Publish(TopicQueue, "")
	}
	return r.heard, nil
}

// errMustLeap aborts the reports of a machine whose watermark is ahead of the database: the
// database lost rows in a restore.
var errMustLeap = errors.New("the machine is ahead of the database")

// errOvertaken aborts a call after a later call of the same agent process.
var errOvertaken = errors.New("a later report was here before")

// needsJob reports whether a report may change the job's state or adds an event. The first
// report of a running member normally has no progress yet; if a report with progress is
// stored first, lockMore adds the lock.
func needsJob(p wire.RankReport) bool {
	starts := p.Phase == berth.PhaseRunning && p.Progress == nil
	return p.Phase == berth.PhasePrepared || starts || p.Warning != "" || p.Exit != nil && !plain(*p.Exit)
}

// started reports whether the member's container has started according to this report.
func started(p wire.RankReport) bool {
	return p.Phase == berth.PhaseRunning || p.Exit != nil && p.Exit.Started()
}

// plain reports whether an exit is an ordinary success. It needs no event, since the job's
// verdict shows the same.
func plain(x failure.Exit) bool {
	return x.Cause == failure.CauseExited && x.Code == 0 && x.CheckFailed == ""
}

// run applies the reports within one transaction. The transaction may run several times, so
// run starts from empty results.
func (r *reporting) run(ctx context.Context) error {
	r.order, r.heard, r.freed, r.gang, r.sealed, r.writes = nil, heard{}, false, false, nil, pgx.Batch{}
	r.unfit = nil
	for _, step := range []func(context.Context) error{
		r.lock, r.apply, r.write, r.startJobs, r.writeMachine, r.writeCache, r.renew, r.send,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// apply computes the change of each locked row from its report. It writes no allocation.
func (r *reporting) apply(ctx context.Context) error {
	if err := r.checkForgotten(ctx); err != nil {
		return err
	}
	if err := r.lockMore(); err != nil {
		return err
	}
	for _, p := range r.req.Reports {
		a := r.rows[p.Alloc]
		if !r.isOf(a, p) {
			r.stale = append(r.stale, p.Alloc)
			continue
		}
		if err := r.applyOne(ctx, a, p); err != nil {
			return err
		}
	}
	// Gone lists allocations without a container on the machine.
	for _, id := range r.req.Gone {
		a := r.rows[id]
		if a == nil || a.Machine != r.machine || a.Forgotten {
			continue
		}
		switch a.State {
		case berth.AllocOrphaned:
			if err := r.release(ctx, a, "its container is gone"); err != nil {
				return err
			}
			a.forget = true
		case berth.AllocReleased:
			a.changed, a.forget = true, true
		case berth.AllocExited:
			a.changed, a.forget = true, a.Orders.Forget
		case berth.AllocReserved, berth.AllocActive:
			// Present work ends by a report of its exit, never by absence alone.
		default:
			panic("unknown allocation state " + string(a.State))
		}
	}
	return nil
}

// isOf reports whether a report is about the allocation's own member, on this machine.
func (r *reporting) isOf(a *reportedRow, p wire.RankReport) bool {
	return a != nil && a.Machine == r.machine && a.Job == p.Job && a.Attempt == p.Attempt && a.Rank == p.Rank
}

// checkForgotten refuses the call if a reported member is in no row and its job is not in
// the archive: the database has lost both. A report answered as stale would make the agent
// kill the container; the requested registration leaves the container alone (see
// quarantine).
func (r *reporting) checkForgotten(ctx context.Context) error {
	var jobs []string
	for _, p := range r.req.Reports {
		if a := r.rows[p.Alloc]; a == nil || a.Job != p.Job {
			jobs = append(jobs, string(p.Job))
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	var forgotten bool
	err := r.tx.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT 1
			FROM unnest(@jobs::text[]::uuid[]) AS x (job)
			WHERE NOT EXISTS (SELECT 1 FROM archived_jobs j WHERE j.id = x.job)
		)`, namedArgs{"jobs": jobs}).Scan(&forgotten)
	if err != nil {
		return fmt.Errorf("look for forgotten jobs: %w", err)
	}
	if forgotten {
		return berth.ErrStaleEpoch("machine %s reports work that the database does not know: register again", r.machine)
	}
	return nil
}

// applyOne computes the change of one allocation from one report. A report of another epoch
// or of a released allocation is stale, and the agent kills the container.
func (r *reporting) applyOne(ctx context.Context, a *reportedRow, p wire.RankReport) error {
	ended := phaseOrder[p.Phase] >= phaseOrder[berth.PhaseExited] && p.Exit != nil
	switch a.State {
	// An orphan is stale in any case; the report of its end releases its capacity.
	case berth.AllocOrphaned:
		r.stale = append(r.stale, a.ID)
		if !ended || a.Epoch != r.req.Epoch {
			return nil
		}
		a.exit = p.Exit
		return r.release(ctx, a, "its container has ended")
	case berth.AllocReleased:
		// The agent abandons a stale member, and must have its order to keep the folder before that.
		if !a.Orders.Keep {
			r.stale = append(r.stale, a.ID)
		}
		return nil
	case berth.AllocReserved, berth.AllocActive:
		if a.Epoch != r.req.Epoch {
			r.stale = append(r.stale, a.ID)
			return nil
		}
		r.catchUp(a, p, ended)
	case berth.AllocExited:
		if a.Sealed {
			return nil
		}
	default:
		panic("unknown allocation state " + string(a.State))
	}
	// The capacity is free from here on, also while the uploads of the exited member go on.
	if ended && a.State != berth.AllocExited {
		a.State, a.changed = berth.AllocExited, true
		r.freed = true
	}
	if ended && !a.HasExit {
		a.exit, a.changed = p.Exit, true
		r.touched[a.Job] = true
	}
	if ended && !a.Sealed && p.Exit.CheckFailed != "" {
		r.unfit, a.unfit = append(r.unfit, a), *p.Exit
	}
	if ended && p.Phase == berth.PhaseSealed {
		r.sealed = append(r.sealed, strconv.FormatInt(int64(a.ID), 10))
		a.left = outputsLeft{p.Exit.Unstored, p.Exit.Refused, p.Exit.OverQuota}
	}
	if phaseOrder[p.Phase] > phaseOrder[a.Phase] && (ended || phaseOrder[p.Phase] < phaseOrder[berth.PhaseExited]) {
		// An agent that crashed after it started a container reports the container as
		// running at once, without a report of the prepared phase.
		a.prepared = !ended && phaseOrder[a.Phase] < phaseOrder[berth.PhasePrepared] &&
			phaseOrder[p.Phase] >= phaseOrder[berth.PhasePrepared]
		a.Phase, a.changed = p.Phase, true
	}
	if p.Progress != nil {
		a.step, a.changed = p.Progress, true
	}
	return r.tell(ctx, a, p, ended)
}

// catchUp updates a row that lags behind its container: a reservation that its machine
// claimed before the database was restored from a backup, or a container that has started,
// with or without the order. A start may make the job running, so lockMore has locked the
// job's row and its other members by now. The report of an end may also be the first report
// of the start, if the container exited before its start was reported.
func (r *reporting) catchUp(a *reportedRow, p wire.RankReport, ended bool) {
	if !ended && a.State == berth.AllocReserved && phaseOrder[p.Phase] >= phaseOrder[berth.PhaseClaimed] {
		a.State, a.changed = berth.AllocActive, true
	}
	if a.Started || !started(p) {
		return
	}
	a.begun, a.changed = true, true
	r.touched[a.Job] = true
	if j := r.jobs[a.Job]; j != nil && j.Attempt == a.Attempt {
		j.moves = true
	}
}
