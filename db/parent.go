package db

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// Bounds of one pass over a parent. A pass is a step of a workflow, and holds the lock of the
// parent's row.
const (
	expandBatch = lifecycle.ExpandBatch // elements per statement

	// milestone is the number of elements by which an array advances before its workflow is
	// signalled to create more. Each signal adds some events to the workflow's history.
	milestone = 500

	// followUp is the greatest number of jobs below one parent that a cancel, an update or a
	// pass stops itself, in batches of stopBatch. The workflows of the others have been
	// signalled, and the reconciler finds the rest.
	followUp = 100
)

// lockedParent is a parent's row under lock, with its children counted by status after the
// lock was granted. Of two passes that derive something from the counts, the later one
// therefore sees the result of the earlier one. The embedded Parent holds the facts by which
// package lifecycle decides.
type lockedParent struct {
	lifecycle.Parent
	Tenant   berth.TenantID
	QueueFor spec.Duration // queue_timeout of each element; 0: none
}

// lockParent locks a parent's row and counts its children, in two statements of one round
// trip: the count must begin after the lock is granted.
func lockParent(ctx context.Context, tx pgx.Tx, id berth.JobID) (p lockedParent, err error) {
	args := namedArgs{"id": id, "batch": expandBatch}
	batch := &pgx.Batch{}
	batch.Queue(`
		SELECT kind, state, tenant, held, blocked, parent IS NOT NULL, total, expanded, max_failures,
			cancel_requested_at IS NOT NULL, reason, fail_fast,
			CASE WHEN kind <> 'array' THEN '{}' WHEN indexes IS NULL
				THEN ARRAY(SELECT generate_series(expanded, least(expanded + @batch, total) - 1))
				ELSE indexes[expanded + 1 : expanded + @batch] END,
			coalesce((SELECT s.spec -> 'queue_timeout' FROM job_specs s WHERE s.job = id), 'null')
		FROM jobs
		WHERE id = @id
		FOR NO KEY UPDATE`, args).QueryRow(func(row pgx.Row) error {
		var queue []byte
		err := row.Scan(&p.Kind, &p.State, &p.Tenant, &p.Held, &p.Blocked, &p.HasParent, &p.Tally.Total,
			&p.Expanded, &p.MaxFailures, &p.CancelAsked, &p.Reason, &p.FailFast, &p.Next, &queue)
		if err != nil || string(queue) == "null" {
			return err
		}
		return json.Unmarshal(queue, &p.QueueFor)
	})
	batch.Queue(`
		SELECT j.state, count(*), count(*) FILTER (WHERE `+skippedStep("j")+`)
		FROM jobs j
		WHERE j.parent = @id
		GROUP BY j.state`, args).Query(func(rows pgx.Rows) error {
		p.Tally.ByStatus = map[berth.State]int{}
		var state berth.State
		var n, skipped int
		_, err := pgx.ForEachRow(rows, []any{&state, &n, &skipped}, func() error {
			p.Tally.ByStatus[state] = n
			p.Skipped += skipped
			return nil
		})
		return err
	})
	p.ID = id
	err = tx.SendBatch(ctx, batch).Close()
	made := 0
	for _, n := range p.Tally.ByStatus {
		made += n
	}
	p.Tally.Unmade = p.Tally.Total - made
	return p, err
}

// Reconcile is one pass over a parent, by its row and its children: it creates the
// elements that are due, cancels the children of a parent that is to stop, holds the
// children of a held parent, and ends the parent once all children have ended. It is
// the only writer of a parent's end, under the lock of its row. Repeated and concurrent
// passes change nothing further; a parent that has ended stays as it is.
func (d *Parents) Reconcile(ctx context.Context, id berth.JobID) (wire.ReconcileResult, error) {
	left := followUp
	return reconcileOnce(ctx, d.core, id, &left)
}

