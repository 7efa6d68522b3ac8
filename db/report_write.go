package db

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth"
	"berth/failure"
	"berth/wire"
)

// send executes the queued writes in one round trip.
func (r *reporting) send(ctx context.Context) error {
	if r.writes.Len() == 0 {
		return nil
	}
	b := r.writes
	r.writes = pgx.Batch{}
	if err := r.tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("store reports: %w", err)
	}
	return nil
}

// write queues one statement that stores all changed allocations. Times are set once
// (coalesce), so a repeated report changes none of them.
func (r *reporting) write(context.Context) error {
	var (
		id            []int64
		state, phase  []string
		exit, step    []*string
		left          []*string
		begun, forget []bool
		steps         []*reportedRow
	)
	for _, alloc := range r.order {
		a := r.rows[alloc]
		if !a.changed {
			continue
		}
		x, err := document(a.exit)
		if err != nil {
			return err
		}
		p, err := document(a.step)
		if err != nil {
			return err
		}
		l, err := a.left.document()
		if err != nil {
			return err
		}
		left = append(left, l)
		id, state, phase = append(id, int64(a.ID)), append(state, string(a.State)), append(phase, string(a.Phase))
		exit, step, begun, forget = append(exit, x), append(step, p), append(begun, a.begun), append(forget, a.forget)
		if a.step != nil {
			steps = append(steps, a)
		}
	}
	if len(id) == 0 {
		return nil
	}
	r.writes.Queue(`
		UPDATE allocations a
		SET state = x.state,
		    phase = x.phase,
		    exit = coalesce(a.exit || coalesce(x.left_out, '{}')::jsonb, x.exit::jsonb),
		    progress = coalesce(x.progress::jsonb, a.progress),
		    claimed_at = CASE WHEN x.state = 'active' THEN coalesce(a.claimed_at, now()) ELSE a.claimed_at END,
		    started_at = CASE WHEN x.begun OR (x.exit::jsonb) ? 'started_at' THEN coalesce(a.started_at, now())
		      ELSE a.started_at END,
		    prepared_at = CASE WHEN x.begun OR x.phase IN ('prepared', 'running') THEN coalesce(a.prepared_at, now())
		      ELSE a.prepared_at END,
		    exited_at = CASE WHEN x.state = 'exited' THEN coalesce(a.exited_at, now()) ELSE a.exited_at END,
		    sealed_at = CASE WHEN x.state = 'exited' AND x.phase = 'sealed' THEN coalesce(a.sealed_at, now())
		      ELSE a.sealed_at END,
		    released_at = CASE WHEN x.state = 'released' THEN coalesce(a.released_at, now()) ELSE a.released_at END,
		    freed_by = CASE WHEN counts(a.state) AND NOT counts(x.state) THEN 'agent' ELSE a.freed_by END,
		    forgotten_at = CASE WHEN x.forget THEN now() ELSE a.forgotten_at END
		FROM unnest(@id::bigint[], @state::text[], @phase::text[], @exit::text[], @left_out::text[],
			@progress::text[], @begun::bool[], @forget::bool[])
		     AS x (id, state, phase, exit, left_out, progress, begun, forget)
		WHERE a.id = x.id`,
		namedArgs{
			"id": id, "state": state, "phase": phase, "exit": exit, "left_out": left, "progress": step,
			"begun": begun, "forget": forget,
		})
	r.writeSteps(steps)
	return nil
}

// outputsLeft is the part of an exit that is only known with the seal, after the last
// upload.
type outputsLeft struct {
	Unstored []string `json:"unstored,omitempty"` // outputs that could not be stored
	Refused  []string `json:"refused,omitempty"`

	OverQuota string `json:"over_quota,omitempty"`
}

// document returns the JSON document, or nil if all outputs are stored.
func (l outputsLeft) document() (*string, error) {
	if len(l.Unstored) == 0 && len(l.Refused) == 0 {
		return nil, nil
	}
	return document(&l)
}

