package db

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// addEvent appends an event other than a change of state to a job's history; a trigger
// writes the changes of state. addEvent locks the job's row. By the lock order, the caller
// must hold that lock already or must not have locked an allocation. The row supplies the
// event's number and time.
func addEvent(ctx context.Context, tx pgx.Tx, job berth.JobID, e wire.Event) error {
	_, err := tx.Exec(ctx, `
		WITH bumped AS (
			UPDATE jobs SET event_seq = event_seq + 1
			WHERE id = @job
			RETURNING event_seq
		)
		INSERT INTO job_events (job, seq, at, kind, attempt, actor, reason, detail, facts)
		SELECT @job, event_seq, clock_timestamp(), @kind, @attempt, @actor, @reason, @detail, @facts
		FROM bumped`,
		namedArgs{
			"job": job, "kind": e.Kind, "attempt": e.Attempt, "actor": e.Actor,
			"reason": e.Reason, "detail": e.Detail, "facts": e.Facts,
		})
	if err != nil {
		return fmt.Errorf("add %s event to job %s: %w", e.Kind, job, err)
	}
	return nil
}

// eventDocument is a wire.Event as JSON, of a row e of job_events.
const eventDocument = `jsonb_strip_nulls(jsonb_build_object(
			'seq', e.seq, 'at', e.at, 'kind', e.kind, 'from', e.from_state, 'to', e.to_state,
			'attempt', e.attempt, 'actor', e.actor, 'reason', e.reason, 'detail', e.detail, 'facts', e.facts))`

// Events returns a job's history after seq, oldest first, of archived jobs too.
// Tenant "" means any; a job that does not exist has no events.
func (d *Jobs) Events(ctx context.Context, tenant berth.TenantID, job berth.JobID, after int64,
	limit int) ([]wire.Event, error) {
	rows, err := d.pool.Query(ctx, `
		(
			SELECT `+eventDocument+`
			FROM job_events e
			JOIN jobs j ON j.id = e.job
			WHERE e.job = @job AND e.seq > @after AND (@tenant = '' OR j.tenant = @tenant)
			ORDER BY e.seq
			LIMIT @limit
		)
		UNION ALL -- a job is in one of the two
		(
			SELECT e.event
			FROM archived_jobs a, jsonb_array_elements(a.events) WITH ORDINALITY e (event, n)
			WHERE a.id = @job AND (e.event ->> 'seq')::bigint > @after AND (@tenant = '' OR a.tenant = @tenant)
			ORDER BY e.n
			LIMIT @limit
		)`,
		namedArgs{"job": job, "after": after, "tenant": string(tenant), "limit": limit})
	if err != nil {
		return nil, mapError(err, "job "+string(job))
	}
	events, err := pgx.CollectRows(rows, pgx.RowTo[wire.Event])
	return events, mapError(err, "job "+string(job))
}
