package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// Dispatch is the input of a job's workflow.
type Dispatch struct {
	Job    berth.JobID
	Tenant berth.TenantID
	Kind   string
	Name   string
	Image  string // "": a pipeline
	User   string // submitter, such as alice or schedule:nightly; "": not known
}

// imageOf is the image of a row j of jobs, empty for a pipeline. submitterOf is the submitter of a
// row. A row of the version before has no submitted_by, and its column actor names the author of
// the latest change, so the first event decides there.
const (
	imageOf     = `coalesce((SELECT s.spec ->> 'image' FROM job_specs s WHERE s.job = j.id), '')`
	submitterOf = `regexp_replace(coalesce(j.submitted_by, (
			SELECT e.actor
			FROM job_events e
			WHERE e.job = j.id AND e.seq = 1), ''), '^user:', '')`
)

// Submitted returns the submitted jobs among ids; their workflows must be started.
func (d *Jobs) Submitted(ctx context.Context, ids []berth.JobID) ([]Dispatch, error) {
	// OFFSET 0 keeps the planner off the index of all submitted jobs. The planner expects
	// few rows in that index, but a backlog has thousands.
	return d.dispatches(ctx, `
		SELECT j.id, j.tenant, j.kind, j.name, `+imageOf+`, `+submitterOf+`
		FROM (
			SELECT id, tenant, kind, name, state, blocked, submitted_by
			FROM jobs
			WHERE id = ANY(@ids)
			OFFSET 0
		) j
		WHERE j.state = 'submitted' AND NOT j.blocked`,
		namedArgs{"ids": ids})
}

// SubmittedBefore returns jobs that have been submitted for longer than age and still
// wait for their workflow: the oldest job of each tenant, then the second oldest of each,
// and so on.
func (d *Jobs) SubmittedBefore(ctx context.Context, age time.Duration, limit int) ([]Dispatch, error) {
	return d.dispatches(ctx, `
		SELECT j.id, j.tenant, j.kind, j.name, `+imageOf+`, `+submitterOf+`
		FROM (
			SELECT id, tenant, kind, name, submitted_by, state_at,
				row_number() OVER (PARTITION BY tenant ORDER BY state_at) AS place
			FROM jobs
			WHERE state = 'submitted' AND NOT blocked AND state_at < now() - @age::interval
		) j
		ORDER BY place, state_at
		LIMIT @limit`,
		namedArgs{"age": age, "limit": limit})
}

// Live returns the jobs among ids that are not terminal; their workflows must be open.
func (d *Jobs) Live(ctx context.Context, ids []berth.JobID) ([]Dispatch, error) {
	return d.dispatches(ctx, `
		SELECT j.id, j.tenant, j.kind, j.name, `+imageOf+`, `+submitterOf+`
		FROM jobs j
		WHERE id = ANY(@ids) AND NOT blocked AND state NOT IN ('succeeded', 'failed', 'canceled')`,
		namedArgs{"ids": ids})
}

func (d *Jobs) dispatches(ctx context.Context, sql string, args namedArgs) ([]Dispatch, error) {
	rows, err := d.pool.Query(ctx, sql, args)
	if err != nil {
		return nil, mapError(err, "submitted jobs")
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (x Dispatch, err error) {
		return x, row.Scan(&x.Job, &x.Tenant, &x.Kind, &x.Name, &x.Image, &x.User)
	})
	return list, mapError(err, "submitted jobs")
}

// submitter returns the submitter of a job, "" if it is not known.
func submitter(ctx context.Context, tx pgx.Tx, id berth.JobID) (user string, err error) {
	err = tx.QueryRow(ctx, `
		SELECT `+submitterOf+`
		FROM jobs j
		WHERE j.id = @id`, namedArgs{"id": id}).Scan(&user)
	return user, err
}
