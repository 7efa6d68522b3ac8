package db

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
)

// RegisterOutput makes a stored object an output of the job, under its current
// attempt only, until the rank is sealed. Doing so again changes nothing.
func (d *DB) RegisterOutput(ctx context.Context, machine berth.MachineID, p berth.OutputReport) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		c := checkpointing{tx: tx, machine: machine, report: berth.CheckpointReport{
			AgentBoot: p.AgentBoot, Epoch: p.Epoch, Alloc: p.Alloc, Job: p.Job, Attempt: p.Attempt, Rank: p.Rank,
		}}
		if err := c.lock(ctx); err != nil {
			return err
		}
		o := p.Output
		tag, err := tx.Exec(ctx, `
			INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object)
			SELECT @job, @attempt, @rank, @name, @address, @files, @bytes, @stored, @sha256, @object
			WHERE EXISTS (
				SELECT 1
				FROM job_specs s, jsonb_array_elements(s.spec -> 'outputs') o
				WHERE s.job = @job AND o ->> 'name' = @name)
			ON CONFLICT (job, attempt, rank, name) DO UPDATE SET name = excluded.name`,
			pgx.NamedArgs{
				"job": p.Job, "attempt": p.Attempt, "rank": p.Rank, "name": o.Name, "address": o.Address, "files": o.Files, "bytes": o.Bytes,
				"stored": o.Stored, "sha256": o.SHA256, "object": berth.OutputKey(c.tenant, p.Job, p.Attempt, p.Rank, o.Name),
			})
		if err == nil && tag.RowsAffected() == 0 {
			return berth.Errorf(berth.CodeInvalid, "job %s has no output %q", p.Job, o.Name)
		}
		return err
	})
	return mapError(err, fmt.Sprintf("output of job %s", p.Job))
}

// OutputObject is a stored output and where it lies.
type OutputObject struct {
	berth.StoredOutput
	Object string
}

// Outputs lists what a job has stored, the latest attempt first. The caller has
// made sure whose job it is.
func (d *DB) Outputs(ctx context.Context, job berth.JobID) ([]OutputObject, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT name, attempt, rank, address, files, bytes, stored_bytes, sha256, created_at, object
		FROM outputs
		WHERE job = @job
		ORDER BY attempt DESC, name, rank`, pgx.NamedArgs{"job": job})
	if err != nil {
		return nil, mapError(err, "outputs")
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o OutputObject, err error) {
		err = row.Scan(&o.Name, &o.Attempt, &o.Member, &o.Address, &o.Files, &o.Bytes, &o.Stored, &o.SHA256, &o.CreatedAt, &o.Object)
		return o, err
	})
	return list, mapError(err, "outputs")
}

// lostOutputs are the declared outputs of which no rank of the attempt has
// stored anything, or of which one has not that was cut off, could not or was
// refused: of the first nobody knows whether it had a part of its own, the others
// had one.
func lostOutputs(ctx context.Context, tx pgx.Tx, job lockedJob) ([]string, error) {
	if !job.HasOutputs {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT o ->> 'name'
		FROM job_specs s, jsonb_array_elements(s.spec -> 'outputs') o
		WHERE s.job = @job AND (
			NOT EXISTS (SELECT 1 FROM outputs x WHERE x.job = @job AND x.attempt = @attempt AND x.name = o ->> 'name')
			OR EXISTS (
				SELECT 1
				FROM allocations a
				WHERE a.job = @job AND a.attempt = @attempt AND (a.cut_off OR a.exit -> 'unstored' ? (o ->> 'name') OR a.exit -> 'refused' ? (o ->> 'name')) AND NOT EXISTS (
					SELECT 1 FROM outputs x WHERE x.job = a.job AND x.attempt = a.attempt AND x.rank = a.rank AND x.name = o ->> 'name')))`,
		pgx.NamedArgs{"job": job.ID, "attempt": job.Attempt})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