// reconcileOnce is one pass of Reconcile. It stops at most *left jobs and subtracts their
// number; it descends into nested parents while some are left.
func reconcileOnce(ctx context.Context, d *core, id berth.JobID, left *int) (wire.ReconcileResult, error) {
	var result wire.ReconcileResult
	var did tended
	news := false // the parent is itself a child, and its own parent must react to its new state
	err := d.tx(ctx, func(tx pgx.Tx) error {
		// The closure may run more than once; see core.tx.
		did = tended{}
		p, err := lockParent(ctx, tx, id)
		switch {
		case err != nil:
			return err
		case p.Kind == berth.KindJob:
			return berth.Errorf(berth.CodeInvalid, "job %s has no elements", id)
		case p.State.Terminal():
			result = wire.ReconcileResult{State: p.State}
			return nil
		}
		before := p.State
		did, err = reconcilePass(ctx, tx, &p)
		result = wire.ReconcileResult{State: p.State, More: did.more}
		if err == nil && len(did.ready) > 0 {
			result.Ready, result.Tenant = did.ready, p.Tenant
			if result.User, err = submitter(ctx, tx, id); err != nil {
				return err
			}
		}
		news = p.News(before)
		if err != nil || len(did.made) == 0 {
			return err
		}
		// Here, in the transaction, and below, between the commit and the hints: no decorator of
		// Reconcile sees these moments.
		return failpoint.Hit("worker.expand.before")
	})
	if err == nil && len(did.made) > 0 {
		err = failpoint.Hit("worker.expand.after")
	}
	if err != nil {
		return wire.ReconcileResult{}, mapError(err, "job "+string(id))
	}
	did.publish(d.hub, id)
	if news {
		notifyParents(ctx, d, id)
	}
	wakeDependents(ctx, d, did.over(id)...)
	did.stop = did.stop[:min(len(did.stop), max(0, *left))]
	// In separate transactions, which lock the members. The parent's row keeps new members
	// from starting meanwhile.
	if err := stopJobs(ctx, d, did.stop, did.actor, did.reason); err != nil {
		return result, err
	}
	*left -= len(did.stop)
	return result, stopInside(ctx, d, did.stopping, left)
}

// reconcileThrough implements Parents.ReconcileThrough, for other stores.
func reconcileThrough(ctx context.Context, d *core, id berth.JobID, left *int) (berth.State, error) {
	for {
		r, err := reconcileOnce(ctx, d, id, left)
		if err != nil || !r.More || *left <= 0 {
			return r.State, err
		}
	}
}

// ReconcileThrough reconciles a parent until nothing is due, or until *left jobs were ordered
// to stop; it subtracts these jobs from *left. With *left 0 it makes one pass that stops no
// job.
func (d *Parents) ReconcileThrough(ctx context.Context, id berth.JobID, left *int) (berth.State, error) {
	return reconcileThrough(ctx, d.core, id, left)
}

// tended is the result of a pass, to be published after the commit.
type tended struct {
	ending
	made    []string      // created elements, which need a workflow
	skipped []string      // steps that succeeded without running
	stop    []berth.JobID // elements that hold capacity and must stop
	ready   []wire.Ready  // steps that may start
	actor   string
	reason  *berth.Reason
	changed bool // the parent's row has changed
	queue   bool // the input of the leader's plan has changed
	more    bool // another pass has work to do
	ended   bool // the parent has ended
}

// over returns the jobs that ended by a pass over parent id: jobs outside may wait for them.
func (t tended) over(id berth.JobID) []berth.JobID {
	ids := t.ids()
	for _, step := range t.skipped {
		ids = append(ids, berth.JobID(step))
	}
	if t.ended {
		ids = append(ids, id)
	}
	return ids
}

// publish sends the hints about a pass over parent id.
func (t tended) publish(h *Hub, id berth.JobID) {
	h.Publish(TopicSubmit, t.made...)
	t.ending.publish(h)
	h.Publish(TopicJob, t.skipped...)
	if t.queue {
		h.Publish(TopicQueue, "")
	}
	if t.changed {
		h.Publish(TopicJob, string(id))
	}
}

// reconcilePass makes one pass over a locked parent, as lifecycle.Reconcile decides.
func reconcilePass(ctx context.Context, tx pgx.Tx, p *lockedParent) (did tended, err error) {
	pass := lifecycle.Reconcile(p.Parent)
	if pass.Queue {
		if err := p.move(ctx, tx, berth.Queued, "workflow", nil); err != nil {
			return did, err
		}
		did.changed = true
	}
	if pass.Fail != nil {
		if err := p.move(ctx, tx, berth.Canceling, "workflow", pass.Fail); err != nil {
			return did, err
		}
		p.Reason, did.changed = pass.Fail, true
	}
	hopeless := false
	if pass.CancelHopeless {
		if hopeless, err = p.cancelAllHopeless(ctx, tx, &did); err != nil {
			return did, err
		}
	}
	if pass.Hold {
		if did.more, err = p.hold(ctx, tx); err != nil {
			return did, err
		}
		// The children of a parent that is still submitted are not in the leader's plan.
		did.queue = did.more && p.State != berth.Submitted
	}
	switch act := pass.Last(hopeless); act {
	case lifecycle.ActRest:
		return did, nil
	case lifecycle.ActEnd:
		did.changed, did.ended = true, true
		return did, p.end(ctx, tx)
	case lifecycle.ActStop:
		return did, p.stop(ctx, tx, &did, lifecycle.SpareNone)
	case lifecycle.ActExpand:
		return did, p.expand(ctx, tx, &did)
	case lifecycle.ActAdvance:
		return did, p.advance(ctx, tx, &did, pass)
	default:
		panic("unknown act of a pass " + string(act))
	}
}

