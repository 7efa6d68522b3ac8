package db

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// Submission is a job to store.
type Submission struct {
	Tenant  berth.TenantID
	Spec    spec.Job // valid, with defaults filled in
	IdemKey string   // idempotency key; "": every call creates a job
	Actor   string
	RetryOf *berth.JobID // the job that this one retries; nil: none
	Indexes []int        // of an array that has only these elements, ascending; nil: all

	incarnation int64 // of the database, for newJobID
}

// Submit stores a job and returns the job with created true. A repeated call with the same
// key and an equal spec returns the first job, with created false; with another spec it is
// a conflict with slug idempotency_mismatch. A key belongs to its tenant, and is free again
// once its job is archived. If as many of the tenant's jobs wait as its quota allows, a new
// job is refused with slug quota.
//
// The job's row is its own outbox: the workflow is started from the row, and the hint after
// the commit only saves time.
func (d *Jobs) Submit(ctx context.Context, s Submission) (job wire.Job, created bool, err error) {
	if s.incarnation, err = d.incarnations.now(ctx, d.pool); err != nil {
		return wire.Job{}, false, err
	}
	row, err := newSubmitRow(s)
	if err != nil {
		return wire.Job{}, false, err
	}
	// insert reports not_found for a key that is taken. The job with the key may be
	// archived before the look-up, which frees the key: then insert is tried again.
	for range 3 {
		job, err = d.store(ctx, row)
		if err == nil {
			d.hub.Publish(TopicSubmit, string(job.ID))
			return job, true, nil
		}
		// A repeated submit must return its job even if the tenant's quota is now used up,
		// so the key is looked up before the refusal is returned.
		refused := err
		final := berth.IsSlug(refused, berth.SlugQuota) || berth.IsSlug(refused, berth.SlugInvalidSpec) ||
			berth.IsSlug(refused, SlugNoCheckpoint) || berth.IsSlug(refused, SlugNoJob)
		if berth.CodeOf(err) != berth.CodeNotFound && !final {
			return wire.Job{}, false, err
		}
		if s.IdemKey != "" {
			job, err = d.submitted(ctx, s.Tenant, s.IdemKey, row.hash)
			if berth.CodeOf(err) != berth.CodeNotFound {
				return job, false, err
			}
		}
		if final {
			return wire.Job{}, false, refused
		}
	}
	return wire.Job{}, false, berth.Errorf(berth.CodeUnavailable, "idempotency key %q is being released; try again",
		s.IdemKey)
}

// submitRow is a submission in the form of statement arguments.
type submitRow struct {
	args  namedArgs
	hash  []byte // SHA-256 of the spec, to compare submits with the same key
	needs needs  // other rows that the job depends on

	waits    []berth.JobID           // the jobs that this one waits for, ascending; see waitFor
	source   *wire.StartPoint        // the checkpoint that the job starts from; see choose
	elements map[int]wire.StartPoint // of an array: the elements that start from another one
}

