package db

import (
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// RegisterOutput records a stored object as an output of the job. It works only under the
// job's current attempt and until the member is sealed. A repeated call changes nothing. An
// output that exceeds a storage quota of the tenant is refused with slug storage_quota, and
// its object is deleted a day later.
func (d *Objects) RegisterOutput(ctx context.Context, machine berth.MachineID, p wire.OutputReport) error {
	var object string
	err := d.tx(ctx, func(tx pgx.Tx) error {
		c := checkpointing{tx: tx, machine: machine, report: wire.CheckpointReport{
			AgentBoot: p.AgentBoot, Epoch: p.Epoch, Alloc: p.Alloc, Job: p.Job, Attempt: p.Attempt, Rank: p.Rank,
		}}
		if err := c.lock(ctx); err != nil {
			return err
		}
		if err := lockStorage(ctx, tx, c.limits, StoredOutputs); err != nil {
			return err
		}
		o := p.Output
		object = berth.OutputKey(c.tenant, p.Job, p.Attempt, p.Rank, o.Name)
		var added bool
		err := tx.QueryRow(ctx, `
			WITH wanted AS ( -- it was refused before, and fits now
				DELETE FROM doomed_objects WHERE prefix = @object
			)
			INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object)
			SELECT @job, @attempt, @rank, @name, @address, @files, @bytes, @stored, @sha256, @object
			WHERE EXISTS (
				SELECT 1
				FROM job_specs s, jsonb_array_elements(s.spec -> 'outputs') o
				WHERE s.job = @job AND o ->> 'name' = @name)
			ON CONFLICT (job, attempt, rank, name) DO UPDATE SET name = excluded.name
			RETURNING xmax = 0`,
			namedArgs{
				"job": p.Job, "attempt": p.Attempt, "rank": p.Rank, "name": o.Name, "address": o.Address,
				"files": o.Files, "bytes": o.Bytes,
				"stored": o.Stored, "sha256": o.SHA256, "object": object,
			}).Scan(&added)
		if isNoRows(err) {
			return berth.Errorf(berth.CodeInvalid, "job %s has no output %q", p.Job, o.Name)
		}
		if err != nil || !added {
			return err
		}
		if p.Attempt > 1 {
			if err := replaceOutput(ctx, tx, p); err != nil {
				return err
			}
		}
		return checkStorage(ctx, tx, c.limits, StoredOutputs, 0, o.Stored)
	})
	// In a transaction of its own, since the refusal has rolled back the first one.
	if berth.IsSlug(err, berth.SlugStorageQuota) {
		if failed := d.doomOutput(ctx, p.Job, object); failed != nil {
			return mapError(failed, fmt.Sprintf("output of job %s", p.Job))
		}
	}
	return mapError(err, fmt.Sprintf("output of job %s", p.Job))
}

// replaceOutput deletes the same output of earlier attempts, and marks its objects for removal. No
// job can read it: only outputs of jobs that have succeeded become inputs, and this job runs.
func replaceOutput(ctx context.Context, tx pgx.Tx, p wire.OutputReport) error {
	_, err := tx.Exec(ctx, `
		WITH old AS (
			DELETE FROM outputs
			WHERE job = @job AND rank = @rank AND name = @name AND attempt < @attempt
			RETURNING object
		)
		INSERT INTO doomed_objects (prefix)
		SELECT DISTINCT object
		FROM old
		ON CONFLICT DO NOTHING`,
		namedArgs{"job": p.Job, "rank": p.Rank, "name": p.Output.Name, "attempt": p.Attempt})
	if err != nil {
		return fmt.Errorf("replace output %s of earlier attempts: %w", p.Output.Name, err)
	}
	return nil
}

// OutputObject is a stored output with the key of its object.
type OutputObject struct {
	wire.StoredOutput
	Object string
}

// outputColumns are the columns of an output, in the order of scanOutput.
const outputColumns = `name, attempt, rank, address, files, bytes, stored_bytes, sha256, created_at, object`

// scanOutput reads a row of outputColumns.
func scanOutput(row pgx.CollectableRow) (o OutputObject, err error) {
	err = row.Scan(&o.Name, &o.Attempt, &o.Member, &o.Address, &o.Files, &o.Bytes, &o.Stored, &o.SHA256,
		&o.CreatedAt, &o.Object)
	return o, err
}

// Outputs lists the stored outputs of a job, the latest attempt first. For an array or a
// pipeline it lists the outputs of all elements and steps below: a step after the steps that
// it needs, and elements by index. The caller has checked the job's tenant.
func (d *Objects) Outputs(
	ctx context.Context, job berth.JobID, p Paging,
) (list []OutputObject, next string, err error) {
	way, attempt, name, rank := "{}", math.MaxInt32, "", 0
	if _, err := p.after(&way, &attempt, &name, &rank); err != nil {
		return nil, "", err
	}
	rows, err := d.pool.Query(ctx, outputsBelow, namedArgs{"root": job, "way": way, "attempt": attempt,
		"name": name, "rank": rank, "limit": p.limit() + 1})
	if err != nil {
		return nil, "", mapError(err, "outputs")
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o outputBelow, err error) {
		err = row.Scan(&o.Name, &o.Attempt, &o.Member, &o.Address, &o.Files, &o.Bytes, &o.Stored, &o.SHA256,
			&o.CreatedAt, &o.Object, &o.Job, &o.Step, &o.way)
		return o, err
	})
	if err != nil {
		return nil, "", mapError(err, "outputs")
	}
	found, next = cut(p, found, func(o outputBelow) []any { return []any{o.way, o.Attempt, o.Name, o.Member} })
	for _, o := range found {
		if o.Step == "" { // the job itself
			o.Job = ""
		}
		list = append(list, o.OutputObject)
	}
	return list, next, nil
}

