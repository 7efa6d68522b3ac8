package db

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
	"berth/wire"
)

// skipDepth bounds the levels of a graph that one pass descends through steps that succeed
// without running. The pass holds the lock of the pipeline's row meanwhile.
const skipDepth = 32

// readyBatch bounds the number of ready steps that one pass returns to the workflow. Their
// ids enter the workflow's history.
const readyBatch = 40

// advance continues a pipeline. Steps that need an unsuccessful step are canceled, steps whose
// condition does not hold are skipped, and so are their own dependents. After a failure or a
// cancel request the steps that are not spared are canceled. Then steps whose condition holds
// may start, or succeed at once if an earlier job has computed the same result. Without
// pass.Unblock no step starts or is taken over: the pipeline is held, and its release
// reconciles it again.
func (p *lockedParent) advance(ctx context.Context, tx pgx.Tx, did *tended, pass lifecycle.Pass) error {
	if _, err := p.cancelAllHopeless(ctx, tx, did); err != nil {
		return err
	}
	if pass.Trim != lifecycle.SpareAll {
		if err := p.stop(ctx, tx, did, pass.Trim); err != nil {
			return err
		}
	}
	// A skipped step may unblock further ones, so each round descends one level.
	for n := 0; n < skipDepth && pass.Unblock; n++ {
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
		LIMIT @limit`, namedArgs{"id": p.ID, "limit": readyBatch})
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
	return p.move(ctx, tx, berth.Running, "workflow", p.Reason)
}

// cancelAllHopeless cancels the steps that need an unsuccessful step and skips the steps whose
// condition does not hold, and transitively their dependents. some reports that there were any.
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

// cancelHopeless cancels the steps that can no longer run, including everything inside a
// nested pipeline. None of these has started, since a blocked step never starts.
func (p *lockedParent) cancelHopeless(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, `
		WITH hopeless AS (
			SELECT j.id, v.verdict, v.because
			FROM jobs j
			`+verdictOfNeeds+`
			WHERE j.parent = @id AND j.state = 'submitted' AND j.blocked
			ORDER BY j.id
			FOR NO KEY UPDATE OF j
		)
		UPDATE jobs j
		SET state = 'canceled', version = j.version + 1, actor = 'workflow',
			reason = jsonb_build_object('code', CASE h.verdict WHEN 'skip' THEN @skipped::text ELSE @code::text END,
				'message', h.because)
		FROM hopeless h
		WHERE j.id = h.id AND h.verdict IN ('cancel', 'skip')
		RETURNING j.id::text, j.kind, j.step, h.because, h.verdict = 'skip'`,
		namedArgs{"id": p.ID, "code": berth.ReasonUpstreamFailed, "skipped": wire.ReasonSkipped})
	if err != nil {
		return nil, err
	}
	var canceled []string
	why := map[string]*berth.Reason{} // of nested pipelines, by id
	var id, step, because string
	var kind berth.Kind
	var skipped bool
	if _, err := pgx.ForEachRow(rows, []any{&id, &kind, &step, &because, &skipped}, func() error {
		canceled = append(canceled, id)
		if kind == berth.KindPipeline {
			why[id] = reasonInside(step, because, skipped)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for _, id := range slices.Clone(canceled) {
		if why[id] == nil {
			continue
		}
		below, err := cancelBelow(ctx, tx,
			withdrawal{parent: berth.JobID(id), spare: lifecycle.SpareNone, actor: "workflow", reason: why[id]})
		if err != nil {
			return nil, err
		}
		canceled = append(canceled, below.canceled...)
	}
	return canceled, nil
}

// reasonInside is the reason of the steps in a nested pipeline that cannot run. because is the
// reason of the nested pipeline.
func reasonInside(step, because string, skipped bool) *berth.Reason {
	if skipped {
		return &berth.Reason{Code: wire.ReasonSkipped, Message: fmt.Sprintf("%s was skipped: %s", step, because)}
	}
	return &berth.Reason{Code: berth.ReasonUpstreamFailed, Message: fmt.Sprintf("%s, and %s needs it", because, step)}
}

// unblock lets steps start whose condition holds, unless they are held. A step's
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
		WHERE j.id = x.id`, namedArgs{"ids": ids, "limits": limits})
	return skipped, err
}

// unblockable locks and returns the steps whose condition holds and that are not held.
func (p *lockedParent) unblockable(ctx context.Context, tx pgx.Tx) ([]letGo, error) {
	rows, err := tx.Query(ctx, `
		SELECT j.id::text, coalesce((SELECT s.spec -> 'queue_timeout' FROM job_specs s WHERE s.job = j.id), 'null'),
			coalesce((SELECT s.spec ? 'cache' FROM job_specs s WHERE s.job = j.id), false),
			coalesce((SELECT s.spec ?| '{inputs,cache}' FROM job_specs s WHERE s.job = j.id), false)
		FROM jobs j
		`+verdictOfNeeds+`
		WHERE j.parent = @id AND j.state = 'submitted' AND j.blocked AND NOT j.held AND v.verdict = 'start'
		  AND `+listKnown("j")+`
		ORDER BY j.id
		FOR NO KEY UPDATE OF j`, namedArgs{"id": p.ID})
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