// newSubmitRow returns the arguments of a submission. Each call assigns a new job id.
func newSubmitRow(s Submission) (submitRow, error) {
	rawSpec, err := json.Marshal(s.Spec)
	if err != nil {
		return submitRow{}, fmt.Errorf("marshal spec: %w", err)
	}
	// The hash covers the decoded spec, not the request's bytes: white space and the order
	// of keys do not make another job.
	sum := sha256.Sum256(rawSpec)
	request := s.Spec.Request()
	args := namedArgs{
		"id":           newJobID(time.Now(), s.incarnation),
		"tenant":       s.Tenant,
		"name":         s.Spec.Name,
		"class":        request.Class(),
		"request":      request,
		"spec":         rawSpec,
		"priority":     int(*s.Spec.Priority),
		"preemptible":  *s.Spec.Preemptible,
		"queue_ms":     s.Spec.QueueTimeout.Std().Milliseconds(),
		"run_limit_ms": s.Spec.TimeLimit.Std().Milliseconds(),
		"grace_ms":     s.Spec.StopGrace.Std().Milliseconds(),
		"lost_ms":      s.Spec.LostAfter.Std().Milliseconds(),
		"execution":    cmp.Or(s.Spec.Execution, spec.AtLeastOnce),
		"labels":       nonNil(s.Spec.Labels),
		"actor":        s.Actor,
		"retry_of":     s.RetryOf,
		"idem_key":     nil,
		"idem_hash":    sum[:],
		"kind":         berth.KindJob,
		"total":        nil,
		"parallel":     0,
		"max_failures": nil,
		"indexes":      s.Indexes,
		"parent":       nil,
		"step":         nil,
		"blocked":      false,
		"run_when":     spec.WhenSuccess,
		"final":        false,
		"branch":       false,
		"fail_fast":    false,
		"format":       spec.Format,
		"expanded":     0,
		"uncounted":    false,
		"notify":       spec.NotifiedOf(s.Spec.Notify),
		"data":         dataOf(s.Tenant, s.Spec),
		"has_source":   false, // see submitRow.starts

		"alternatives": nil, "alternatives_after": nil, "choice_classes": nil, "choices": nil,
		"grouped": len(s.Spec.Groups) > 0, "lead_first": nil, "lead_last": nil,
	}
	if first, last, ok := spec.Leading(s.Spec); ok {
		args["lead_first"], args["lead_last"] = first, last
	}
	addAlternatives(args, s.Spec)
	requestsImage(args, s.Spec)
	if a := s.Spec.Array; a != nil {
		args["kind"], args["total"], args["parallel"], args["max_failures"] = berth.KindArray, a.Count(),
			a.Parallel, a.MaxFailures
		args["queue_ms"] = 0         // applies to each element from its creation
		if _, ok := a.ListOf(); ok { // until it is known; see FillArray
			args["total"], args["indexes"] = 1, []int{}
		}
		if s.Indexes != nil {
			args["total"] = len(s.Indexes)
		}
	}
	if s.IdemKey != "" {
		args["idem_key"] = s.IdemKey
	}
	row := submitRow{args: args, hash: sum[:], needs: needsOf(s.Spec)}
	row.waitFor(s.Spec.Needs, s.Spec.When)
	return row, nil
}

// store inserts a job. A job without needs takes a single round trip.
func (d *Jobs) store(ctx context.Context, r submitRow) (job wire.Job, err error) {
	if r.needs.none() && len(r.waits) == 0 {
		return r.insert(ctx, d.pool)
	}
	err = d.tx(ctx, func(tx pgx.Tx) error {
		job, err = r.insertWithNeeds(ctx, tx)
		return err
	})
	return r.judged(ctx, d, job, mapError(err, "submit"))
}

// countsAsQueued is true if the waiting job w counts against max_queued. Parents do not
// count, nor do debug jobs, which no user queues, nor steps that wait for other steps or
// belong to a nested pipeline. A cached step without needs is also blocked at first, but
// only until its pipeline is reconciled, so it counts.
const countsAsQueued = `w.kind = 'job' AND NOT w.debug AND (NOT w.blocked
				OR NOT EXISTS (SELECT 1 FROM deps n WHERE n.job = w.id)
				AND NOT EXISTS (SELECT 1 FROM jobs o WHERE o.id = w.parent AND o.parent IS NOT NULL))`

// insert stores job, spec and class in one round trip. The error is not_found if the
// idempotency key is taken, and has slug quota if too many of the tenant's jobs wait; the
// key may be taken in that case as well.
//
// Submits of a tenant are only serialized if the tenant has a limit on waiting jobs: the
// first statement finds and locks no row of other tenants. Without such a limit the jobs that
// wait are not counted either: max_queued <= (SELECT …) alone would count them for a null too,
// and each submit would cost more the longer the tenant's queue is.
func (r submitRow) insert(ctx context.Context, q batcher) (wire.Job, error) {
	batch := &pgx.Batch{}
	r.queue(batch)
	results := q.SendBatch(ctx, batch)
	job, err := r.scanInsert(results)
	if closed := results.Close(); err == nil {
		err = mapError(closed, "submit")
	}
	return job, err
}