// outputBelow is an output with the ids from the listed job down to the job that has it.
type outputBelow struct {
	OutputObject
	way string
}

// outputsBelow selects the outputs of a job and of all jobs below it, live or archived. The
// path of a job is as spec.StepPath writes it, with the index of an element in brackets. Its
// way, the ids on the path, orders the list: ids ascend in the order of a graph, and of an
// array's elements.
const outputsBelow = `
	WITH RECURSIVE tree AS (
		SELECT @root::uuid AS id, '' AS path, '{}'::uuid[] AS way
		UNION ALL
		SELECT c.id, t.path || CASE
			WHEN c.idx IS NOT NULL THEN '[' || c.idx || ']'
			WHEN t.path = '' THEN c.step
			ELSE '.' || c.step END, t.way || c.id
		FROM tree t
		CROSS JOIN LATERAL (
			SELECT j.id, j.step, j.array_index AS idx
			FROM jobs j
			WHERE j.parent = t.id
			UNION ALL
			SELECT a.id, a.job ->> 'step', (a.job ->> 'array_index')::int
			FROM archived_jobs a
			WHERE a.parent = t.id
		) c
	)
	SELECT o.name, o.attempt, o.rank, o.address, o.files, o.bytes, o.stored_bytes, o.sha256, o.created_at, o.object,
		o.job::text, t.path, t.way::text
	FROM tree t
	JOIN outputs o ON o.job = t.id
	WHERE (t.way, -o.attempt, o.name, o.rank) > (@way::uuid[], -@attempt::int, @name, @rank)
	ORDER BY t.way, o.attempt DESC, o.name, o.rank
	LIMIT @limit`

// Output returns one output of a job. Attempt 0 means the latest attempt that has the output.
// The caller has checked the job's tenant.
func (d *Objects) Output(ctx context.Context, job berth.JobID, name string, member, attempt int) (OutputObject, error) {
	what := fmt.Sprintf("output %s of member %d of job %s", name, member, job)
	rows, err := d.pool.Query(ctx, `
		SELECT `+outputColumns+`
		FROM outputs
		WHERE job = @job AND name = @name AND rank = @rank AND (@attempt = 0 OR attempt = @attempt)
		ORDER BY attempt DESC
		LIMIT 1`, namedArgs{"job": job, "name": name, "rank": member, "attempt": attempt})
	if err != nil {
		return OutputObject{}, mapError(err, what)
	}
	o, err := pgx.CollectExactlyOneRow(rows, scanOutput)
	return o, mapError(err, what)
}

// lostOutputs returns the declared outputs that the attempt has lost, in whole or in part. An
// output is lost if no member has stored it. It is also lost if one member that was cut off,
// failed to store it or was refused has no stored part: for a member that was cut off it is
// unknown whether it had a part, the others had one. Once the leading members of a gang are done, their
// outputs alone count, as failure.Classify gets the evidence of these members alone.
func lostOutputs(ctx context.Context, tx pgx.Tx, job lockedJob) ([]spec.Output, error) {
	if !job.HasOutputs {
		return nil, nil
	}
	var counted []int // nil: all members
	if job.LeadDone() {
		for _, m := range job.Members {
			if m.Leads {
				counted = append(counted, m.Rank)
			}
		}
	}
	rows, err := tx.Query(ctx, `
		SELECT o ->> 'name', o ->> 'path', coalesce(o ->> 'when', '')
		FROM job_specs s, jsonb_array_elements(s.spec -> 'outputs') o
		WHERE s.job = @job AND (
			NOT EXISTS (SELECT 1 FROM outputs x WHERE x.job = @job AND x.attempt = @attempt AND x.name = o ->> 'name'
				AND (@counted::int[] IS NULL OR x.rank = ANY(@counted::int[])))
			OR EXISTS (
				SELECT 1
				FROM allocations a
				WHERE a.job = @job AND a.attempt = @attempt
					AND (@counted::int[] IS NULL OR a.rank = ANY(@counted::int[]))
					AND (a.cut_off OR a.exit -> 'unstored' ? (o ->> 'name') OR a.exit -> 'refused' ? (o ->> 'name'))
						AND NOT EXISTS (
					SELECT 1 FROM outputs x WHERE x.job = a.job AND x.attempt = a.attempt AND x.rank = a.rank
						AND x.name = o ->> 'name')))`,
		namedArgs{"job": job.ID, "attempt": job.Attempt, "counted": counted})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[spec.Output])
}
