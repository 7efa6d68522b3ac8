package db

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// batcher is a pool or a transaction. Either way the statements of a batch form one
// transaction.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// jobDocument is a wire.Job as JSON, of a row j of jobs, without the fields of the full view.
// Lists, the full view and the archive share it, so that a job looks the same wherever its
// row is.
const jobDocument = `jsonb_strip_nulls(jsonb_build_object(
			'id', j.id, 'kind', nullif(j.kind, 'job'), 'name', j.name, 'tenant', j.tenant,
			'status', j.state, 'reason', j.reason,
			'dead_letter', j.dead_letter, 'held', j.held, 'priority', j.priority, 'labels', j.labels,
			'attempt', j.attempt, 'failures', j.failures, 'losses', j.losses, 'preemptions', j.preemptions,
			'retry_of', j.retry_of, 'retried_by', j.retried_by,
			'started_from', ` + sourceDocument + `, 'parent', j.parent, 'array_index', j.array_index,
			'step', j.step, 'cached_from', j.cached_from, 'submitted_by', j.submitted_by,
			'indexes', CASE WHEN j.indexes IS NOT NULL THEN index_ranges(j.indexes) END,
			'tally', CASE WHEN j.kind <> 'job' THEN coalesce(j.tally, ` + liveTally + `) END,
			'alternative', CASE WHEN j.alternatives IS NOT NULL THEN j.alternative END,
			'image_digest', j.image_digest, 'image_digest_by', j.image_digest_by,
			'image_digest_at', j.image_digest_at, 'exit_code', j.exit_code,
			'submitted_at', j.submitted_at, 'queued_at', j.queued_at, 'scheduled_at', j.scheduled_at,
			'started_at', j.started_at, 'finished_at', j.finished_at,
			'eligible_at', CASE WHEN j.state = 'retrying' THEN j.eligible_at END))`

// sourceDocument is a wire.StartPoint of a row j of jobs as JSON, null if the job started from its
// beginning.
const sourceDocument = `(
				SELECT jsonb_strip_nulls(jsonb_build_object('job', o.source, 'attempt', o.attempt, 'step', o.step,
					'parts', o.parts))
				FROM job_sources o
				WHERE o.job = j.id AND o.array_index = -1)`

// liveTally is a wire.Tally of the children of a row j of jobs, counted from their rows. An
// ended parent has a stored tally, which readers prefer.
const liveTally = `(
				SELECT jsonb_build_object('total', CASE WHEN j.indexes = '{}' THEN 0 ELSE j.total END,
					'unmade', CASE WHEN j.indexes = '{}' THEN 0 ELSE j.total - coalesce(sum(x.n), 0) END, 'by_status',
					coalesce(jsonb_object_agg(x.state, x.n), '{}'))
				FROM (SELECT c.state, count(*) AS n FROM jobs c WHERE c.parent = j.id GROUP BY c.state) x)`

