package db

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
)

// SavedShard is one member's part of a verified checkpoint, in the object store.
type SavedShard struct {
	Tenant   berth.TenantID
	Job      berth.JobID
	Attempt  int
	Step     int64
	Member   int
	Members  int // parts of the checkpoint
	Manifest string
	SHA256   string // of the manifest
}

// Folder returns the key of the folder with the shard's objects.
func (s SavedShard) Folder() string {
	return berth.CheckpointKey(s.Tenant, s.Job, s.Attempt, s.Member, s.Step)
}

// Saved returns one member's part of a verified checkpoint of a job. Of two attempts with the step, it takes the one
// that restores take first. Tenant "" means any.
func (d *Objects) Saved(ctx context.Context, tenant berth.TenantID, job berth.JobID, step int64,
	member int) (SavedShard, error) {
	s := SavedShard{Job: job, Step: step, Member: member}
	err := d.pool.QueryRow(ctx, `
		SELECT j.tenant, c.attempt, c.ranks, h.manifest, h.sha256
		FROM jobs j
		JOIN checkpoints c ON c.job = j.id
		JOIN checkpoint_shards h ON h.job = c.job AND h.step = c.step AND h.attempt = c.attempt
		WHERE j.id = @job AND (@tenant = '' OR j.tenant = @tenant)
		  AND c.step = @step AND c.state = 'verified' AND h.rank = @rank
		ORDER BY c.passed_over, c.attempt DESC
		LIMIT 1`, namedArgs{"job": job, "tenant": string(tenant), "step": step, "rank": member}).
		Scan(&s.Tenant, &s.Attempt, &s.Members, &s.Manifest, &s.SHA256)
	if isNoRows(err) {
		return s, noStep(job, step, member)
	}
	return s, mapError(err, "checkpoint of job "+string(job))
}

// noStep is the error for a checkpoint that a job never had or no longer has.
func noStep(job berth.JobID, step int64, member int) error {
	part := ""
	if member > 0 {
		part = fmt.Sprintf(" with a part of member %d", member)
	}
	return berth.Errorf(berth.CodeNotFound, "job %s has no verified checkpoint of step %d%s; berth checkpoints list "+
		"shows its checkpoints", job, step, part)
}

// Pin keeps a verified checkpoint from being pruned, and its job from being archived, until
// Unpin. Of two attempts with the step, Pin keeps the one that restores take first. Both may be repeated. Tenant ""
// means any.
func (d *Objects) Pin(ctx context.Context, tenant berth.TenantID, job berth.JobID, step int64) error {
	return d.onStep(ctx, tenant, job, step, func(tx pgx.Tx, _ stepUse) error {
		tag, err := tx.Exec(ctx, `
			UPDATE checkpoints
			SET pinned_at = coalesce(pinned_at, now())
			WHERE job = @job AND step = @step AND state = 'verified' AND attempt = (
				SELECT v.attempt
				FROM checkpoints v
				WHERE v.job = @job AND v.step = @step AND v.state = 'verified'
				ORDER BY v.passed_over, v.attempt DESC
				LIMIT 1)`,
			namedArgs{"job": job, "step": step})
		if err == nil && tag.RowsAffected() == 0 {
			return noStep(job, step, 0)
		}
		return err
	})
}

// Unpin ends the effect of Pin. A live job prunes the checkpoint, if it is beyond keep, at its
// next one.
func (d *Objects) Unpin(ctx context.Context, tenant berth.TenantID, job berth.JobID, step int64) error {
	return d.onStep(ctx, tenant, job, step, func(tx pgx.Tx, _ stepUse) error {
		_, err := tx.Exec(ctx, `
			UPDATE checkpoints
			SET pinned_at = NULL
			WHERE job = @job AND step = @step`, namedArgs{"job": job, "step": step})
		return err
	})
}

