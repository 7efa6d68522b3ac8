package db

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// letGo is a step whose needs have succeeded, under lock.
type letGo struct {
	id     string
	waitMS int64 // its queue_timeout; 0: none
	cached bool  // its spec has cache: true
	takes  bool  // it may use outputs of other jobs as inputs
}

// reuse ends cached steps as succeeded if an earlier job of the tenant has computed the
// same result, and returns the ids of the ended steps. For each other cached step it
// records the cache key, so that later jobs find the step's result once it has
// succeeded. The caller has bound the inputs and locked the rows.
//
// A result can be reused if it has the step's key, all its outputs still exist, and the
// image is the same. The image is the same if the spec pins its digest, if the control plane has
// resolved the step's image to the digest of that run, or, without a digest of the step, if the image's name
// had the digest of that run when a cached step of the tenant last reported one.
func (p *lockedParent) reuse(ctx context.Context, tx pgx.Tx, steps []letGo) (map[string]bool, error) {
	args, err := p.keysOf(ctx, tx, steps)
	if err != nil || args == nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `
		WITH hit AS MATERIALIZED (
			SELECT x.job, r.job AS source, r.attempt
			FROM unnest(@ids::uuid[], @keys::bytea[], @images::text[]) AS x (job, key, image)
			JOIN LATERAL (
				SELECT r.job, r.attempt
				FROM step_results r
				WHERE r.tenant = @tenant AND r.key = x.key AND r.attempt IS NOT NULL
				  AND (x.image = '' OR r.digest = coalesce((
					SELECT nullif(j.image_digest, '')
					FROM jobs j
					WHERE j.id = x.job), (
					SELECT n.digest
					FROM step_results n
					WHERE n.tenant = @tenant AND n.image = x.image AND n.image <> '' AND n.digest <> ''
					ORDER BY n.found_at DESC
					LIMIT 1)))
				  AND NOT EXISTS (
					SELECT 1
					FROM job_specs s, jsonb_array_elements(s.spec -> 'outputs') d
					WHERE s.job = x.job AND NOT EXISTS (
						SELECT 1 FROM outputs o WHERE o.job = r.job AND o.attempt = r.attempt
							AND o.name = d ->> 'name'))
				ORDER BY r.found_at DESC
				LIMIT 1) r ON true
			WHERE NOT EXISTS (SELECT 1 FROM job_specs w WHERE w.job = @parent AND w.spec ? 'no_cache')
		), taken AS (
			INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256,
				object, created_at)
			SELECT h.job, 0, o.rank, o.name, o.address, o.files, o.bytes, o.stored_bytes, o.sha256,
				o.object, o.created_at
			FROM hit h
			JOIN outputs o ON o.job = h.source AND o.attempt = h.attempt
		), missed AS (
			INSERT INTO step_results (job, tenant, key, image)
			SELECT x.job, @tenant, x.key, x.image
			FROM unnest(@ids::uuid[], @keys::bytea[], @images::text[]) AS x (job, key, image)
			WHERE x.job NOT IN (SELECT job FROM hit)
			ON CONFLICT DO NOTHING
		)
		SELECT job::text, source::text FROM hit`, args)
	if err != nil {
		return nil, err
	}
	sources := map[string]string{}
	var id, source string
	if _, err := pgx.ForEachRow(rows, []any{&id, &source}, func() error {
		sources[id] = source
		return nil
	}); err != nil {
		return nil, err
	}
	return skip(ctx, tx, steps, sources)
}

// skip ends each step that has a source as succeeded, and returns the ids of the ended
// steps. sources maps a step's id to the job whose outputs the step was given.
func skip(ctx context.Context, tx pgx.Tx, steps []letGo, sources map[string]string) (map[string]bool, error) {
	skipped := map[string]bool{}
	for _, s := range steps {
		source, ok := sources[s.id]
		if !ok {
			continue
		}
		if err := addEvent(ctx, tx, berth.JobID(s.id), wire.Event{
			Kind: wire.EventCached, Actor: "workflow",
			Detail: "not run: same result as job " + source + ", with its outputs",
		}); err != nil {
			return nil, err
		}
		if _, err := tx.Exec(ctx, `
			UPDATE jobs
			SET state = 'succeeded', blocked = false, cached_from = @source, version = version + 1,
				actor = 'workflow', reason = NULL
			WHERE id = @id`, namedArgs{"id": s.id, "source": source}); err != nil {
			return nil, err
		}
		skipped[s.id] = true
	}
	return skipped, nil
}

// keysOf returns the query arguments of reuse: ids, cache keys and images of the cached
// steps whose key can be computed. The result is nil if no step has a key.
func (p *lockedParent) keysOf(ctx context.Context, tx pgx.Tx, steps []letGo) (namedArgs, error) {
	var cached []string
	for _, s := range steps {
		if s.cached {
			cached = append(cached, s.id)
		}
	}
	if len(cached) == 0 {
		return nil, nil
	}
	// A secret that was deleted and created again starts at version 1, so the cache key
	// includes the time of creation as well. Sealing the same value with another key
	// changes neither of the two, and cached results stay valid.
	rows, err := tx.Query(ctx, `
		SELECT s.job::text, s.spec, coalesce((
				SELECT jsonb_object_agg(i.input, o.address)
				FROM job_inputs i
				JOIN outputs o ON o.job = i.source AND o.attempt = i.attempt AND o.rank = i.rank AND o.name = i.name
				WHERE i.job = s.job), '{}'), coalesce((
				SELECT jsonb_object_agg(x.name, x.version || ' since ' || extract(epoch FROM x.created_at))
				FROM secrets x
				WHERE x.tenant = @tenant AND s.spec -> 'secrets' ? x.name), '{}')
		FROM job_specs s
		WHERE s.job = ANY(@ids::uuid[])
		ORDER BY s.job`, namedArgs{"tenant": p.Tenant, "ids": cached})
	if err != nil {
		return nil, err
	}
	var ids, images []string
	var keys [][]byte
	var id string
	var raw []byte
	var at spec.Standing
	if _, err := pgx.ForEachRow(rows, []any{&id, &raw, &at.Inputs, &at.Secrets}, func() error {
		var jobSpec spec.Job
		if err := json.Unmarshal(raw, &jobSpec); err != nil {
			return fmt.Errorf("read spec of job %s: %w", id, err)
		}
		key, ok := jobSpec.CacheKey(at)
		at = spec.Standing{}
		if !ok {
			return nil // the step will fail on the missing input or secret and report it
		}
		image := jobSpec.Image
		if spec.PinnedImage(image) {
			image = ""
		}
		ids, keys, images = append(ids, id), append(keys, key), append(images, image)
		return nil
	}); err != nil || len(ids) == 0 {
		return nil, err
	}
	return namedArgs{"tenant": p.Tenant, "parent": p.ID, "ids": ids, "keys": keys, "images": images}, nil
}

// storeResult records the image digest of a cached step's attempt and, if the attempt
// succeeded, makes its result reusable. It reads the job's row, so it must run after
// the statement that changes the job.
const storeResult = `
	UPDATE step_results r
	SET digest = j.image_digest, attempt = CASE WHEN j.state = 'succeeded' THEN j.attempt END,
		found_at = coalesce(j.started_at, clock_timestamp())
	FROM jobs j
	WHERE r.job = @job AND j.id = @job`