// move changes the parent's state. With a terminal state it also stores the tally.
func (p *lockedParent) move(ctx context.Context, tx pgx.Tx, to berth.State, actor string, reason *berth.Reason) error {
	var tally *wire.Tally
	if to.Terminal() {
		tally = &p.Tally
	}
	_, err := tx.Exec(ctx, `
		UPDATE jobs
		SET state = @to, version = version + 1, actor = @actor, reason = @reason, tally = @tally
		WHERE id = @id`,
		namedArgs{"id": p.ID, "to": to, "actor": actor, "reason": reason, "tally": tally})
	p.State = to
	return err
}

// end sets the final state of a parent whose children have all ended.
func (p *lockedParent) end(ctx context.Context, tx pgx.Tx) error {
	state, reason := p.End()
	if state == berth.Canceled && p.State != berth.Canceling { // its final steps ran meanwhile
		if err := p.move(ctx, tx, berth.Canceling, "workflow", reason); err != nil {
			return err
		}
	}
	if state != berth.Failed {
		return p.move(ctx, tx, state, "workflow", reason)
	}
	var indexes []int
	var steps string
	err := tx.QueryRow(ctx, `
		SELECT ARRAY(
			SELECT array_index
			FROM jobs
			WHERE parent = @id AND state = 'failed' AND array_index IS NOT NULL
			ORDER BY array_index
			LIMIT @limit), coalesce((
			SELECT string_agg(step, ', ' ORDER BY id)
			FROM jobs
			WHERE parent = @id AND state = 'failed'), '')`,
		namedArgs{"id": p.ID, "limit": lifecycle.ShownFailures}).Scan(&indexes, &steps)
	if err != nil {
		return err
	}
	failure := p.Failure(indexes, steps)
	return p.move(ctx, tx, state, "workflow", &failure)
}

// stop cancels the children of a parent that are not spared: waiting ones in this transaction,
// and some of the ones that hold capacity after the commit.
func (p *lockedParent) stop(ctx context.Context, tx pgx.Tx, did *tended, spare lifecycle.Spared) error {
	did.actor, did.reason = "workflow", p.StopReason()
	canceled, err := p.cancelChildren(ctx, tx, did, spare)
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, `
		SELECT id::text
		FROM jobs
		WHERE parent = @id AND kind = 'job' AND state IN ('scheduled', 'running', 'preempting')
		  AND NOT `+sparedStep+`
		LIMIT @limit`, namedArgs{"id": p.ID, "limit": followUp, "spare": spare})
	if err != nil {
		return err
	}
	did.stop, err = pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
	did.queue = did.queue || len(did.canceled) > 0
	did.more = did.more || canceled || len(did.stop) > 0
	return err
}

// hold holds a batch of the waiting children of a held parent. Nested pipelines and arrays
// are held as well, and hold their own children when they are reconciled. The nested parents
// are held at every depth at once, since the leader checks only the parent directly above a
// job.
func (p *lockedParent) hold(ctx context.Context, tx pgx.Tx) (some bool, err error) {
	var inner int64
	if p.Kind == berth.KindPipeline {
		if inner, err = holdBelow(ctx, tx, p.ID, "workflow"); err != nil {
			return false, err
		}
	}
	tag, err := tx.Exec(ctx, `
		WITH waiting AS (
			SELECT id
			FROM jobs
			WHERE parent = @parent AND NOT held AND (state IN ('submitted', 'queued', 'retrying') OR kind <> 'job'
				AND state = 'running')
			ORDER BY id
			LIMIT @limit
			FOR NO KEY UPDATE
		), changed AS (
			UPDATE jobs j
			SET held = true, held_at = now(), version = j.version + 1, event_seq = j.event_seq + 1, actor = 'workflow'
			FROM waiting
			WHERE j.id = waiting.id
			RETURNING j.id, j.event_seq, j.attempt
		)
		INSERT INTO job_events (job, seq, at, kind, attempt, actor, detail)
		SELECT id, event_seq, clock_timestamp(), 'updated', attempt, 'workflow', 'held with its parent'
		FROM changed`, namedArgs{"parent": p.ID, "limit": expandBatch})
	return inner+tag.RowsAffected() > 0, err
}
