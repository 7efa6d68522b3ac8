package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// unsuccessful returns the indexes of the elements to run again, in ascending order. An element without
// a live or archived row was never created, because the array was stopped first; it counts as given up
// if the array failed. An element that a user canceled is not run again.
func unsuccessful(ctx context.Context, tx pgx.Tx, old wire.Job) ([]int, error) {
	var list []int
	err := tx.QueryRow(ctx, `
		WITH made AS (
			SELECT array_index AS idx, state, reason ->> 'code' AS code
			FROM jobs
			WHERE parent = @id
			UNION ALL
			SELECT (job ->> 'array_index')::int, state, job #>> '{reason,code}'
			FROM archived_jobs
			WHERE parent = @id
		), wanted AS (
			SELECT i AS idx
			FROM generate_series(0, @total::int - 1) AS i
			WHERE @indexes = ''
			UNION ALL
			SELECT generate_series(split_part(r, '-', 1)::int, split_part(r, '-', -1)::int)
			FROM unnest(string_to_array(@indexes, ',')) AS r
			WHERE @indexes <> ''
		)
		SELECT ARRAY(
			SELECT w.idx
			FROM wanted w
			LEFT JOIN made m ON m.idx = w.idx
			WHERE m.state = 'failed'
			   OR @overdrawn AND (m.idx IS NULL OR m.state = 'canceled' AND m.code = ANY(@codes))
			ORDER BY w.idx)`, namedArgs{
		"id": old.ID, "total": old.Tally.Total, "indexes": old.Indexes,
		"overdrawn": old.Status == berth.Failed,
		"codes":     []berth.ReasonCode{berth.ReasonElementsFailed, berth.ReasonStepsFailed},
	}).Scan(&list)
	return list, err
}

// pipeline submits a new pipeline with the steps of the old one, at every depth. With Failed it leaves
// out the steps that succeeded, which are no longer needed. Steps that run again start from their
// newest checkpoints, unless the retry is fresh.
func (r *retrying) pipeline(ctx context.Context) (wire.Job, error) {
	// nil keeps every step.
	var succeeded map[string]berth.JobID
	if r.o.Failed {
		var err error
		if succeeded, err = succeededSteps(ctx, r.tx, r.old.ID); err != nil {
			return wire.Job{}, err
		}
	}
	pipeline := r.old.Pipeline.WithDefaults().Without(succeeded)
	pipeline.Needs, pipeline.When = nil, "" // it does not wait for the same jobs again
	if len(pipeline.Jobs) == 0 {
		return wire.Job{}, berth.Errorf(berth.CodeConflict, "every step of pipeline %s has succeeded", r.old.ID)
	}
	// The actor is the caller of the retry; the tenant stays the one of the old pipeline, also if an admin retries
	// it.
	s := PipelineSubmission{Tenant: r.old.Tenant, Spec: pipeline, Actor: r.actor, RetryOf: &r.old.ID,
		incarnation: r.incarnation}
	if !r.o.FreshImage {
		var err error
		if s.digests, err = stepDigests(ctx, r.tx, r.old.ID); err != nil {
			return wire.Job{}, err
		}
	}
	if !r.o.Fresh {
		var err error
		if s.sources, err = r.stepSources(ctx, pipeline); err != nil {
			return wire.Job{}, err
		}
	}
	row, err := newPipelineRow(s)
	if err != nil {
		return wire.Job{}, err
	}
	return row.insertPipeline(ctx, r.tx, s)
}

// succeededSteps returns the jobs of a pipeline's succeeded steps, live and archived, at every depth,
// by path. A path has the names of the steps from the outermost pipeline on, separated by dots.
func succeededSteps(ctx context.Context, tx pgx.Tx, id berth.JobID) (map[string]berth.JobID, error) {
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE inside (id, path, state) AS (
			SELECT @id::uuid, '', ''
			UNION ALL
			SELECT s.id, CASE i.path WHEN '' THEN s.step ELSE i.path || '.' || s.step END, s.state
			FROM inside i
			CROSS JOIN LATERAL (
				SELECT j.id, j.step, j.state
				FROM jobs j
				WHERE j.parent = i.id AND j.step IS NOT NULL
				UNION ALL
				SELECT a.id, a.job ->> 'step', a.state
				FROM archived_jobs a
				WHERE a.parent = i.id AND a.job ->> 'step' IS NOT NULL
			) s
		)
		SELECT path, id::text FROM inside WHERE state = 'succeeded'`, namedArgs{"id": id})
	if err != nil {
		return nil, err
	}
	return collectSteps(rows)
}
