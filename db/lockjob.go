package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/failure"
	"berth/spec"
)

// lockedJob is a job's row and the members of its current attempt. All rows are locked, in
// lock order, and stay unchanged by other transactions until this transaction ends.
type lockedJob struct {
	ID          berth.JobID
	State       berth.State
	Attempt     int
	Class       string
	Grace       time.Duration
	Retry       spec.RetryPolicy
	CancelAt    *time.Time
	Preempted   bool
	Avoid       []berth.MachineID
	Failures    int
	Losses      int
	OOMGrown    bool
	Checkpoint  bool
	Reason      *berth.Reason
	HasParent   bool
	Kind        berth.Kind
	HeldAt      *time.Time
	HasOutputs  bool         // the spec declares outputs
	Cached      bool         // a step whose result later jobs may reuse
	AttemptNext *berth.State // the job's state after the requested attempt
	Ranks       []lockedRank
}

// lockedRank is an allocation of the current attempt.
type lockedRank struct {
	ID       berth.AllocationID
	Rank     int
	Machine  berth.MachineID
	State    berth.AllocationState
	Exit     *failure.Exit
	Claimed  bool
	Sealed   bool
	Orphaned bool // at some time, even if released since
	Suspect  bool // the machine died soon after the member's start, without another cause
	CutOff   bool // sealed on behalf of a machine that had not stored the whole output
	Age      time.Duration
	LastStep *int64
	Drain    string // drain reason of the machine; "" if the machine is not drained
}

// lockJob locks a job and its current members, jobs before allocations. The statements
// share one round trip but have a snapshot each, so the later ones see the commit that the
// first one waited for. Tenant "" means any tenant. AttemptNext is read for attempt.
func lockJob(ctx context.Context, tx pgx.Tx, tenant berth.TenantID, id berth.JobID, attempt int) (lockedJob, error) {
	args := pgx.NamedArgs{"job": id, "tenant": string(tenant), "attempt": attempt}
	batch := &pgx.Batch{}
	batch.Queue(`
		SELECT j.state, j.attempt, j.class, j.grace_ms,
			coalesce((SELECT s.spec -> 'retry' FROM job_specs s WHERE s.job = j.id), '{}'),
			j.cancel_requested_at, j.preempted_for IS NOT NULL, j.avoid, j.failures, j.losses, j.oom_grown,
				j.has_checkpoint,
			j.reason, j.parent IS NOT NULL, j.held_at, j.kind,
			coalesce((SELECT ARRAY[s.spec ? 'outputs', s.spec ? 'cache'] FROM job_specs s WHERE s.job = j.id), '{f,f}')
		FROM jobs j
		WHERE j.id = @job AND (@tenant = '' OR j.tenant = @tenant)
		FOR NO KEY UPDATE OF j`, args)
	batch.Queue(`SELECT (SELECT next_state FROM attempts WHERE job = @job AND attempt = @attempt)`, args)
	batch.Queue(`
		SELECT a.id, a.rank, a.machine_id, a.state, a.exit, a.claimed_at IS NOT NULL, a.sealed_at IS NOT NULL,
			a.orphaned_at IS NOT NULL, (extract(epoch FROM now() - a.reserved_at) * 1000)::bigint,
			(a.progress ->> 'step')::bigint, `+suspect+`, a.cut_off,
			CASE WHEN m.state = 'draining' THEN coalesce(nullif(m.drain_reason, ''), 'machine is drained') ELSE '' END
		FROM allocations a
		LEFT JOIN machines m ON m.id = a.machine_id
		WHERE a.job = @job AND a.attempt = (SELECT j.attempt FROM jobs j
			WHERE j.id = @job AND (@tenant = '' OR j.tenant = @tenant))
		ORDER BY a.id
		FOR NO KEY UPDATE OF a`, args)
	results := tx.SendBatch(ctx, batch)
	job, err := scanLockedJob(results)
	if closed := results.Close(); err == nil {
		err = closed
	}
	job.ID = id
	return job, err
}

func scanLockedJob(results pgx.BatchResults) (j lockedJob, err error) {
	var graceMS int64
	var says []bool
	err = results.QueryRow().Scan(&j.State, &j.Attempt, &j.Class, &graceMS, &j.Retry, &j.CancelAt,
		&j.Preempted, &j.Avoid,
		&j.Failures, &j.Losses, &j.OOMGrown, &j.Checkpoint, &j.Reason, &j.HasParent, &j.HeldAt, &j.Kind, &says)
	if err != nil {
		return j, err
	}
	j.HasOutputs, j.Cached = says[0], says[1]
	j.Grace = time.Duration(graceMS) * time.Millisecond
	if err := results.QueryRow().Scan(&j.AttemptNext); err != nil {
		return j, err
	}
	rows, err := results.Query()
	if err != nil {
		return j, err
	}
	j.Ranks, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r lockedRank, err error) {
		var ageMS int64
		err = row.Scan(&r.ID, &r.Rank, &r.Machine, &r.State, &r.Exit, &r.Claimed, &r.Sealed, &r.Orphaned, &ageMS,
			&r.LastStep, &r.Suspect, &r.CutOff, &r.Drain)
		r.Age = time.Duration(ageMS) * time.Millisecond
		return r, err
	})
	return j, err
}

// touched collects the hints of a transaction, to be published after the commit.
type touched struct {
	job      berth.JobID
	machines []berth.MachineID
	queue    bool // input of the leader's plan: the job or the machines' capacity
}

// publish sends the hints. It must follow the commit.
func (t touched) publish(h *Hub) {
	if t.job == "" {
		return
	}
	keys := make([]string, len(t.machines))
	for i, m := range t.machines {
		keys[i] = string(m)
	}
	if t.queue {
		h.Publish(TopicQueue, append(keys, string(t.job))...)
	}
	h.Publish(TopicJob, string(t.job))
	if len(keys) > 0 {
		h.Publish(TopicMachine, keys...)
	}
}
