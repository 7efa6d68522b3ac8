package db

import (
	"context"
	"fmt"
	"time"

	"berth/db/history"
	"berth/spec"
)

// recordedTenant is a history.RecordedTenant of a row t.
const recordedTenant = `jsonb_build_object('id', t.id, 'parent', coalesce(t.parent, ''), 'weight', t.weight,
			'guarantee', jsonb_build_object('cpu_milli', t.guarantee_cpu_m, 'memory_mib', t.guarantee_mem_mb,
				'gpu_milli', t.guarantee_gpu_milli),
			'limit', jsonb_build_object('cpu_milli', t.limit_cpu_m, 'memory_mib', t.limit_mem_mb,
				'gpu_milli', t.limit_gpu_milli),
			'borrow', t.borrow, 'max_running', t.max_running, 'budget_gpu_hours', t.budget_gpu_hours)`

// inPeriod selects the jobs j that had not ended at since.
const inPeriod = `j.kind = 'job' AND (j.finished_at IS NULL OR j.finished_at >= @since)`

// Now returns the clock of the database just after the snapshot was taken: rows of the snapshot have no later times.
// A standby may be behind: its rows end at the last transaction that it has replayed.
func (h *History) Now(ctx context.Context) (now time.Time, err error) {
	// The first statement takes the snapshot.
	if _, err := h.tx.Exec(ctx, `SELECT 1`); err != nil {
		return now, mapError(err, "snapshot")
	}
	err = h.tx.QueryRow(ctx, `
		SELECT least(clock_timestamp(), CASE WHEN pg_is_in_recovery() THEN pg_last_xact_replay_timestamp() END)`).
		Scan(&now)
	return now, mapError(err, "snapshot")
}

// RecordedCluster returns the tenants, pools, burst policies and offers, the requests of the jobs since a time, and the
// number of the jobs of that time that are archived and so missing from RecordedJobs.
func (h *History) RecordedCluster(ctx context.Context, since time.Time) (history.RecordedCluster, error) {
	c, err := document1[history.RecordedCluster](ctx, h.tx, `
		SELECT jsonb_build_object(
			'archived', (SELECT count(*) FROM archived_jobs a WHERE a.finished_at >= @since),
			'tenants', (SELECT jsonb_agg(`+recordedTenant+` ORDER BY t.id COLLATE "C") FROM tenants t),
			'pools', (SELECT jsonb_agg(jsonb_build_object('name', p.id, 'tenants', p.tenants,
					'one_tenant', p.one_tenant) ORDER BY p.id COLLATE "C")
				FROM pools p WHERE p.tenants IS NOT NULL OR p.one_tenant),
			'bursts', (SELECT jsonb_agg(jsonb_build_object('tenant', b.tenant, 'policy', b.policy)
				ORDER BY b.tenant COLLATE "C") FROM burst_policies b),
			'offers', (SELECT jsonb_agg(jsonb_build_object('provider', o.provider, 'region', o.region, 'zone', o.zone,
					'type', o.type, 'market', o.market, 'cpus', o.cpus, 'memory_mib', o.memory_mib, 'gpus', o.gpus,
					'gpu_type', o.gpu_type, 'price_per_hour', coalesce(o.price_override, o.price), 'as_of', o.as_of)
				ORDER BY o.provider COLLATE "C", o.region COLLATE "C", o.zone COLLATE "C", o.type COLLATE "C", o.market)
				FROM offers o),
			'classes', (SELECT jsonb_agg(jsonb_build_object('class', c.class, 'request', c.request)
					ORDER BY c.class COLLATE "C")
				FROM classes c
				WHERE EXISTS (SELECT 1 FROM jobs j WHERE j.class = c.class AND `+inPeriod+`)))`,
		namedArgs{"since": since})
	return c, mapError(err, "recording")
}

