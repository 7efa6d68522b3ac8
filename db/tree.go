package db

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
)

// parentsBelow starts a statement with the table below: the pipelines and arrays inside
// pipeline @id, at every depth. All contents of a pipeline exist from its submit on, so the
// table is complete.
const parentsBelow = `
		WITH RECURSIVE below (id, kind) AS (
			SELECT id, kind
			FROM jobs
			WHERE parent = @id AND kind <> 'job'
			UNION ALL
			SELECT c.id, c.kind
			FROM below b
			JOIN jobs c ON c.parent = b.id
			WHERE b.kind = 'pipeline' AND c.kind <> 'job'
		)`

// innerParents locks the live pipelines and arrays inside a locked pipeline in order of id,
// which is from the outside in.
func innerParents(ctx context.Context, tx pgx.Tx, id berth.JobID) (all, pipelines []berth.JobID, err error) {
	rows, err := tx.Query(ctx, parentsBelow+`
		SELECT id::text, kind
		FROM jobs
		WHERE id IN (SELECT id FROM below) AND state NOT IN ('succeeded', 'failed', 'canceled')
		ORDER BY id
		FOR NO KEY UPDATE`, namedArgs{"id": id})
	if err != nil {
		return nil, nil, err
	}
	return collectParents(rows)
}

// collectParents collects rows of the id and the kind of a parent.
func collectParents(rows pgx.Rows) (all, pipelines []berth.JobID, err error) {
	var inner berth.JobID
	var kind berth.Kind
	_, err = pgx.ForEachRow(rows, []any{&inner, &kind}, func() error {
		all = append(all, inner)
		if kind == berth.KindPipeline {
			pipelines = append(pipelines, inner)
		}
		return nil
	})
	return all, pipelines, err
}

// parentsIn returns a locked parent and, for a pipeline, the live parents inside, which it
// locks.
func parentsIn(ctx context.Context, tx pgx.Tx, id berth.JobID, kind berth.Kind) ([]berth.JobID, error) {
	parents := []berth.JobID{id}
	if kind != berth.KindPipeline {
		return parents, nil
	}
	inner, _, err := innerParents(ctx, tx, id)
	return append(parents, inner...), err
}

// ending collects the changes of a cancel below a parent.
type ending struct {
	canceled []string      // jobs that have ended
	waited   []string      // jobs of canceled with a workflow that may wait
	stopping []berth.JobID // pipelines and arrays that are now canceling, from the outside in
}

// add appends the changes of another batch.
func (e *ending) add(more ending) {
	e.canceled = append(e.canceled, more.canceled...)
	e.waited = append(e.waited, more.waited...)
	e.stopping = append(e.stopping, more.stopping...)
}

// ids returns the jobs that have ended.
func (e ending) ids() []berth.JobID {
	ids := make([]berth.JobID, len(e.canceled))
	for i, id := range e.canceled {
		ids[i] = berth.JobID(id)
	}
	return ids
}

// publish sends the hints. It must follow the commit.
func (e ending) publish(h *Hub) {
	stopping := make([]string, len(e.stopping))
	for i, id := range e.stopping {
		stopping[i] = string(id)
	}
	h.Publish(TopicPoke, append(stopping, e.waited...)...)
	h.Publish(TopicJob, append(stopping, e.canceled...)...)
}

// withdrawal is a cancel of the jobs in a locked parent.
type withdrawal struct {
	parent berth.JobID
	spare  lifecycle.Spared // steps of the parent that stay
	keeps  bool             // the parent keeps its state, since final steps run
	now    bool             // the final steps of pipelines inside are canceled, too
	actor  string
	reason *berth.Reason
}

// args are the arguments of the statements of a withdrawal.
func (w withdrawal) args() namedArgs {
	return namedArgs{"id": w.parent, "spare": w.spare, "now": w.now, "actor": w.actor, "reason": w.reason}
}

// sparedStep is true for a row of a step of @id that a cancel leaves alone; see
// lifecycle.Spared. sparedBelow is the same for a row c below @id, at any depth: a pipeline
// inside that has begun keeps its final steps, unless @now.
const (
	sparedStep  = `CASE @spare WHEN 'final' THEN final WHEN 'branches' THEN branch ELSE false END`
	sparedBelow = `CASE WHEN c.parent <> @id THEN c.final AND NOT @now AND EXISTS (
				SELECT 1 FROM jobs q WHERE q.id = c.parent AND q.state IN ('queued', 'running'))
			  WHEN @spare = 'final' THEN c.final WHEN @spare = 'branches' THEN c.branch ELSE false END`
)