// Remove gives up a checkpoint of an ended job, verified or bad, of every attempt. The leader
// deletes the objects afterwards. A live job is a conflict, since its next attempt may need
// the step; and so is a step that is pinned or from which a live job started. Remove of a
// pruned step has no effect.
func (d *Objects) Remove(ctx context.Context, tenant berth.TenantID, job berth.JobID, step int64) error {
	return d.onStep(ctx, tenant, job, step, func(tx pgx.Tx, u stepUse) error {
		if err := u.mayRemove(job, step); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			WITH gone AS (
				UPDATE checkpoints
				SET state = 'pruned'
				WHERE job = @job AND step = @step AND state <> 'pruned'
				RETURNING attempt
			)
			SELECT h.attempt, h.rank
			FROM gone g
			JOIN checkpoint_shards h ON h.job = @job AND h.step = @step AND h.attempt = g.attempt`,
			namedArgs{"job": job, "step": step})
		if err != nil {
			return err
		}
		var folders []string
		s := PrunedShard{Tenant: u.tenant, Job: job, Step: step}
		if _, err := pgx.ForEachRow(rows, []any{&s.Attempt, &s.Rank}, func() error {
			folders = append(folders, s.Key())
			return nil
		}); err != nil || len(folders) == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO doomed_objects (prefix)
			SELECT k
			FROM unnest(@folders::text[]) k
			ORDER BY k
			ON CONFLICT DO NOTHING`, namedArgs{"folders": folders})
		return err
	})
}

// stepUse lists the reasons to keep a step of a locked job.
type stepUse struct {
	tenant berth.TenantID
	state  berth.State
	pinned bool
	users  []string // live jobs that started from the step
}

// mayRemove returns a conflict with the reason to keep the step, or nil.
func (u stepUse) mayRemove(job berth.JobID, step int64) error {
	switch {
	case !u.state.Terminal():
		return berth.Errorf(berth.CodeConflict, "job %s is %s and may resume from step %d; a live job prunes its "+
			"checkpoints by checkpoint.keep", job, u.state, step)
	case len(u.users) > 0:
		return berth.Errorf(berth.CodeConflict, "step %d of job %s is used by jobs that started from it and have not "+
			"ended: %s", step, job, strings.Join(u.users, ", "))
	case u.pinned:
		return berth.Errorf(berth.CodeConflict, "step %d of job %s is pinned; unpin it first: berth checkpoints unpin "+
			"%[2]s %[1]d", step, job)
	}
	return nil
}

// onStep locks a job, reads the reasons for which one of its steps is kept, and runs f in the
// same transaction. A job of the tenant without any checkpoint of the step is not_found, and so
// is an archived one.
func (d *Objects) onStep(ctx context.Context, tenant berth.TenantID, job berth.JobID, step int64,
	f func(pgx.Tx, stepUse) error) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		var u stepUse
		args := namedArgs{"job": job, "tenant": string(tenant), "step": step}
		err := tx.QueryRow(ctx, `
			SELECT tenant, state
			FROM jobs
			WHERE id = @job AND (@tenant = '' OR tenant = @tenant)
			FOR NO KEY UPDATE`, args).Scan(&u.tenant, &u.state)
		if isNoRows(err) {
			return noStep(job, step, 0)
		}
		if err != nil {
			return err
		}
		var some bool
		err = tx.QueryRow(ctx, `
			SELECT count(*) > 0, coalesce(bool_or(c.pinned_at IS NOT NULL AND c.state = 'verified'), false), ARRAY(
				SELECT DISTINCT r.id::text
				FROM job_sources o
				JOIN jobs r ON r.id = o.job
				WHERE o.source = @job AND o.step = @step AND r.state NOT IN ('succeeded', 'failed', 'canceled')
				ORDER BY 1
				LIMIT 5)
			FROM checkpoints c
			WHERE c.job = @job AND c.step = @step`, args).Scan(&some, &u.pinned, &u.users)
		if err != nil {
			return err
		}
		if !some {
			return noStep(job, step, 0)
		}
		return f(tx, u)
	})
	if err != nil {
		return mapError(err, "checkpoint of job "+string(job))
	}
	d.hub.Publish(TopicJob, string(job))
	return nil
}