// queue adds the statements of insert to a batch; scanInsert reads their results.
func (r submitRow) queue(batch *pgx.Batch) {
	batch.Queue(`
		SELECT max_queued
		FROM tenants
		WHERE id = @tenant AND max_queued IS NOT NULL
		FOR NO KEY UPDATE`, r.args)
	batch.Queue(`
		WITH class AS (
			INSERT INTO classes (class, request)
			SELECT @class, @request::jsonb
			UNION ALL
			SELECT * FROM unnest(@choice_classes::text[], @choices::jsonb[])
			ON CONFLICT DO NOTHING
		), t AS (
			SELECT stalled_ms + coalesce(extract(epoch FROM now() - stalled_since) * 1000, 0)::bigint AS stalled_ms,
				max_queued
			FROM tenants
			WHERE id = @tenant
		), j AS (
			INSERT INTO jobs (id, tenant, kind, total, expanded, parallel, max_failures, indexes, parent, step,
				blocked, notify, data, name, class, priority, preemptible, queue_deadline,
				run_limit_ms, grace_ms, execution, lost_after_ms, labels, actor, submitted_by, retry_of, idem_key,
				idem_hash, stalled_ms, has_checkpoint, run_when, final, branch, fail_fast, format,
				alternatives, alternatives_after, grouped, lead_first, lead_last,
				image_digest, image_digest_by, image_digest_at)
			SELECT @id, @tenant, @kind, @total::int, @expanded, @parallel, @max_failures::int, @indexes::int[],
				@parent::uuid, @step, @blocked, @notify::text[], @data::bigint[], @name, @class,
					@priority, @preemptible,
				now() + nullif(@queue_ms::bigint, 0) * interval '1 millisecond',
				@run_limit_ms, @grace_ms, @execution, @lost_ms, @labels, @actor, @actor, @retry_of::uuid,
					@idem_key, @idem_hash::bytea,
				coalesce((SELECT stalled_ms FROM t), 0), @has_source,
				@run_when, @final, @branch, @fail_fast, @format,
				@alternatives::text[], @alternatives_after::bigint[], @grouped, @lead_first::smallint,
					@lead_last::smallint, @digest::text, @digest_by::text, @digest_at::timestamptz
			WHERE @uncounted OR NOT EXISTS (SELECT 1 FROM t WHERE max_queued IS NOT NULL AND max_queued <= (
				SELECT count(*)
				FROM jobs w
				WHERE w.tenant = @tenant AND w.state IN ('submitted', 'queued', 'retrying') AND `+countsAsQueued+`))
			ON CONFLICT (tenant, idem_key) WHERE idem_key IS NOT NULL DO NOTHING
			RETURNING *
		), spec AS (
			INSERT INTO job_specs (job, spec)
			SELECT id, @spec FROM j
		), requested AS (`+requestImage+`
		)
		SELECT `+jobDocument+` || jsonb_build_object('spec', @spec::jsonb)
		FROM j`, r.args)
}

// scanInsert reads the results of the statements that queue added. No inserted row means
// that the quota is used up, if there is one, or else that the key is taken.
func (r submitRow) scanInsert(results pgx.BatchResults) (wire.Job, error) {
	var most *int
	err := results.QueryRow().Scan(&most)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return wire.Job{}, mapError(err, "submit")
	}
	rows, err := results.Query()
	if err != nil {
		return wire.Job{}, mapError(err, "submit")
	}
	job, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[wire.Job])
	if errors.Is(err, pgx.ErrNoRows) && most != nil {
		return wire.Job{}, &berth.Error{
			Code: berth.CodeCapacity, Slug: berth.SlugQuota,
			Message: fmt.Sprintf("tenant %s already has its maximum of %s (max_queued)",
				r.args["tenant"], plural(*most, "queued job")),
		}
	}
	return job, mapError(err, "idempotency key")
}

// submitted returns the job that has the idempotency key, if its spec has the same hash.
func (d *Jobs) submitted(ctx context.Context, tenant berth.TenantID, key string, hash []byte) (wire.Job, error) {
	var id berth.JobID
	var stored []byte
	err := d.pool.QueryRow(ctx, `
		SELECT id, idem_hash
		FROM jobs
		WHERE tenant = @tenant AND idem_key = @key`,
		namedArgs{"tenant": tenant, "key": key}).Scan(&id, &stored)
	if err != nil {
		return wire.Job{}, mapError(err, "idempotency key")
	}
	if !bytes.Equal(stored, hash) {
		return wire.Job{}, &berth.Error{
			Code: berth.CodeConflict, Slug: berth.SlugIdempotencyMismatch,
			Message: fmt.Sprintf("idempotency key %q was used for job %s with a different body", key, id),
		}
	}
	return d.Get(ctx, tenant, id)
}

// nonNil returns m, or an empty map for nil: the column must not contain a JSON null.
func nonNil[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}
