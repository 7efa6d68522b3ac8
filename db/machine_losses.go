package db

import (
	"context"
	"time"

	"berth"
	"berth/wire"
)

// Losses counts how often machines like the ones of a job's latest attempt were lost within window, and their time in
// service. Machines are alike if they have the same pool, site and number of GPUs.
//
// A machine is lost if it was in service and was then given up, or came back in a new boot before that. A machine that
// was drained before is not lost: nothing ran there. Broken GPUs of a machine that stays are not counted.
func (d *Machines) Losses(ctx context.Context, job berth.JobID, window time.Duration) (wire.MachineLosses, error) {
	var l wire.MachineLosses
	var ms float64
	err := d.pool.QueryRow(ctx, `
		WITH mine AS (
			SELECT DISTINCT m.id, m.pool, m.site, m.gpu_milli
			FROM jobs j
			JOIN allocations a ON a.job = j.id AND a.attempt = j.attempt
			JOIN machines m ON m.id = a.machine_id
			WHERE j.id = @job
		), alike AS (
			SELECT id
			FROM machines
			WHERE (pool, site, gpu_milli) IN (SELECT pool, site, gpu_milli FROM mine)
		), changes AS (
			SELECT e.at, e.state, e.host_boot, lag(e.state) OVER w AS was, lag(e.host_boot) OVER w AS was_boot,
				coalesce(lead(e.at) OVER w, clock_timestamp()) AS until
			FROM machine_events e
			JOIN alike ON alike.id = e.machine_id
			WHERE e.gpu IS NULL
			WINDOW w AS (PARTITION BY e.machine_id ORDER BY e.seq)
		), since AS (
			SELECT clock_timestamp() - @window_ms::bigint * interval '1 millisecond' AS at
		)
		SELECT (SELECT count(*) FROM mine),
			count(*) FILTER (WHERE t.at > s.at AND t.was IN ('ready', 'suspect')
				AND (t.state = 'lost' OR t.host_boot <> t.was_boot AND t.was_boot <> '')),
			coalesce(1000 * sum(extract(epoch FROM t.until - greatest(t.at, s.at)))
				FILTER (WHERE t.state = 'ready' AND t.until > s.at), 0)::double precision
		FROM changes t, since s`, namedArgs{"job": job, "window_ms": window.Milliseconds()}).
		Scan(&l.Machines, &l.Lost, &ms)
	l.Service = time.Duration(ms * float64(time.Millisecond))
	return l, mapError(err, "machines of job "+string(job))
}
