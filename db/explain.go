package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// Row returns a live job in placement's form with the request of the job's class. The
// request may exceed the spec's after an out-of-memory kill. Tenant "" means any tenant;
// an archived job is not found.
func (d *Queue) Row(ctx context.Context, tenant berth.TenantID, id berth.JobID) (QueueJob, spec.Request, error) {
	args := namedArgs{"id": id, "tenant": string(tenant)}
	var jobs []QueueJob
	var request spec.Request
	var batch pgx.Batch
	batch.Queue(`
		SELECT `+queueJobColumns+`
		FROM jobs j
		WHERE j.id = @id AND (@tenant = '' OR j.tenant = @tenant)`, args).Query(func(rows pgx.Rows) error {
		return collectJobs(rows, &jobs)
	})
	batch.Queue(`
		SELECT c.request
		FROM jobs j
		JOIN classes c ON c.class = j.class
		WHERE j.id = @id AND (@tenant = '' OR j.tenant = @tenant)`, args).QueryRow(func(row pgx.Row) error {
		return row.Scan(&request)
	})
	// One round trip for both queries. A missing job fails the second one, so that jobs has a row below.
	if err := d.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return QueueJob{}, request, mapError(err, "job "+string(id))
	}
	return jobs[0], request, nil
}

// PoolCosts returns the price of an hour of a machine, by pool.
func (d *Queue) PoolCosts(ctx context.Context) (map[string]float64, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT id, hourly_cost
		FROM pools`)
	if err != nil {
		return nil, mapError(err, "pools")
	}
	costs := map[string]float64{}
	var pool string
	var cost float64
	_, err = pgx.ForEachRow(rows, []any{&pool, &cost}, func() error {
		costs[pool] = cost
		return nil
	})
	return costs, mapError(err, "pools")
}
