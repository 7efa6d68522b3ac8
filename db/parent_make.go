package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// expand creates the next elements, as many as lifecycle.ArrayWindow and the tenant's quota of
// waiting jobs allow.
func (p *lockedParent) expand(ctx context.Context, tx pgx.Tx, did *tended) error {
	// The tenant's row is locked, so concurrent submissions and arrays cannot exceed the
	// quota together. No row: the tenant has no quota.
	var waiting *int
	err := tx.QueryRow(ctx, `
		SELECT greatest(0, max_queued - (
			SELECT count(*)
			FROM jobs w
			WHERE w.tenant = @tenant AND w.state IN ('submitted', 'queued', 'retrying') AND `+countsAsQueued+`))
		FROM tenants
		WHERE id = @tenant AND max_queued IS NOT NULL
		FOR NO KEY UPDATE`, namedArgs{"tenant": p.Tenant}).Scan(&waiting)
	if err != nil && !isNoRows(err) {
		return err
	}
	next, more := p.Elements(waiting)
	if len(next) == 0 {
		return nil
	}
	if did.made, err = p.make(ctx, tx, next, "workflow"); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `UPDATE jobs SET expanded = expanded + @n
		WHERE id = @id`, namedArgs{"id": p.ID, "n": len(next)})
	did.more = did.more || more
	return err
}

// make inserts elements and returns the ids of the new ones. An existing element is
// unchanged. Elements count as submitted when their array was, so that they keep the array's
// place in the queue; a queue_timeout counts from now. They copy the array's uploads, bound
// inputs, and the checkpoint to start from. The array's spec keeps all elements in a retry of some of them, so the
// variable with the size has the number of the original array.
func (p *lockedParent) make(ctx context.Context, tx pgx.Tx, indexes []int, actor string) ([]string, error) {
	incarnation, err := incarnationOf(ctx, tx)
	if err != nil {
		return nil, err
	}
	ids := newElementIDs(len(indexes), incarnation)
	rows, err := tx.Query(ctx, `
		WITH p AS MATERIALIZED (
			SELECT j.*, s.spec - '{array,notify,needs,when,final}'::text[] AS spec,
				coalesce(s.spec -> 'env', '{}') AS env, s.spec #> '{array,each}' AS each,
				coalesce(jsonb_array_length(nullif(s.spec #> '{array,each}', '[]')),
					(s.spec #>> '{array,size}')::int) AS size
			FROM jobs j
			JOIN job_specs s ON s.job = j.id
			WHERE j.id = @parent
		), made AS (
			INSERT INTO jobs (id, tenant, parent, array_index, name, class, priority, preemptible, queue_deadline,
				run_limit_ms, grace_ms, execution, lost_after_ms, labels, actor, submitted_by, submitted_at,
				unaged_ms, stalled_ms,
					held, held_at, data, alternatives, alternatives_after, grouped, lead_first, lead_last, format,
					has_checkpoint)
			SELECT x.id, p.tenant, p.id, x.idx, p.name, p.class, p.priority, p.preemptible,
				now() + nullif(@queue_ms::bigint, 0) * interval '1 millisecond',
				p.run_limit_ms, p.grace_ms, p.execution, p.lost_after_ms, p.labels, @actor, p.submitted_by,
				p.submitted_at, p.unaged_ms,
					p.stalled_ms, p.held, p.held_at, p.data, p.alternatives, p.alternatives_after,
				p.grouped, p.lead_first, p.lead_last, @format::int,
				EXISTS (SELECT 1 FROM job_sources o WHERE o.job = p.id AND o.array_index IN (x.idx, -1))
			FROM p, unnest(@ids::uuid[], @indexes::int[]) AS x (id, idx)
			ON CONFLICT ON CONSTRAINT jobs_array_element DO NOTHING
			RETURNING id, array_index
		), specs AS (
			INSERT INTO job_specs (job, spec)
			SELECT made.id, p.spec || jsonb_build_object('env',
				p.env || coalesce(p.each -> made.array_index, '{}') || jsonb_build_object(@variable::text,
					made.array_index::text, @size_variable::text, p.size::text))
			FROM made, p
		), uploads AS (
			INSERT INTO job_uploads (job, address)
			SELECT made.id, n.address
			FROM made, job_uploads n
			WHERE n.job = @parent
		), sources AS (
			INSERT INTO job_sources (job, source, attempt, step, parts)
			SELECT made.id, o.source, o.attempt, o.step, o.parts
			FROM made
			CROSS JOIN LATERAL (
				SELECT *
				FROM job_sources
				WHERE job = @parent AND array_index IN (made.array_index, -1)
				ORDER BY array_index DESC
				LIMIT 1) o
		), inputs AS (
			INSERT INTO job_inputs (job, input, source, attempt, rank, name)
			SELECT made.id, n.input, n.source, n.attempt, n.rank, n.name
			FROM made, job_inputs n
			WHERE n.job = @parent AND n.input >= 0
		)
		SELECT id::text FROM made`, namedArgs{
		"parent": p.ID, "ids": ids, "indexes": indexes, "actor": actor, "queue_ms": p.QueueFor.Std().Milliseconds(),
		"variable": spec.EnvArrayIndex, "size_variable": spec.EnvArraySize,
		"format": spec.Format,
	})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// newElementIDs returns n ids in ascending order. Jobs with the same submission time are
// placed in the order of their ids, so elements start in the order of their indexes.
func newElementIDs(n int, incarnation int64) []berth.JobID {
	now := time.Now()
	ids := make([]berth.JobID, n)
	for i := range ids {
		ids[i] = newJobID(now, incarnation)
	}
	// Ids of one millisecond have random low bits.
	return sortedIDs(ids)
}
