package db

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// skipDepth bounds the levels of a graph that one pass descends through steps that succeed
// without running. The pass holds the lock of the pipeline's row meanwhile.
const skipDepth = 32

// readyBatch bounds the number of ready steps that one pass returns to the workflow. Their
// ids enter the workflow's history.
const readyBatch = 40

// advance continues a pipeline. Steps that need an unsuccessful step are canceled, and so are
// their own dependents. Steps whose needs have all succeeded may start, or succeed at once if
// an earlier job has computed the same result. Without unblock no step starts or is skipped:
// the pipeline is held, and its release reconciles it again.
func (p *lockedParent) advance(ctx context.Context, tx pgx.Tx, did *tended, unblock bool) error {
	if _, err := p.cancelAllHopeless(ctx, tx, did); err != nil {
		return err
	}
	// A skipped step may unblock further ones, so each round descends one level.
	for n := 0; n < skipDepth && unblock; n++ {
		skipped, err := p.unblock(ctx, tx)
		if err != nil {
			return err
		}
		if len(skipped) == 0 {
			break
		}
		did.skipped = append(did.skipped, skipped...)
		did.more = true // the next pass checks whether a skipped step was the last
	}
	rows, err := tx.Query(ctx, `
		SELECT j.id::text, j.kind, j.name, `+imageOf+`
		FROM jobs j
		WHERE parent = @id AND state = 'submitted' AND NOT blocked
		ORDER BY id
		LIMIT @limit`, pgx.NamedArgs{"id": p.ID, "limit": readyBatch})
	if err != nil {
		return err
	}
	did.ready, err = pgx.CollectRows(rows, pgx.RowToStructByPos[wire.Ready])
	if err != nil || !p.MayHaveBegun(len(did.ready)) {
		return err
	}
	var began bool
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT 1 FROM jobs WHERE parent = $1 AND state NOT IN ('submitted', 'queued', 'canceled'))`,
		p.ID).Scan(&began)
	if err != nil || !began {
		return err
	}
	did.changed = true
	// The leader has started elements of an array step, and moved only the array to running.
	return p.move(ctx, tx, berth.Running, "workflow", nil)
}

// cancelAllHopeless cancels the steps that need an unsuccessful step, and transitively their
// dependents. some reports that there were any.
func (p *lockedParent) cancelAllHopeless(ctx context.Context, tx pgx.Tx, did *tended) (some bool, err error) {
	for {
		hopeless, err := p.cancelHopeless(ctx, tx)
		if err != nil || len(hopeless) == 0 {
			return some, err
		}
		did.canceled = append(did.canceled, hopeless...)
		did.more, some = true, true // the next pass checks whether these were the last
	}
}

// cancelHopeless cancels the steps with a need that ended without success, including
// everything inside a nested pipeline. None of these has started, since a blocked step never
// starts.
func (p *lockedParent) cancelHopeless(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, `
		WITH hopeless AS (
			SELECT j.id, (
				SELECT n.step || CASE n.state WHEN 'failed' THEN ' failed' ELSE ' was canceled' END
				FROM deps d
				JOIN jobs n ON n.id = d.needs
				WHERE d.job = j.id AND n.state IN ('failed', 'canceled')
				ORDER BY n.step
				LIMIT 1) AS because
			FROM jobs j
			WHERE j.parent = @id AND j.state = 'submitted' AND j.blocked
			ORDER BY j.id
			FOR NO KEY UPDATE
		)
		UPDATE jobs j
		SET state = 'canceled', version = j.version + 1, actor = 'workflow',
			reason = jsonb_build_object('code', @code::text, 'message', 'step ' || h.because)
		FROM hopeless h
		WHERE j.id = h.id AND h.because IS NOT NULL
		RETURNING j.id::text, j.kind, j.step, h.because`, pgx.NamedArgs{"id": p.ID, "code": berth.ReasonUpstreamFailed})
	if err != nil {
		return nil, err
	}
	var canceled []string
	why := map[string]string{} // reason by id, for nested pipelines
	var id, step, because string
	var kind berth.Kind
	if _, err := pgx.ForEachRow(rows, []any{&id, &kind, &step, &because}, func() error {
		canceled = append(canceled, id)
		if kind == berth.KindPipeline {
			why[id] = fmt.Sprintf("step %s, and %s needs it", because, step)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for _, id := range slices.Clone(canceled) {
		if why[id] == "" {
			continue
		}
		reason := &berth.Reason{Code: berth.ReasonUpstreamFailed, Message: why[id]}
		below, err := cancelBelow(ctx, tx, berth.JobID(id), "workflow", reason)
		if err != nil {
			return nil, err
		}
		canceled = append(canceled, below.canceled...)
	}
	return canceled, nil
}

// unblock lets steps start whose needs have all succeeded, unless they are held. A step's
// time in the queue starts now, so earlier time counts neither toward its age nor toward its
// queue_timeout. Steps for which an earlier job has computed the result end as succeeded, and
// unblock returns their ids.
func (p *lockedParent) unblock(ctx context.Context, tx pgx.Tx) (skipped []string, err error) {
	steps, err := p.unblockable(ctx, tx)
	if err != nil || len(steps) == 0 {
		return nil, err
	}
	ids := make([]string, len(steps))
	takes := false
	for i, s := range steps {
		ids[i], takes = s.id, takes || s.takes
	}
	// The outputs that are bound below must not be pruned before the commit.
	if takes {
		if err := holdOutputs(ctx, tx); err != nil {
			return nil, err
		}
	}
	if err := bindSteps(ctx, tx, ids); err != nil {
		return nil, err
	}
	done, err := p.reuse(ctx, tx, steps)
	if err != nil {
		return nil, err
	}
	var limits []int64
	ids = ids[:0]
	for _, s := range steps {
		if done[s.id] {
			skipped = append(skipped, s.id)
		} else {
			ids, limits = append(ids, s.id), append(limits, s.waitMS)
		}
	}
	if len(ids) == 0 {
		return skipped, nil
	}
	_, err = tx.Exec(ctx, `
		UPDATE jobs j
		SET blocked = false, version = j.version + 1, actor = 'workflow',
			queue_deadline = CASE WHEN j.kind = 'job' THEN now() + nullif(x.queue_ms, 0) * interval '1 millisecond' END,
			unaged_ms = (extract(epoch FROM now() - j.submitted_at) * 1000)::bigint
		FROM unnest(@ids::uuid[], @limits::bigint[]) AS x (id, queue_ms)
		WHERE j.id = x.id`, pgx.NamedArgs{"ids": ids, "limits": limits})
	return skipped, err
}

// unblockable locks and returns the steps whose needs have all succeeded and that are not
// held.
func (p *lockedParent) unblockable(ctx context.Context, tx pgx.Tx) ([]letGo, error) {
	rows, err := tx.Query(ctx, `
		SELECT j.id::text, coalesce((SELECT s.spec -> 'queue_timeout' FROM job_specs s WHERE s.job = j.id), 'null'),
			coalesce((SELECT s.spec ? 'cache' FROM job_specs s WHERE s.job = j.id), false),
			coalesce((SELECT s.spec ?| '{inputs,cache}' FROM job_specs s WHERE s.job = j.id), false)
		FROM jobs j
		WHERE j.parent = @id AND j.state = 'submitted' AND j.blocked AND NOT j.held AND NOT EXISTS (
			SELECT 1
			FROM deps d
			JOIN jobs n ON n.id = d.needs
			WHERE d.job = j.id AND n.state <> 'succeeded')
		ORDER BY j.id
		FOR NO KEY UPDATE OF j`, pgx.NamedArgs{"id": p.ID})
	if err != nil {
		return nil, err
	}
	var steps []letGo
	var s letGo
	var raw []byte
	_, err = pgx.ForEachRow(rows, []any{&s.id, &raw, &s.cached, &s.takes}, func() error {
		limit, err := queueTimeout(raw)
		s.waitMS = limit.Milliseconds()
		steps = append(steps, s)
		return err
	})
	return steps, err
}