// writeSteps queues the update of each attempt's last step. Rows of attempts are locked
// after the allocations, and the locks of the allocations exclude a concurrent Settle.
func (r *reporting) writeSteps(rows []*reportedRow) {
	if len(rows) == 0 {
		return
	}
	var job []string
	var attempt []int
	var step []int64
	for _, a := range rows {
		job, attempt, step = append(job, string(a.Job)), append(attempt, a.Attempt), append(step, a.step.Step)
		r.touched[a.Job] = true
	}
	r.writes.Queue(`
		UPDATE attempts t
		SET last_step = x.step
		FROM (
			SELECT job::uuid, attempt, max(step) AS step
			FROM unnest(@job::text[], @attempt::int[], @step::bigint[]) AS x (job, attempt, step)
			GROUP BY 1, 2
		) x
		WHERE t.job = x.job AND t.attempt = x.attempt AND t.last_step IS DISTINCT FROM x.step`,
		namedArgs{"job": job, "attempt": attempt, "step": step})
}

// startJobs advances each job with a report of a prepared or started member:
//
//	members                         next state of the job  effect on the members
//	all have started                running                order to start is recorded
//	all are prepared, some waiting  scheduled              ordered to start
//	otherwise                       scheduled              wait
//
// A member that has ended counts as started if its container ran. A lost or withdrawn
// member never counts as started, so an attempt that loses a member before all have started
// is settled without having been running. A cancel or a preemption moves the job out of
// scheduled under the job's lock, which is held here; a container that starts later is
// stopped.
func (r *reporting) startJobs(ctx context.Context) error {
	// Sorted: writes to jobs follow the order of ids.
	for _, id := range slices.Sorted(maps.Keys(r.jobs)) {
		j := r.jobs[id]
		switch {
		case !j.moves || j.State != berth.Scheduled:
			r.storeDigest(j)
		case r.all(j, (*reportedRow).hasStarted):
			r.runJob(j)
		case r.all(j, (*reportedRow).isPrepared):
			r.storeDigest(j)
			if err := r.orderStart(ctx, j); err != nil {
				return err
			}
		default:
			r.storeDigest(j)
		}
	}
	return nil
}

// runJob makes a job running after the containers of all members have started. A member
// that started without the order gets the order recorded. A job that runs without a digest
// runs an image of no registry, so none is looked for any longer.
func (r *reporting) runJob(j *reportedJob) {
	r.touched[j.ID] = true
	r.writes.Queue(`
		WITH unresolved AS (`+endRequest+`
			  AND @digest = '' AND EXISTS (
				SELECT 1
				FROM jobs
				WHERE id = @job AND state = 'scheduled' AND attempt = @attempt AND coalesce(image_digest, '') = '')
		), started AS (
			UPDATE jobs
			SET state = 'running', version = version + 1, actor = @actor, reason = NULL,
			    image_digest = coalesce(nullif(@digest, ''), image_digest),`+foundByMachine+`
			WHERE id = @job AND state = 'scheduled' AND attempt = @attempt
			RETURNING id, attempt
		), begun AS (
			UPDATE attempts t
			SET started_at = coalesce(t.started_at, now())
			FROM started
			WHERE t.job = started.id AND t.attempt = started.attempt
		)
		UPDATE allocations a
		SET orders = a.orders || '{"start": true}'
		FROM started
		WHERE a.job = started.id AND a.attempt = started.attempt AND a.state = 'active' AND NOT a.orders ? 'start'
		RETURNING a.id, a.machine_id`,
		namedArgs{"job": j.ID, "attempt": j.Attempt, "actor": r.actor, "digest": j.newDigest}).Query(r.noteOrdered)
}

