package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// GrantWindow is how soon a waiting job must become eligible for its workflow to wait for the
// grant at once.
const GrantWindow = 300 * time.Millisecond

// queueSubmitted moves a submitted job to queued.
const queueSubmitted = `
	UPDATE jobs
	SET state = 'queued', version = version + 1, actor = 'workflow'
	WHERE id = @job AND state = 'submitted'`

// viewJob reads one job and, while it holds capacity, the members of its current attempt in
// the form of berth.Slot.
const viewJob = `
	SELECT j.state, j.attempt, j.parent IS NOT NULL, j.cancel_requested_at IS NOT NULL,
		CASE WHEN j.run_limit_ms > 0 THEN j.run_limit_ms + j.grace_ms ELSE 0 END,
		j.state IN ('submitted', 'queued', 'retrying') AND NOT j.held AND j.eligible_at <= now() + @window::interval,
		coalesce(t.resume_from, 0),
		r.stop_by, coalesce(r.slots, '[]')
	FROM jobs j
	LEFT JOIN attempts t ON t.job = j.id AND t.attempt = j.attempt
	LEFT JOIN LATERAL (
		SELECT min(a.stop_by) FILTER (WHERE a.state IN ('reserved', 'active') AND NOT a.orders ? 'kill') AS stop_by,
			jsonb_agg(jsonb_build_object(
				'alloc', a.id, 'rank', a.rank, 'machine', a.machine_id, 'state', a.state, 'sealed',
					a.sealed_at IS NOT NULL, 'leads', coalesce(a.rank BETWEEN j.lead_first AND j.lead_last, false),
				'gpus', (SELECT jsonb_agg(c.idx ORDER BY c.idx) FROM device_allocations c WHERE c.alloc_id = a.id))
				ORDER BY a.rank) AS slots
		FROM allocations a
		WHERE a.job = j.id AND a.attempt = j.attempt
	) r ON j.state IN ('scheduled', 'running', 'preempting', 'canceling')
	WHERE j.id = @job`

// Load returns a job's state to its workflow, and moves a submitted job to queued: that state
// means that the job has a running workflow. Both statements travel in one round trip.
func (d *Jobs) Load(ctx context.Context, id berth.JobID) (wire.JobView, error) {
	args := namedArgs{"job": id, "window": GrantWindow}
	batch := &pgx.Batch{}
	batch.Queue(queueSubmitted, args)
	batch.Queue(viewJob, args)
	results := d.pool.SendBatch(ctx, batch)
	queued, view, err := scanLoad(results)
	if closed := results.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return wire.JobView{}, mapError(err, "job "+string(id))
	}
	if queued {
		d.hub.Publish(TopicQueue, string(id))
		d.hub.Publish(TopicJob, string(id))
	}
	return view, nil
}

// View is Load for a workflow that has loaded the job before: it only reads.
func (d *Jobs) View(ctx context.Context, id berth.JobID) (wire.JobView, error) {
	view, err := scanView(d.pool.QueryRow(ctx, viewJob, namedArgs{"job": id, "window": GrantWindow}))
	return view, mapError(err, "job "+string(id))
}

// scanLoad reads the results of Load's batch. queued reports that the state has changed.
func scanLoad(results pgx.BatchResults) (queued bool, v wire.JobView, err error) {
	tag, err := results.Exec()
	if err != nil {
		return false, v, err
	}
	v, err = scanView(results.QueryRow())
	return tag.RowsAffected() > 0, v, err
}

// scanView reads a row of viewJob.
func scanView(row pgx.Row) (v wire.JobView, err error) {
	var limitMS int64
	var stopBy *time.Time
	err = row.Scan(&v.State, &v.Attempt, &v.HasParent, &v.CancelSeen, &limitMS, &v.Placeable, &v.ResumeStep,
		&stopBy, &v.Slots)
	if err != nil {
		return v, err
	}
	v.RunLimit = spec.Duration(time.Duration(limitMS) * time.Millisecond)
	if stopBy != nil {
		v.StopBy = *stopBy
	}
	return v, nil
}
