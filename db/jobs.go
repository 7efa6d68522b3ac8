package db

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// batcher is a pool or a transaction. The statements of a batch are one
// transaction either way.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// jobDocument is a berth.Job as JSON, without what only the full view has, of
// a row j of jobs. Lists, the full view and the archive share it, so that a
// job looks the same wherever it lies.
const jobDocument = `jsonb_strip_nulls(jsonb_build_object(
			'id', j.id, 'name', j.name, 'tenant', j.tenant, 'status', j.state, 'reason', j.reason,
			'dead_letter', j.dead_letter, 'held', j.held, 'priority', j.priority, 'labels', j.labels,
			'attempt', j.attempt, 'failures', j.failures, 'losses', j.losses, 'preemptions', j.preemptions,
			'retry_of', j.retry_of, 'retried_by', j.retried_by, 'parent', j.parent,
			'image_digest', j.image_digest, 'exit_code', j.exit_code,
			'submitted_at', j.submitted_at, 'queued_at', j.queued_at, 'scheduled_at', j.scheduled_at,
			'started_at', j.started_at, 'finished_at', j.finished_at,
			'eligible_at', CASE WHEN j.state = 'retrying' THEN j.eligible_at END))`

// fullDocument adds to jobDocument what hangs on the row.
const fullDocument = jobDocument + ` || jsonb_strip_nulls(jsonb_build_object(
			'spec', (SELECT s.spec FROM job_specs s WHERE s.job = j.id),
			'progress', (
				SELECT a.progress FROM allocations a
				WHERE a.job = j.id AND a.progress IS NOT NULL
				ORDER BY a.attempt DESC, a.rank LIMIT 1),
			'attempts', (
				SELECT jsonb_agg(jsonb_build_object(
					'number', t.attempt,
					'machines', coalesce((
						SELECT jsonb_agg(a.machine_id ORDER BY a.rank)
						FROM allocations a WHERE a.job = t.job AND a.attempt = t.attempt), '[]'),
					'gpus', (
						SELECT jsonb_agg(g.uuid ORDER BY a.rank, c.idx)
						FROM allocations a
						JOIN gpu_claims c ON c.alloc_id = a.id
						JOIN gpu_devices g ON g.machine_id = c.machine_id AND g.idx = c.idx
						WHERE a.job = t.job AND a.attempt = t.attempt),
					'placed_at', t.placed_at, 'started_at', t.started_at, 'ended_at', t.ended_at,
					'resume_from', t.resume_from, 'last_step', t.last_step, 'outcome', t.outcome,
					'next', t.next_state, 'exit_code', t.exit_code,
					'lost_steps', CASE WHEN t.next_state = 'retrying' THEN greatest(t.last_step - coalesce(l.step, 0), 0) END,
					'lost_gpu_seconds', CASE WHEN t.next_state = 'retrying' THEN l.gpu_seconds END) ORDER BY t.attempt)
				FROM attempts t
				LEFT JOIN LATERAL (` + lostWork + `) l ON t.next_state = 'retrying'
				WHERE t.job = j.id),
			'checkpoints', (
				SELECT jsonb_agg(jsonb_build_object(
					'step', c.step, 'attempt', c.attempt, 'state', c.state, 'bytes', c.bytes,
					'created_at', c.created_at, 'detail', c.detail,
					'manifest_sha256', (
						SELECT sh.sha256 FROM checkpoint_shards sh
						WHERE sh.job = c.job AND sh.step = c.step AND sh.attempt = c.attempt
						ORDER BY sh.rank LIMIT 1)) ORDER BY c.step DESC, c.attempt DESC)
				FROM checkpoints c WHERE c.job = j.id)))`