// orderStart orders the members of a job to start, once the last of them is prepared. The
// job stays scheduled until all members have reported their start.
func (r *reporting) orderStart(ctx context.Context, j *reportedJob) error {
	var ranks []orderedRank
	members := 0
	for _, id := range r.order {
		a := r.rows[id]
		if a.Job != j.ID || a.Attempt != j.Attempt {
			continue
		}
		members++
		if !a.Orders.Start {
			ranks = append(ranks, orderedRank{a.Rank, a.Machine})
		}
	}
	if len(ranks) == 0 {
		return nil // a repeated report
	}
	r.gang = r.gang || members > 1
	r.writes.Queue(`
		UPDATE allocations a
		SET orders = a.orders || '{"start": true}'
		FROM jobs j
		WHERE j.id = @job AND j.state = 'scheduled' AND j.attempt = @attempt
		  AND a.job = j.id AND a.attempt = j.attempt AND a.state = 'active' AND NOT a.orders ? 'start'
		RETURNING a.id, a.machine_id`, namedArgs{"job": j.ID, "attempt": j.Attempt}).Query(r.noteOrdered)
	return addEvent(ctx, r.tx, j.ID, wire.Event{
		Kind: wire.EventOrdered, Attempt: j.Attempt, Actor: r.actor,
		Detail: describeOrder("start", ranks),
	})
}

// noteOrdered records the members that were ordered to start. Members on the reporting
// machine are part of the answer to its call; the other machines get a hint.
func (r *reporting) noteOrdered(rows pgx.Rows) error {
	var alloc berth.AllocationID
	var m berth.MachineID
	_, err := pgx.ForEachRow(rows, []any{&alloc, &m}, func() error {
		if m == r.machine {
			r.started = append(r.started, alloc)
		} else {
			r.machines[m] = true
		}
		return nil
	})
	return err
}

// storeDigest stores the digest of the job's image, so that later attempts run the same
// image although its tag may move.
func (r *reporting) storeDigest(j *reportedJob) {
	if j.newDigest == "" || j.State.Terminal() {
		return
	}
	r.writes.Queue(`
		UPDATE jobs
		SET image_digest = @digest,`+foundByMachine+`
		WHERE id = @job`, namedArgs{"job": j.ID, "digest": j.newDigest})
}

// all reports whether every member of the job's attempt satisfies is. All members are
// locked.
func (r *reporting) all(j *reportedJob, is func(*reportedRow) bool) bool {
	some := false
	for _, a := range r.rows {
		if a.Job == j.ID && a.Attempt == j.Attempt {
			some = true
			if !is(a) {
				return false
			}
		}
	}
	return some
}

// isPrepared reports whether the member's container exists, started or not.
func (a *reportedRow) isPrepared() bool {
	return a.State == berth.AllocActive && phaseOrder[a.Phase] >= phaseOrder[berth.PhasePrepared]
}

// hasStarted reports whether the member's container has started; it may have ended since.
func (a *reportedRow) hasStarted() bool {
	return (a.State == berth.AllocActive || a.State == berth.AllocExited) && (a.Started || a.begun)
}

// writeMachine removes confirmed kills from the machine's row and stores the health of
// devices. It first sends the queued writes, whose rows precede the machine in the lock
// order.
func (r *reporting) writeMachine(ctx context.Context) error {
	kills := r.owesKill && len(r.req.Gone) > 0
	if !kills && len(r.req.GPUs) == 0 && len(r.unfit) == 0 {
		return nil
	}
	if err := r.send(ctx); err != nil {
		return err
	}
	if err := closeUnfit(ctx, r); err != nil {
		return err
	}
	if kills {
		tag, err := r.tx.Exec(ctx, `
			WITH left_over AS (
				SELECT m.id, ARRAY(SELECT unnest(m.pending_kills) EXCEPT SELECT unnest(@gone::bigint[])) AS kills
				FROM machines m
				WHERE m.id = @machine
				FOR NO KEY UPDATE
			)
			UPDATE machines m
			SET pending_kills = l.kills,
			    state = CASE WHEN cardinality(l.kills) = 0 AND m.state = 'joining' THEN 'ready' ELSE m.state END,
			    reason = CASE WHEN cardinality(l.kills) = 0 AND m.state = 'joining' THEN '' ELSE m.reason END
			FROM left_over l
			WHERE m.id = l.id`, namedArgs{"machine": r.machine, "gone": ids(r.req.Gone)})
		if err != nil {
			return fmt.Errorf("strike off kills: %w", err)
		}
		// A machine without pending kills leaves state joining and may get work.
		r.freed = r.freed || tag.RowsAffected() > 0
	}
	if len(r.req.GPUs) == 0 {
		return nil
	}
	// The machine's row is stamped too, so that the feed shows the change.
	if _, err := r.tx.Exec(ctx, `UPDATE machines SET reason = reason
		WHERE id = @machine`, namedArgs{"machine": r.machine}); err != nil {
		return fmt.Errorf("stamp machine: %w", err)
	}
	if err := quarantine(ctx, r.tx, r.machine, r.req.GPUs); err != nil {
		return err
	}
	_, err := r.tx.Exec(ctx, `
		UPDATE gpu_devices g
		SET healthy = x.healthy, reason = x.reason
		FROM (
			SELECT g.idx, s.healthy, s.reason
			FROM gpu_devices g
			JOIN unnest(@uuid::text[], @healthy::bool[], @reason::text[]) AS s (uuid, healthy, reason)
				ON s.uuid = g.uuid
			WHERE g.machine_id = @machine
			ORDER BY g.idx
			FOR NO KEY UPDATE OF g
		) x
		WHERE g.machine_id = @machine AND g.idx = x.idx`, gpuArgs(r.machine, r.req.GPUs))
	if err != nil {
		return fmt.Errorf("store health of devices: %w", err)
	}
	r.freed = true
	return nil
}