// RecordedMachines calls each for every machine that was in service since a time, by id.
func (h *History) RecordedMachines(ctx context.Context, since time.Time,
	each func(history.RecordedMachine) error) error {
	at := literal(since)
	err := eachFetched(ctx, h, "recorded_machines", `
		SELECT jsonb_build_object('id', m.id, 'pool', m.pool, 'region', m.region, 'site', m.site, 'network', m.network,
			'fences', m.fence_ms > 0, 'labels', machine_labels(m),
			'gpus', (SELECT jsonb_agg(jsonb_build_object('index', g.idx, 'model', g.model, 'memory_mib', g.mem_mb)
				ORDER BY g.idx) FROM gpu_devices g WHERE g.machine_id = m.id),
			'states', (SELECT jsonb_agg(jsonb_build_object('at', e.at, 'state', e.state, 'cpu_milli', e.cpu_m,
					'memory_mib', e.mem_mb, 'disk_mib', e.disk_mb, 'gpu_milli', e.gpu_milli) ORDER BY e.seq)
				FROM machine_events e
				WHERE e.machine_id = m.id AND e.gpu IS NULL AND (e.at >= `+at+` OR e.seq = (
					SELECT max(x.seq) FROM machine_events x
					WHERE x.machine_id = m.id AND x.gpu IS NULL AND x.at < `+at+`))),
			'health', (SELECT jsonb_agg(jsonb_build_object('at', e.at, 'gpu', e.gpu, 'healthy', e.state = 'healthy')
					ORDER BY e.seq)
				FROM machine_events e
				WHERE e.machine_id = m.id AND e.gpu IS NOT NULL AND (e.at >= `+at+` OR e.seq = (
					SELECT max(x.seq) FROM machine_events x
					WHERE x.machine_id = m.id AND x.gpu = e.gpu AND x.at < `+at+`))))
		FROM machines m
		WHERE m.state <> 'retired' OR m.state_at >= `+at+`
		ORDER BY m.id COLLATE "C"`, each)
	return mapError(err, "recorded machines")
}

// RecordedLaunches calls each for every launch that had not ended at since, by machine and number.
func (h *History) RecordedLaunches(ctx context.Context, since time.Time,
	each func(history.RecordedLaunch) error) error {
	err := eachFetched(ctx, h, "recorded_launches", `
		SELECT jsonb_build_object('machine', l.machine, 'n', l.n, 'tenant', l.tenant, 'provider', l.provider,
			'region', l.region, 'zone', l.zone, 'type', l.type, 'market', l.market, 'price_per_hour', l.price,
			'state', l.state, 'created_at', l.created_at, 'joined_at', l.joined_at, 'ended_at', l.ended_first_at,
			'settled', l.settled, 'settled_to', l.settled_to)
		FROM launches l
		WHERE l.state NOT IN ('gone', 'failed') OR l.state_at >= `+literal(since)+`
		ORDER BY l.machine COLLATE "C", l.n`, each)
	return mapError(err, "recorded launches")
}

// RecordedJobs calls each for every job that had not ended at since, by submission. Arrays and pipelines are left
// out, and their jobs are not. Memory holds one page; the database sorts, on disk if there are many.
func (h *History) RecordedJobs(ctx context.Context, since time.Time, each func(history.RecordedJob) error) error {
	at := literal(since)
	err := eachFetched(ctx, h, "recorded_jobs", `
		SELECT jsonb_build_object('id', j.id, 'tenant', j.tenant, 'class', j.class,
			'like', CASE WHEN j.step IS NULL THEN j.name ELSE j.name || '.' || j.step END,
			'parent', coalesce(j.parent::text, ''),
			'parallel', coalesce((SELECT p.parallel FROM jobs p WHERE p.id = j.parent), 0),
			'priority', j.priority, 'preemptible', j.preemptible, 'state', j.state, 'submitted_at', j.submitted_at,
			'ready_at', `+readyAt+`, 'finished_at', j.finished_at, 'run_limit_ms', j.run_limit_ms,
			'grace_ms', j.grace_ms, 'interval', s.spec -> 'checkpoint' -> 'interval',
			'attempts', (SELECT jsonb_agg(`+recordedAttempt(at)+` ORDER BY t.attempt)
				FROM attempts t
				LEFT JOIN LATERAL (
					SELECT max(`+memberEnd+`) AS at, bool_or(a.state IN ('reserved', 'active')) AS holds
					FROM allocations a WHERE a.job = t.job AND a.attempt = t.attempt
				) f ON true
				WHERE t.job = j.id))
		FROM jobs j
		LEFT JOIN job_specs s ON s.job = j.id
		WHERE j.kind = 'job' AND (j.finished_at IS NULL OR j.finished_at >= `+at+`)
		ORDER BY j.submitted_at, j.id`, func(r recordedRow) error {
		if r.Interval != nil {
			r.CheckpointMS = r.Interval.Std().Milliseconds()
		}
		return each(r.RecordedJob)
	})
	return mapError(err, "recorded jobs")
}