// lostWork is what an attempt t did in vain: since the step with which the next
// attempt began or, as long as there is none, since the newest verified one. A
// step that was saved by an earlier attempt saves nothing of this one. Steps
// that the next attempt finds damaged are lost with it.
const lostWork = `
	SELECT b.step, round((
		extract(epoch FROM greatest(t.ended_at - greatest(coalesce(c.created_at, t.started_at), t.started_at), '0')) * coalesce((
			SELECT sum(g.milli) / 1000.0
			FROM allocations a
			JOIN gpu_claims g ON g.alloc_id = a.id
			WHERE a.job = t.job AND a.attempt = t.attempt), 0))::numeric, 3) AS gpu_seconds
	FROM (
		SELECT CASE WHEN n.attempt IS NOT NULL THEN n.resume_from ELSE (
			SELECT max(v.step) FROM checkpoints v WHERE v.job = t.job AND v.state = 'verified') END AS step
		FROM (SELECT 1) one
		LEFT JOIN attempts n ON n.job = t.job AND n.attempt = t.attempt + 1
	) b
	LEFT JOIN checkpoints c ON c.job = t.job AND c.attempt = t.attempt AND c.step = b.step`

// Job returns all that is known of a job, archived ones included. Tenant ""
// means any; another tenant's job is answered like one that does not exist.
func (d *DB) Job(ctx context.Context, tenant berth.TenantID, id berth.JobID) (berth.Job, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT `+fullDocument+`
		FROM jobs j
		WHERE j.id = @id AND (@tenant = '' OR j.tenant = @tenant)
		UNION ALL
		SELECT job
		FROM archived_jobs
		WHERE id = @id AND (@tenant = '' OR tenant = @tenant)
		LIMIT 1`,
		pgx.NamedArgs{"id": id, "tenant": string(tenant)})
	if err != nil {
		return berth.Job{}, mapError(err, "job "+string(id))
	}
	job, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[berth.Job])
	return job, mapError(err, "job "+string(id))
}

// JobState returns where a job stands and its current attempt, as followers of
// its events and logs need it: cheaply.
func (d *DB) JobState(ctx context.Context, tenant berth.TenantID, id berth.JobID) (state berth.State, attempt int, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT state, attempt
		FROM jobs
		WHERE id = @id AND (@tenant = '' OR tenant = @tenant)
		UNION ALL
		SELECT state, (job ->> 'attempt')::integer
		FROM archived_jobs
		WHERE id = @id AND (@tenant = '' OR tenant = @tenant)
		LIMIT 1`,
		pgx.NamedArgs{"id": id, "tenant": string(tenant)}).Scan(&state, &attempt)
	return state, attempt, mapError(err, "job "+string(id))
}

