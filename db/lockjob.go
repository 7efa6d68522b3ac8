package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
	"berth/spec"
)

// lockedJob is a job's row and the members of its current attempt. All rows are locked, in
// lock order, and stay unchanged by other transactions until this transaction ends. The
// embedded Job holds the facts by which package lifecycle decides.
type lockedJob struct {
	lifecycle.Job
	Class      string
	HasParent  bool
	Kind       berth.Kind
	HeldAt     *time.Time
	HasOutputs bool // the spec declares outputs
	Cached     bool // a step whose result later jobs may reuse
	Needed     bool // others wait for its end; see wakeDependents
	Holds      bool // the spec asks to hold failed attempts; see newHold
}

// lockJob locks a job and its current members, jobs before allocations. The statements
// share one round trip but have a snapshot each, so the later ones see the commit that the
// first one waited for. Tenant "" means any tenant. Settled is read for attempt.
func lockJob(ctx context.Context, tx pgx.Tx, tenant berth.TenantID, id berth.JobID, attempt int) (lockedJob, error) {
	args := namedArgs{"job": id, "tenant": string(tenant), "attempt": attempt}
	batch := &pgx.Batch{}
	batch.Queue(`
		SELECT j.state, j.attempt, j.class, j.grace_ms,
			coalesce((SELECT s.spec -> 'retry' FROM job_specs s WHERE s.job = j.id), '{}'),
			j.cancel_requested_at, j.preempted_for IS NOT NULL, j.avoid, j.failures, j.losses, j.oom_grown,
				j.has_checkpoint,
			j.reason, j.parent IS NOT NULL, j.held_at, j.kind, j.lead_first, j.lead_last,
			coalesce((SELECT s.spec -> 'groups' FROM job_specs s WHERE s.job = j.id), '[]'),
			coalesce((SELECT ARRAY[s.spec ? 'outputs', s.spec ? 'cache', s.spec ? 'hold_on_failure']
				FROM job_specs s WHERE s.job = j.id), '{f,f,f}'),
			j.debug
		FROM jobs j
		WHERE j.id = @job AND (@tenant = '' OR j.tenant = @tenant)
		FOR NO KEY UPDATE OF j`, args)
	batch.Queue(`SELECT (SELECT next_state FROM attempts WHERE job = @job AND attempt = @attempt),
			EXISTS (SELECT 1 FROM job_needs WHERE needs = @job)`, args)
	batch.Queue(`
		SELECT a.id, a.rank, a.machine_id, a.state, a.exit, a.claimed_at IS NOT NULL, a.sealed_at IS NOT NULL,
			a.orphaned_at IS NOT NULL, (extract(epoch FROM now() - a.reserved_at) * 1000)::bigint,
			(a.progress ->> 'step')::bigint, `+suspect+`, a.cut_off, a.hang,
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

// scanLockedJob reads the results of the statements of lockJob, in their order. A job that does not
// exist, or is another tenant's, is pgx.ErrNoRows.
func scanLockedJob(results pgx.BatchResults) (j lockedJob, err error) {
	var graceMS int64
	var says []bool
	var first, last *int // of the leading members
	var groups []spec.Group
	err = results.QueryRow().Scan(&j.State, &j.Attempt, &j.Class, &graceMS, &j.Retry, &j.CancelAt,
		&j.Preempted, &j.Avoid,
		&j.Failures, &j.Losses, &j.OOMGrown, &j.Checkpoint, &j.Reason, &j.HasParent, &j.HeldAt, &j.Kind,
		&first, &last, &groups, &says, &j.Debug)
	if err != nil {
		return j, err
	}
	j.HasOutputs, j.Cached, j.Holds = says[0], says[1], says[2]
	j.Grace = time.Duration(graceMS) * time.Millisecond
	if err := results.QueryRow().Scan(&j.Settled, &j.Needed); err != nil {
		return j, err
	}
	rows, err := results.Query()
	if err != nil {
		return j, err
	}
	j.Members, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (m lifecycle.Member, err error) {
		var ageMS int64
		err = row.Scan(&m.ID, &m.Rank, &m.Machine, &m.State, &m.Exit, &m.Claimed, &m.Sealed, &m.Orphaned, &ageMS,
			&m.LastStep, &m.Suspect, &m.CutOff, &m.Hang, &m.Drain)
		m.Age = time.Duration(ageMS) * time.Millisecond
		g, _, _ := spec.GroupOf(spec.Job{Groups: groups}, m.Rank)
		m.Group = g.Name
		m.Leads = first != nil && last != nil && m.Rank >= *first && m.Rank <= *last
		return m, err
	})
	return j, err
}

// touched collects the hints of a transaction, to be published after the commit. A hint before the
// commit would let a reader miss the change.
type touched struct {
	job      berth.JobID
	machines []berth.MachineID
	queue    bool // input of the leader's plan: the job or the machines' capacity
}

// publish sends the hints. It must follow the commit. Without a job the transaction has changed
// nothing, and no hint is sent.
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