// fullDocument adds to jobDocument the fields that other tables hold: spec, steps, progress,
// stage, attempts, holds, hangs and checkpoints.
var fullDocument = jobDocument + ` || jsonb_strip_nulls(jsonb_build_object(
			CASE j.kind WHEN 'pipeline' THEN 'pipeline' ELSE 'spec' END,
				(SELECT s.spec FROM job_specs s WHERE s.job = j.id),
			'steps', CASE j.kind WHEN 'pipeline' THEN (
				SELECT jsonb_agg(jsonb_build_object('name', c.step, 'job', c.id,
					'handle', ` + handleOf("c.id") + `, 'kind', nullif(c.kind, 'job'),
					'status', c.state, 'reason', c.reason, 'cached_from', c.cached_from,
					'queued_at', c.queued_at, 'started_at', c.started_at, 'finished_at', c.finished_at,
					'tally', CASE WHEN c.kind <> 'job' THEN coalesce(c.tally, (SELECT ` + liveTally + ` FROM jobs j
						WHERE j.id = c.id)) END,
					'final', CASE WHEN c.final THEN true END,
					'when', nullif(c.run_when, CASE WHEN c.final THEN 'always' ELSE 'success' END),
					'needs', (
					SELECT jsonb_agg(n.step ORDER BY n.step)
					FROM all_needs d
					JOIN jobs n ON n.id = d.needs
					WHERE d.job = c.id)) ORDER BY c.id)
				FROM jobs c WHERE c.parent = j.id) END,
			'progress', (
				SELECT a.progress FROM allocations a
				WHERE a.job = j.id AND a.progress IS NOT NULL
				ORDER BY a.attempt DESC, a.rank LIMIT 1),
			'stage', ` + stageDocument + `,
			'image_request', (
				SELECT jsonb_build_object('state', q.state, 'tries', q.tries, 'reason', nullif(q.reason, ''))
				FROM image_requests q WHERE q.job = j.id),
			'attempts', (
				SELECT jsonb_agg(jsonb_build_object(
					'number', t.attempt,
					'alternative', CASE WHEN j.alternatives IS NOT NULL THEN t.alternative END,
					'machines', coalesce((
						SELECT jsonb_agg(a.machine_id ORDER BY a.rank)
						FROM allocations a WHERE a.job = t.job AND a.attempt = t.attempt), '[]'),
					'gpus', (
						SELECT jsonb_agg(g.uuid ORDER BY a.rank, c.idx)
						FROM allocations a
						JOIN device_allocations c ON c.alloc_id = a.id
						JOIN gpu_devices g ON g.machine_id = c.machine_id AND g.idx = c.idx
						WHERE a.job = t.job AND a.attempt = t.attempt),
					'placed_at', t.placed_at, 'started_at', t.started_at, 'ended_at', t.ended_at,
					'resume_from', t.resume_from, 'last_step', t.last_step, 'outcome', t.outcome,
					'next', t.next_state, 'exit_code', t.exit_code,
					'cost', attempt_cost(t.job, t.attempt),
					'measured', (
						SELECT jsonb_agg(a.exit -> 'measured' ORDER BY a.rank)
						FROM allocations a WHERE a.job = t.job AND a.attempt = t.attempt AND a.exit ? 'measured'),
					'lost_steps', CASE WHEN t.next_state = 'retrying' THEN
						greatest(t.last_step - coalesce(l.step, 0), 0) END,
					'lost_gpu_seconds', CASE WHEN t.next_state = 'retrying' THEN l.gpu_seconds END) ORDER BY t.attempt)
				FROM attempts t
				LEFT JOIN LATERAL (` + lostWork + `) l ON t.next_state = 'retrying'
				WHERE t.job = j.id),
			'held_attempts', (
				SELECT jsonb_agg(jsonb_build_object('job', h.debug, 'attempt', h.attempt, 'member', h.rank,
					'machine', h.machine_id, 'status', d.state, 'seconds', h.hold_ms / 1000,
					'until', d.started_at + h.hold_ms * interval '1 millisecond') ORDER BY h.attempt)
				FROM holds h
				JOIN jobs d ON d.id = h.debug
				WHERE h.job = j.id),
			'hold_of', (
				SELECT jsonb_build_object('job', h.job, 'attempt', h.attempt, 'member', h.rank,
					'machine', h.machine_id, 'status', j.state, 'seconds', h.hold_ms / 1000,
					'until', j.started_at + h.hold_ms * interval '1 millisecond')
				FROM holds h
				WHERE h.debug = j.id),
			'hangs', (
				SELECT jsonb_agg(t.hang ORDER BY t.attempt)
				FROM attempts t WHERE t.job = j.id AND t.hang IS NOT NULL),
			'checkpoints', (
				SELECT jsonb_agg(jsonb_build_object(
					'step', c.step, 'attempt', c.attempt, 'state', c.state, 'bytes', c.bytes,
					'stored_bytes', c.stored_bytes,
					'created_at', c.created_at, 'detail', c.detail, 'metric_value', c.metric_value,
					'write_seconds', c.write_ms / 1000.0, 'store_seconds', c.store_ms / 1000.0,
					'pinned', CASE WHEN c.pinned_at IS NOT NULL THEN true END,
					'passed_over', CASE WHEN c.state = 'verified' AND c.passed_over THEN true END,
					'used', CASE WHEN c.state = 'verified' AND checkpoint_is_kept(c.job, c.step, c.attempt, NULL)
						THEN true END,
					'manifest_sha256', (
						SELECT sh.sha256 FROM checkpoint_shards sh
						WHERE sh.job = c.job AND sh.step = c.step AND sh.attempt = c.attempt
						ORDER BY sh.rank LIMIT 1)) ORDER BY c.step DESC, c.attempt DESC)
				FROM checkpoints c WHERE c.job = j.id)))`

// lostWork selects the work of an attempt t that must be repeated: everything since the step
// from which the next attempt resumed or, until there is one, since the newest verified
// checkpoint. A checkpoint of an earlier attempt saves no work of this one. Steps that the
// next attempt finds damaged are lost with it.
const lostWork = `
	SELECT b.step, round((
		extract(epoch FROM greatest(t.ended_at - greatest(coalesce(c.created_at, t.started_at), t.started_at), '0')) *
			coalesce((
			SELECT sum(g.milli) / 1000.0
			FROM allocations a
			JOIN device_allocations g ON g.alloc_id = a.id
			WHERE a.job = t.job AND a.attempt = t.attempt), 0))::numeric, 3) AS gpu_seconds
	FROM (
		SELECT CASE WHEN n.attempt IS NOT NULL THEN n.resume_from ELSE (
			SELECT coalesce(max(v.step) FILTER (WHERE NOT v.passed_over), max(v.step), (
				SELECT o.step FROM job_sources o WHERE o.job = t.job AND o.array_index = -1))
			FROM checkpoints v
			WHERE v.job = t.job AND v.state = 'verified') END AS step
		FROM (SELECT 1) one
		LEFT JOIN attempts n ON n.job = t.job AND n.attempt = t.attempt + 1
	) b
	LEFT JOIN checkpoints c ON c.job = t.job AND c.attempt = t.attempt AND c.step = b.step`