// closeUnfit closes the machine if the operator's check finds it unfit. A job that has closed
// failure.CheckMachines other machines by failing the check before its start closes no more:
// the job is the better explanation, and could close the whole cluster. The exits of this call
// are sent already, and the locks of the jobs order the calls for other members of a gang.
func closeUnfit(ctx context.Context, r *reporting) error {
	for _, a := range r.unfit {
		if a.unfit.Cause == failure.CauseCheck {
			n, err := closedBy(ctx, r.tx, a, r.machine)
			if err != nil {
				return err
			}
			if n >= failure.CheckMachines {
				continue
			}
		}
		return closeMachine(ctx, r.tx, r.machine, "quarantine: "+a.unfit.CheckFailed+"; then undrain it")
	}
	return nil
}

// closedBy counts the other machines on which the check before the start failed, in the member's
// attempt and the attempts directly before it.
func closedBy(ctx context.Context, tx pgx.Tx, a *reportedRow, machine berth.MachineID) (n int, err error) {
	err = tx.QueryRow(ctx, `
		SELECT count(DISTINCT o.machine_id)
		FROM allocations o
		WHERE o.job = @job AND o.machine_id <> @machine AND o.exit ->> 'cause' = @cause
		  AND o.attempt <= @attempt
		  AND o.attempt > coalesce((
			SELECT max(t.attempt)
			FROM attempts t
			WHERE t.job = @job AND t.attempt < @attempt AND coalesce(t.outcome ->> 'rule', '') <> ALL(@rules)), 0)`,
		namedArgs{
			"job": a.Job, "attempt": a.Attempt, "machine": machine, "cause": failure.CauseCheck,
			"rules": []string{failure.RuleCheckFailed, failure.RuleCheckFailedAgain},
		}).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count machines that job %s has closed: %w", a.Job, err)
	}
	return n, nil
}

// renew queues the write of this call's seq, which also renews the lease. The lease row is
// the last one to be locked. If the agent process was replaced since the session check, the
// row does not match, and the transaction fails with errOvertaken: the old process's seq
// would hide the reports of the new one.
func (r *reporting) renew(context.Context) error {
	r.writes.Queue(`
		UPDATE machine_leases l
		SET seq = @seq, until = clock_timestamp() + @ttl::interval, seen_at = clock_timestamp(), back_at = `+backAt+`
		WHERE machine_id = @machine AND epoch = @epoch AND agent_boot = @boot AND (seq < @seq OR @part AND seq = @seq)`,
		namedArgs{
			"machine": r.machine, "epoch": r.req.Epoch, "boot": r.req.AgentBoot, "seq": r.req.Seq, "part": r.part,
			"ttl": berth.MachineLeaseTTL,
		}).Exec(func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() == 0 {
			return errOvertaken
		}
		return nil
	})
	return nil
}

// document returns v as JSON text, or nil for nil.
func document[T any](v *T) (*string, error) {
	if v == nil {
		return nil, nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	s := string(b)
	return &s, nil
}