// unsparedParents returns the live pipelines and arrays in a locked pipeline that a withdrawal
// cancels, and the pipelines among them. The caller has locked all of them, so that none of
// them begins meanwhile.
func (w withdrawal) unsparedParents(ctx context.Context, tx pgx.Tx) (all, pipelines []berth.JobID, err error) {
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE below (id, kind, state) AS (
			SELECT c.id, c.kind, c.state
			FROM jobs c
			WHERE c.parent = @id AND c.kind <> 'job' AND NOT `+sparedBelow+`
			UNION ALL
			SELECT c.id, c.kind, c.state
			FROM below b
			JOIN jobs c ON c.parent = b.id
			WHERE b.kind = 'pipeline' AND c.kind <> 'job' AND NOT `+sparedBelow+`
		)
		SELECT id::text, kind
		FROM below
		WHERE state NOT IN ('succeeded', 'failed', 'canceled')
		ORDER BY id`, w.args())
	if err != nil {
		return nil, nil, err
	}
	return collectParents(rows)
}

// cancelBelow cancels all waiting jobs in a locked pipeline, at every depth, except for spared
// steps. An inner pipeline or array that has not started ends together with its contents. One
// that has started becomes canceling, and its reconciliation cancels the rest; with final
// steps it keeps its state, and has a cancel request. So nothing else inside is placed after
// the commit. A repeated call cancels the remaining jobs.
func cancelBelow(ctx context.Context, tx pgx.Tx, w withdrawal) (e ending, err error) {
	if _, _, err := innerParents(ctx, tx, w.parent); err != nil {
		return e, err
	}
	inner, pipelines, err := w.unsparedParents(ctx, tx)
	if err != nil {
		return e, err
	}
	// cancelWaitingChildren cancels one batch; a batch that is not full was the last one.
	for {
		some, err := cancelWaitingChildren(ctx, tx, append(pipelines, w.parent), nil, w)
		if err != nil {
			return e, err
		}
		e.add(some)
		if len(some.canceled) < expandBatch {
			break
		}
	}
	stopped, err := w.cancelParents(ctx, tx, inner)
	e.add(stopped)
	slices.Sort(e.stopping)
	return e, err
}

// cancelParents cancels live pipelines and arrays inside. Nothing inside a nested parent starts
// before a reconciliation makes the parent queued: all contents of a submitted parent have been
// canceled by now.
func (w withdrawal) cancelParents(ctx context.Context, tx pgx.Tx, inner []berth.JobID) (e ending, err error) {
	if len(inner) == 0 {
		return e, nil
	}
	args := w.args()
	args["ids"] = inner
	rows, err := tx.Query(ctx, `
		UPDATE jobs q
		SET state = CASE
				WHEN state = 'submitted' THEN 'canceled'
				WHEN NOT @now AND kind = 'pipeline' AND `+liveFinal("q")+` THEN state
				ELSE 'canceling' END,
			version = version + 1, actor = @actor, reason = @reason,
			cancel_requested_at = coalesce(cancel_requested_at, now())
		WHERE id = ANY(@ids::uuid[]) AND state IN ('submitted', 'queued', 'running')
		  AND (@now OR cancel_requested_at IS NULL OR NOT `+liveFinal("q")+`)
		RETURNING id::text, state`, args)
	if err != nil {
		return e, err
	}
	var parent berth.JobID
	var state berth.State
	_, err = pgx.ForEachRow(rows, []any{&parent, &state}, func() error {
		if state == berth.Canceled {
			e.canceled, e.waited = append(e.canceled, string(parent)), append(e.waited, string(parent))
		} else {
			e.stopping = append(e.stopping, parent)
		}
		return nil
	})
	return e, err
}

// liveFinal is true for a row of a pipeline, under an alias, with a final step that has not
// ended.
func liveFinal(alias string) string {
	return `EXISTS (
				SELECT 1 FROM jobs f
				WHERE f.parent = ` + alias + `.id AND f.final AND f.state NOT IN ('succeeded', 'failed', 'canceled'))`
}

// cancelWaitingChildren cancels children of parents that hold no capacity, at most a batch of
// them. indexes restricts it to some elements; nil means all. Nominations for these children
// are deleted.
func cancelWaitingChildren(ctx context.Context, tx pgx.Tx, parents []berth.JobID, indexes []int,
	w withdrawal) (e ending, err error) {
	args := w.args()
	args["parents"], args["indexes"], args["limit"] = parents, indexes, expandBatch
	rows, err := tx.Query(ctx, `
		WITH waiting AS (
			SELECT c.id
			FROM jobs c
			WHERE c.parent = ANY(@parents::uuid[]) AND c.kind = 'job'
			  AND c.state IN ('submitted', 'queued', 'retrying')
			  AND (@indexes::int[] IS NULL OR c.array_index = ANY(@indexes::int[])) AND NOT `+sparedBelow+`
			ORDER BY c.id
			LIMIT @limit
			FOR NO KEY UPDATE OF c
		)
		UPDATE jobs j
		SET state = 'canceled', version = j.version + 1, actor = @actor, reason = @reason,
			cancel_requested_at = coalesce(j.cancel_requested_at, now())
		FROM waiting
		WHERE j.id = waiting.id
		RETURNING j.id::text, j.blocked`, args)
	if err != nil {
		return e, err
	}
	var id string
	var blocked bool
	if _, err := pgx.ForEachRow(rows, []any{&id, &blocked}, func() error {
		e.canceled = append(e.canceled, id)
		if !blocked {
			e.waited = append(e.waited, id)
		}
		return nil
	}); err != nil || len(e.canceled) == 0 {
		return e, err
	}
	args["ids"] = e.canceled
	_, err = tx.Exec(ctx, `DELETE FROM nominations WHERE beneficiary = ANY(@ids::uuid[])`, args)
	return e, err
}

// cancelChildren cancels the waiting children of a parent that must stop: all of a
// pipeline that are not spared, at every depth; one batch of an array. some reports whether
// anything changed.
func (p *lockedParent) cancelChildren(ctx context.Context, tx pgx.Tx, did *tended,
	spare lifecycle.Spared) (some bool, err error) {
	w := withdrawal{parent: p.ID, spare: spare, actor: did.actor, reason: did.reason}
	var e ending
	if p.Kind == berth.KindPipeline {
		e, err = cancelBelow(ctx, tx, w)
	} else {
		e, err = cancelWaitingChildren(ctx, tx, []berth.JobID{p.ID}, nil, w)
	}
	did.add(e)
	return len(e.canceled)+len(e.stopping) > 0, err
}

// stopInside reconciles parents that must stop, the inner ones first, while *left, the
// number of jobs that may still be ordered to stop, is positive.
func stopInside(ctx context.Context, d *core, outsideIn []berth.JobID, left *int) error {
	for _, id := range slices.Backward(outsideIn) {
		for more := true; more && *left > 0; {
			r, err := reconcileOnce(ctx, d, id, left)
			if err != nil {
				return err
			}
			more = r.More
		}
	}
	return nil
}

// holdBelow holds the parents inside a locked pipeline, at every depth, also below parents
// that are already held: none of their jobs is placed after the commit. The reconciliation
// of these parents holds their waiting jobs. holdBelow returns the number of parents that
// it held.
func holdBelow(ctx context.Context, tx pgx.Tx, id berth.JobID, actor string) (int64, error) {
	inner, _, err := innerParents(ctx, tx, id)
	if err != nil || len(inner) == 0 {
		return 0, err
	}
	tag, err := tx.Exec(ctx, `
		WITH changed AS (
			UPDATE jobs
			SET held = true, held_at = now(), version = version + 1, event_seq = event_seq + 1, actor = @actor
			WHERE id = ANY(@ids::uuid[]) AND NOT held AND state <> 'canceling'
			RETURNING id, event_seq, attempt
		)
		INSERT INTO job_events (job, seq, at, kind, attempt, actor, detail)
		SELECT id, event_seq, clock_timestamp(), 'updated', attempt, @actor, 'held with its parent'
		FROM changed`, namedArgs{"ids": inner, "actor": actor})
	return tag.RowsAffected(), err
}

// heldAround returns a conflict if a pipeline or an array around a locked job is held. The
// error names the outermost one, whose release also releases the job. A hold of an outer
// parent that commits later sees the job's row as the caller leaves it.
func heldAround(ctx context.Context, tx pgx.Tx, id berth.JobID) error {
	var kind berth.Kind
	var around berth.JobID
	var name string
	err := tx.QueryRow(ctx, `
		WITH RECURSIVE around (id, parent, kind, name, held, level) AS (
			SELECT id, parent, kind, '', false, 0
			FROM jobs
			WHERE id = @id
			UNION ALL
			SELECT p.id, p.parent, p.kind, coalesce(p.step, p.name), p.held, a.level + 1
			FROM around a
			JOIN jobs p ON p.id = a.parent
		)
		SELECT kind, id::text, name
		FROM around
		WHERE held
		ORDER BY level DESC
		LIMIT 1`, namedArgs{"id": id}).Scan(&kind, &around, &name)
	switch {
	case isNoRows(err):
		return nil
	case err != nil:
		return err
	}
	return berth.Errorf(berth.CodeConflict,
		"job %s is held with %s %s (%s), which it is in: release that, and all in it is released", id,
		kind, name, around)
}

// reconcileInside reconciles the live parents inside a pipeline, the inner ones first.
func reconcileInside(ctx context.Context, d *core, id berth.JobID) error {
	rows, err := d.pool.Query(ctx, parentsBelow+`
		SELECT id::text
		FROM jobs
		WHERE id IN (SELECT id FROM below) AND state NOT IN ('succeeded', 'failed', 'canceled')
		ORDER BY id`, namedArgs{"id": id})
	if err != nil {
		return mapError(err, "job "+string(id))
	}
	inner, err := pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
	if err != nil {
		return mapError(err, "job "+string(id))
	}
	for _, i := range inner { // their coordinators start ready jobs
		d.hub.Publish(TopicPoke, string(i))
	}
	left := followUp
	for _, i := range slices.Backward(inner) {
		if _, err := reconcileThrough(ctx, d, i, &left); err != nil {
			return err
		}
	}
	return nil
}