// ResolveJob returns the job that id names: a whole id, or the beginning of
// just one of the tenant's.
func (d *DB) ResolveJob(ctx context.Context, tenant berth.TenantID, id string) (berth.JobID, error) {
	lo, hi, ok := idRange(strings.ToLower(id))
	if !ok {
		return "", berth.Errorf(berth.CodeNotFound, "no such job %s", id)
	}
	rows, err := d.pool.Query(ctx, `
		SELECT id::text FROM jobs
		WHERE id BETWEEN @lo AND @hi AND (@tenant = '' OR tenant = @tenant)
		UNION
		SELECT id::text FROM archived_jobs
		WHERE id BETWEEN @lo AND @hi AND (@tenant = '' OR tenant = @tenant)
		LIMIT 2`,
		pgx.NamedArgs{"lo": lo, "hi": hi, "tenant": string(tenant)})
	if err != nil {
		return "", mapError(err, "job "+id)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
	switch {
	case err != nil:
		return "", mapError(err, "job "+id)
	case len(found) == 0:
		return "", berth.Errorf(berth.CodeNotFound, "no such job %s", id)
	case len(found) > 1:
		return "", &berth.Error{Code: berth.CodeConflict, Slug: SlugAmbiguousID, Message: "more than one job's id begins with " + id + "; write more of it"}
	}
	return found[0], nil
}

// SlugAmbiguousID is the stable code for a prefix of more than one id.
const SlugAmbiguousID = "ambiguous_id"

// minPrefix is the shortest beginning of an id that may stand for it.
const minPrefix = 4

// idRange returns the smallest and the largest UUID that begin with prefix.
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

// JobFilter selects jobs; zero fields select all.
type JobFilter struct {
	Tenant berth.TenantID
	Status []berth.State
	Name   string
	Labels map[string]string // all must match
	Parent *berth.JobID
	Since  time.Time // submitted at or after
	Limit  int       // 0: 100; at most 1000
	Cursor string    // of the page before; "" for the first
}

// Page sizes.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// where is what f asks of a row, and its place in the order. Only conditions
// that are there are written: the plan of a prepared statement is made once for
// all values, and one for a condition that may be absent would serve no index.
func (f JobFilter) where(after *jobCursor) (string, pgx.NamedArgs) {
	args := pgx.NamedArgs{"limit": f.Limit + 1}
	var conditions []string
	add := func(condition, name string, value any) {
		conditions, args[name] = append(conditions, condition), value
	}
	if f.Tenant != "" {
		add("tenant = @tenant", "tenant", f.Tenant)
	}
	if len(f.Status) > 0 {
		add("state = ANY(@status::text[])", "status", f.Status)
	}
	if f.Name != "" {
		add("name = @name", "name", f.Name)
	}
	if len(f.Labels) > 0 {
		add("labels @> @labels", "labels", f.Labels)
	}
	if f.Parent != nil {
		add("parent = @parent", "parent", f.Parent)
	}
	if !f.Since.IsZero() {
		add("submitted_at >= @since", "since", f.Since)
	}
	if after != nil {
		add("(submitted_at, id) < (@after_at, @after_id::uuid)", "after_at", after.At)
		args["after_id"] = after.ID
	}
	text := "\n\t\t\t\t"
	if len(conditions) > 0 {
		text += "WHERE " + strings.Join(conditions, " AND ") + "\n\t\t\t\t"
	}
	return text + "ORDER BY submitted_at DESC, id DESC\n\t\t\t\tLIMIT @limit", args
}

// Jobs returns a page of jobs, newest first, archived ones included, and the
// cursor of the next page, "" after the last.
func (d *DB) Jobs(ctx context.Context, f JobFilter) ([]berth.Job, string, error) {
	if f.Limit <= 0 {
		f.Limit = DefaultPage
	}
	f.Limit = min(f.Limit, MaxPage)
	after, err := parseCursor(f.Cursor)
	if err != nil {
		return nil, "", err
	}
	where, args := f.where(after)
	// One statement, so that a job on its way to the archive is seen once; and
	// documents are made of the page alone, not of all that it is chosen from.
	rows, err := d.pool.Query(ctx, `
		SELECT coalesce(
			page.job - '{spec,attempts,checkpoints,progress}'::text[],
			(SELECT `+jobDocument+` FROM jobs j WHERE j.id = page.id))
		FROM (
			(
				SELECT id, submitted_at, NULL::jsonb AS job
				FROM jobs`+where+`
			)
			UNION ALL
			(
				SELECT id, submitted_at, job
				FROM archived_jobs`+where+`
			)
			ORDER BY submitted_at DESC, id DESC
			LIMIT @limit
		) page
		ORDER BY page.submitted_at DESC, page.id DESC`, args)
	if err != nil {
		return nil, "", mapError(err, "jobs")
	}
	jobs, err := pgx.CollectRows(rows, pgx.RowTo[berth.Job])
	if err != nil {
		return nil, "", mapError(err, "jobs")
	}
	if len(jobs) <= f.Limit {
		return jobs, "", nil
	}
	last := jobs[f.Limit-1]
	return jobs[:f.Limit], jobCursor{last.SubmittedAt, last.ID}.String(), nil
}

// jobCursor is the position after a job in the order of lists. It is opaque to
// clients, and an edited one selects nothing that the filter would not.
type jobCursor struct {
	At time.Time
	ID berth.JobID
}

func (c jobCursor) String() string {
	b, err := json.Marshal([]any{c.At.UnixMicro(), c.ID})
	if err != nil {
		panic("cursor does not marshal: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseCursor(s string) (*jobCursor, error) {
	if s == "" {
		return nil, nil
	}
	bad := berth.Errorf(berth.CodeInvalid, "cursor %.40q is not one that this list gave", s)
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) > 200 {
		return nil, bad
	}
	var micros int64
	var id string
	if err := json.Unmarshal(b, &[]any{&micros, &id}); err != nil {
		return nil, bad
	}
	job, err := berth.ParseJobID(id)
	at := time.UnixMicro(micros).UTC()
	if err != nil || at.Year() < 2000 || at.Year() > 2200 {
		return nil, bad
	}
	return &jobCursor{at, job}, nil
}