// Get returns the full view of a job, archived or not. Tenant "" means any; another tenant's
// job is not_found, like one that does not exist.
func (d *Jobs) Get(ctx context.Context, tenant berth.TenantID, id berth.JobID) (wire.Job, error) {
	return getJob(ctx, d.core, tenant, id)
}

// getJob is Get, for all stores.
func getJob(ctx context.Context, d *core, tenant berth.TenantID, id berth.JobID) (wire.Job, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT `+fullDocument+` || jsonb_build_object('handle', `+handleOf("j.id")+`)
		FROM jobs j
		WHERE j.id = @id AND (@tenant = '' OR j.tenant = @tenant)
		UNION ALL
		SELECT job || jsonb_build_object('handle', `+handleOf("archived_jobs.id")+`)
		FROM archived_jobs
		WHERE id = @id AND (@tenant = '' OR tenant = @tenant)
		LIMIT 1`,
		namedArgs{"id": id, "tenant": string(tenant)})
	if err != nil {
		return wire.Job{}, mapError(err, "job "+string(id))
	}
	job, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[wire.Job])
	job.RankBest()
	job.AddCost()
	if err != nil || job.ArrayIndex == nil {
		return job, mapError(err, "job "+string(id))
	}
	element := []wire.Job{job}
	err = addVariables(ctx, d.pool, element)
	return element[0], mapError(err, "job "+string(id))
}

// MemberMemory returns the memory of each member of an attempt, by rank. It is empty for an archived job.
func (d *Jobs) MemberMemory(ctx context.Context, id berth.JobID, attempt int) (map[int]spec.MiB, error) {
	rows, err := d.pool.Query(ctx, `SELECT rank, mem_mb FROM allocations WHERE job = $1 AND attempt = $2`, id, attempt)
	if err != nil {
		return nil, mapError(err, "job "+string(id))
	}
	memory := map[int]spec.MiB{}
	var rank int
	var mib spec.MiB
	_, err = pgx.ForEachRow(rows, []any{&rank, &mib}, func() error {
		memory[rank] = mib
		return nil
	})
	return memory, mapError(err, "job "+string(id))
}

// State returns a job's state and current attempt, archived jobs included. It is cheap, for
// followers of events and logs that poll it.
func (d *Jobs) State(ctx context.Context, tenant berth.TenantID,
	id berth.JobID) (state berth.State, attempt int, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT state, attempt
		FROM jobs
		WHERE id = @id AND (@tenant = '' OR tenant = @tenant)
		UNION ALL
		SELECT state, (job ->> 'attempt')::integer
		FROM archived_jobs
		WHERE id = @id AND (@tenant = '' OR tenant = @tenant)
		LIMIT 1`,
		namedArgs{"id": id, "tenant": string(tenant)}).Scan(&state, &attempt)
	return state, attempt, mapError(err, "job "+string(id))
}

// JobMark is a fingerprint of a job: two marks differ if the job's state, its history or its
// stored logs have changed in between.
type JobMark struct {
	State    string // state and attempt
	Seq      int64  // number of the last event
	LogBytes int64  // stored bytes, over all attempts and members
}

// Mark returns a job's current mark. The mark of an archived or unknown job is constant.
func (d *Jobs) Mark(ctx context.Context, id berth.JobID) (m JobMark, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT coalesce((SELECT state || ' ' || attempt FROM jobs WHERE id = @id), 'archived'),
			coalesce((SELECT max(seq) FROM job_events WHERE job = @id), 0),
			coalesce((SELECT sum(log_bytes) FROM allocations WHERE job = @id), 0)::bigint`,
		namedArgs{"id": id}).Scan(&m.State, &m.Seq, &m.LogBytes)
	return m, mapError(err, "job "+string(id))
}

// SlugAmbiguousID is the stable code for a part of an id that matches more than one job.
const SlugAmbiguousID = "ambiguous_id"

// minPrefix is the shortest accepted prefix of an id, in characters.
const minPrefix = 4

// idRange returns the smallest and the largest UUID with a prefix. ok is false if prefix is
// no beginning of a UUID, with its dashes.
func idRange(prefix string) (lo, hi string, ok bool) {
	const form = "00000000-0000-0000-0000-000000000000"
	if len(prefix) < minPrefix || len(prefix) > len(form) {
		return "", "", false
	}
	for i := range len(prefix) {
		c, dash := prefix[i], form[i] == '-'
		if dash != (c == '-') || !dash && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return "", "", false
		}
	}
	rest := form[len(prefix):]
	return prefix + rest, prefix + strings.ReplaceAll(rest, "0", "f"), true
}