// recordedRow is a history.RecordedJob as the database has it.
type recordedRow struct {
	history.RecordedJob
	Interval *spec.Duration `json:"interval"` // of checkpoints; nil: none
}

// readyAt is the earliest start of a job j: its submission, or the time from which a step waited for no other job.
// It is null while the job is held or waits for others. The column eligible_at is something else: the end of each
// attempt moves that, also after the last one.
const readyAt = `CASE
				WHEN j.held OR j.blocked THEN NULL
				WHEN j.step IS NOT NULL OR EXISTS (SELECT 1 FROM job_needs n WHERE n.job = j.id)
					THEN coalesce(j.queued_at, j.finished_at, j.submitted_at)
				ELSE j.submitted_at
			END`

// memberEnd is the time at which an allocation a ended for its job. An orphaned one still counts against its machine,
// but its job has gone on elsewhere or has ended, and the machine is not in service.
const memberEnd = `coalesce(least(a.exited_at, a.orphaned_at), a.released_at)`

// attemptEnd is the end of an attempt t that holds nothing. Rows take now() as their time, which is the begin of a
// transaction and may be before the placement.
const attemptEnd = `greatest(t.placed_at, coalesce(f.at, t.ended_at))`

// recordedAttempt returns a history.RecordedAttempt of a row t and of the end f of its members.
func recordedAttempt(since string) string {
	return `jsonb_build_object('attempt', t.attempt, 'placed_at', t.placed_at, 'started_at', t.started_at,
				'freed_at', CASE WHEN NOT coalesce(f.holds, false) THEN ` + attemptEnd + ` END,
				'kept_to', (SELECT max(c.created_at) FROM checkpoints c
					WHERE c.job = t.job AND c.attempt = t.attempt AND c.state IN ('verified', 'pruned')),
				'outcome', coalesce(t.outcome ->> 'code', ''), 'budget', coalesce(t.budget, ''),
				'members', CASE WHEN t.placed_at < ` + since + `
						AND (f.holds OR ` + attemptEnd + ` >= ` + since + `) THEN (
					SELECT jsonb_agg(jsonb_build_object('machine', a.machine_id, 'cpu_milli', a.cpu_m,
						'memory_mib', a.mem_mb, 'disk_mib', a.disk_mb, 'gpu_milli', a.gpu_milli,
						'gpus', (SELECT jsonb_agg(jsonb_build_object('index', d.idx, 'milli', d.milli) ORDER BY d.idx)
							FROM device_allocations d WHERE d.alloc_id = a.id)) ORDER BY a.rank)
					FROM allocations a WHERE a.job = t.job AND a.attempt = t.attempt) END)`
}

// eachFetched calls each for every document of a query, through a cursor: memory holds one page.
func eachFetched[T any](ctx context.Context, h *History, cursor, query string, each func(T) error) error {
	if _, err := h.tx.Exec(ctx, `DECLARE `+cursor+` NO SCROLL CURSOR FOR `+query); err != nil {
		return err
	}
	for {
		page, err := documents[T](ctx, h.tx, fmt.Sprintf(`FETCH %d FROM `+cursor, historyJobs))
		if err != nil {
			return err
		}
		if len(page) == 0 {
			_, err := h.tx.Exec(ctx, `CLOSE `+cursor)
			return err
		}
		for _, x := range page {
			if err := each(x); err != nil {
				return err
			}
		}
	}
}
