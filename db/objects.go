package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// doom records the checkpoint folders of jobs, in the transaction that archives the jobs. The
// leader removes the folders afterwards, and a restarted leader continues. Logs stay.
func doom(ctx context.Context, tx pgx.Tx, ids []string) error {
	rows, err := tx.Query(ctx, `
		SELECT j.tenant, a.job::text, a.attempt, a.rank
		FROM allocations a
		JOIN jobs j ON j.id = a.job
		JOIN job_specs s ON s.job = j.id
		WHERE a.job = ANY(@ids::uuid[]) AND s.spec ? 'checkpoint'`, namedArgs{"ids": ids})
	if err != nil {
		return err
	}
	var prefixes []string
	var tenant berth.TenantID
	var job berth.JobID
	var attempt, rank int
	if _, err := pgx.ForEachRow(rows, []any{&tenant, &job, &attempt, &rank}, func() error {
		prefixes = append(prefixes, berth.CheckpointsPrefix(tenant, job, attempt, rank))
		return nil
	}); err != nil || len(prefixes) == 0 {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO doomed_objects (prefix) SELECT unnest(@prefixes::text[])
		ON CONFLICT DO NOTHING`, namedArgs{"prefixes": prefixes})
	return err
}

// Doomed returns folders of the object store without an owner, the oldest first. It returns none while
// deletions are held back; see Backups.Begin. A list read before a backup began is safe to delete: its
// folders had lost their rows by then, so the dump does not name them.
func (d *Objects) Doomed(ctx context.Context, limit int) ([]string, error) {
	rows, err := d.pool.Query(ctx, `SELECT prefix FROM doomed_objects
		WHERE since <= clock_timestamp() AND NOT `+deletionsHeld+`
		ORDER BY since, prefix LIMIT @limit`, namedArgs{"limit": limit})
	if err != nil {
		return nil, mapError(err, "doomed objects")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return list, mapError(err, "doomed objects")
}

// ForgetDoomed deletes the rows of removed folders. Folders that could not be removed are due
// again after wait.
func (d *Objects) ForgetDoomed(ctx context.Context, term Term, removed, stuck []string, wait time.Duration) error {
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		args := namedArgs{"removed": removed, "stuck": stuck, "wait": wait}
		if _, err := tx.Exec(ctx, `DELETE FROM doomed_objects WHERE prefix = ANY(@removed)`, args); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			UPDATE doomed_objects
			SET since = clock_timestamp() + @wait::interval
			WHERE prefix = ANY(@stuck)`, args)
		return err
	})
	return mapError(err, "doomed objects")
}

// Shard is one member's part of a checkpoint from which the job may resume.
type Shard struct {
	Job      berth.JobID
	Step     int64
	Attempt  int
	Manifest string // object key
}

// VerifiedShards returns shards of verified checkpoints of live jobs, in order, after the
// given one. The zero Shard starts at the beginning. Checkpoints of the last minute are left
// out.
func (d *Objects) VerifiedShards(ctx context.Context, after Shard, limit int) ([]Shard, error) {
	if after.Job == "" {
		after.Job = "00000000-0000-0000-0000-000000000000"
	}
	// From the few jobs that live, and not from all checkpoints to their jobs: OFFSET keeps
	// the planner from turning it round. Jobs come in order and each with its own shards, so
	// that a page is read and not all that follows it.
	rows, err := d.pool.Query(ctx, `
		SELECT v.job, v.step, v.attempt, v.manifest
		FROM (
			SELECT id
			FROM jobs
			WHERE state NOT IN ('succeeded', 'failed', 'canceled') AND id >= @job::uuid
			ORDER BY id
			OFFSET 0
		) live
		CROSS JOIN LATERAL (
			SELECT h.job, h.step, h.attempt, h.manifest
			FROM checkpoints c
			JOIN checkpoint_shards h ON h.job = c.job AND h.step = c.step AND h.attempt = c.attempt
			WHERE c.job = live.id AND c.state = 'verified' AND c.created_at < clock_timestamp() - interval '1 minute'
			  AND (h.job, h.step, h.attempt, h.manifest) > (@job::uuid, @step, @attempt, @manifest)
			ORDER BY h.step, h.attempt, h.manifest
			LIMIT @limit
		) v
		ORDER BY live.id, v.step, v.attempt, v.manifest
		LIMIT @limit`,
		namedArgs{"job": after.Job, "step": after.Step, "attempt": after.Attempt, "manifest": after.Manifest,
			"limit": limit})
	if err != nil {
		return nil, mapError(err, "checkpoints")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Shard])
	return list, mapError(err, "checkpoints")
}

// RejectMissing marks a verified checkpoint as bad, because the object store has lost a part
// of it. It reports whether the checkpoint was verified until now.
func (d *Objects) RejectMissing(ctx context.Context, term Term, s Shard) (bool, error) {
	var marked bool
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		marked = false
		args := namedArgs{"job": s.Job, "step": s.Step, "attempt": s.Attempt,
			"detail": "the object store has lost " + s.Manifest}
		if _, err := tx.Exec(ctx, `SELECT 1 FROM jobs WHERE id = @job FOR NO KEY UPDATE`, args); err != nil {
			return fmt.Errorf("lock job: %w", err)
		}
		tag, err := tx.Exec(ctx, `
			UPDATE checkpoints
			SET state = 'bad', detail = @detail
			WHERE job = @job AND step = @step AND attempt = @attempt AND state = 'verified'`, args)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		marked = true
		return addEvent(ctx, tx, s.Job, wire.Event{
			Kind: wire.EventCheckpointRejected, Attempt: s.Attempt, Actor: "leader",
			Detail: fmt.Sprintf("step %d of attempt %d: the object store has lost a part of it", s.Step, s.Attempt),
			Facts:  &wire.EventFacts{Step: &s.Step},
		})
	})
	if marked && err == nil {
		d.hub.Publish(TopicJob, string(s.Job))
	}
	return marked && err == nil, mapError(err, "checkpoint of job "+string(s.Job))
}

// unregisteredOutputs selects the rank and the name of each output that an attempt t has
// declared and not registered. Its object may be stored: the agent, or its machine, was lost
// between the upload and the registration.
const unregisteredOutputs = `
	SELECT a.rank, o ->> 'name' AS name
	FROM job_specs s
	CROSS JOIN jsonb_array_elements(s.spec -> 'outputs') o
	JOIN allocations a ON a.job = s.job AND a.attempt = t.attempt
	WHERE s.job = t.job AND NOT EXISTS (
		SELECT 1
		FROM outputs x
		WHERE x.job = t.job AND x.attempt = t.attempt AND x.rank = a.rank AND x.name = o ->> 'name')`

// doomOutputs marks the objects of unregistered outputs for removal: of one attempt that was not
// swept, or of all attempts of the jobs (attempt 0), swept or not: earlier versions swept without
// a look at outputs. No member may be able to register an output of such an attempt.
func doomOutputs(ctx context.Context, tx pgx.Tx, jobs []string, attempt int) error {
	rows, err := tx.Query(ctx, `
		SELECT j.tenant, t.job::text, t.attempt, u.rank, u.name
		FROM attempts t
		JOIN jobs j ON j.id = t.job
		CROSS JOIN LATERAL (`+unregisteredOutputs+`) u
		WHERE t.job = ANY(@jobs::uuid[]) AND (@attempt = 0 OR t.attempt = @attempt AND t.swept_at IS NULL)`,
		namedArgs{"jobs": jobs, "attempt": attempt})
	if err != nil {
		return err
	}
	var keys []string
	var tenant berth.TenantID
	var job berth.JobID
	var of, rank int
	var name string
	if _, err := pgx.ForEachRow(rows, []any{&tenant, &job, &of, &rank, &name}, func() error {
		keys = append(keys, berth.OutputKey(tenant, job, of, rank, name))
		return nil
	}); err != nil || len(keys) == 0 {
		return err
	}
	// A row of another job may name the object: a cached step takes over outputs.
	_, err = tx.Exec(ctx, `
		INSERT INTO doomed_objects (prefix)
		SELECT k
		FROM unnest(@keys::text[]) k
		WHERE NOT EXISTS (SELECT 1 FROM outputs o WHERE o.object = k)
		ORDER BY k -- the leader and the archive may mark the same objects
		ON CONFLICT DO NOTHING`, namedArgs{"keys": keys})
	return err
}

// ClosedAttempt is an attempt that ended long ago. Its checkpoint folders may hold objects
// that no row refers to.
type ClosedAttempt struct {
	Tenant  berth.TenantID
	Job     berth.JobID
	Attempt int
	Ranks   []int
	Steps   []int64 // verified steps, whose objects stay
	Saves   bool    // the job has checkpoints
}

// ClosedAttempts returns attempts that ended longer than age ago and have not been swept. It
// leaves out an attempt while one of its members could still register an object, and all attempts
// while deletions are held back.
func (d *Objects) ClosedAttempts(ctx context.Context, age time.Duration, limit int) ([]ClosedAttempt, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT j.tenant, t.job, t.attempt,
		       ARRAY(SELECT a.rank FROM allocations a WHERE a.job = t.job AND a.attempt = t.attempt ORDER BY 1),
		       ARRAY(SELECT c.step FROM checkpoints c WHERE c.job = t.job AND c.attempt = t.attempt
		         AND c.state = 'verified' ORDER BY 1),
		       s.spec ? 'checkpoint'
		FROM attempts t
		JOIN jobs j ON j.id = t.job
		JOIN job_specs s ON s.job = t.job
		WHERE t.swept_at IS NULL AND t.ended_at < clock_timestamp() - @age::interval AND NOT `+deletionsHeld+`
		  AND (s.spec ? 'checkpoint' OR s.spec ? 'outputs')
		  AND (t.attempt < j.attempt OR j.state IN ('succeeded', 'failed', 'canceled') OR NOT EXISTS (
			SELECT 1
			FROM allocations a
			WHERE a.job = t.job AND a.attempt = t.attempt
			  AND (a.state = 'active' OR a.state = 'exited' AND a.sealed_at IS NULL)))
		ORDER BY t.ended_at, t.job, t.attempt
		LIMIT @limit`, namedArgs{"age": age, "limit": limit})
	if err != nil {
		return nil, mapError(err, "closed attempts")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ClosedAttempt])
	return list, mapError(err, "closed attempts")
}

// MarkSwept records that the checkpoint folders of an attempt hold no unreferenced objects,
// and marks the objects of its unregistered outputs for removal.
func (d *Objects) MarkSwept(ctx context.Context, term Term, job berth.JobID, attempt int) error {
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		if err := doomOutputs(ctx, tx, []string{string(job)}, attempt); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE attempts SET swept_at = clock_timestamp()
			WHERE job = @job AND attempt = @attempt`,
			namedArgs{"job": job, "attempt": attempt})
		return err
	})
	return mapError(err, "attempt of job "+string(job))
}

// OutputBefore returns the tenant of a job, and whether this output of an attempt's member is registered.
func (d *Objects) OutputBefore(
	ctx context.Context, job berth.JobID, attempt, rank int, name string,
) (tenant berth.TenantID, registered bool, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT tenant, EXISTS (
			SELECT 1
			FROM outputs
			WHERE job = @job AND attempt = @attempt AND rank = @rank AND name = @name)
		FROM jobs
		WHERE id = @job`, namedArgs{"job": job, "attempt": attempt, "rank": rank, "name": name}).
		Scan(&tenant, &registered)
	return tenant, registered, mapError(err, "job "+string(job))
}

// ShardBefore is the state of a shard of a checkpoint in the rows before its report.
type ShardBefore struct {
	Tenant berth.TenantID // of the job
	SHA256 string         // of the registered manifest; "": the shard is not registered
	Pruned bool           // the step; its objects may be deleted already
}

// Known reports whether the shard was registered before, or its step is pruned.
func (b ShardBefore) Known() bool { return b.SHA256 != "" || b.Pruned }

// ShardBefore reads the state of a shard of a checkpoint before its report.
func (d *Objects) ShardBefore(
	ctx context.Context, job berth.JobID, step int64, attempt, rank int,
) (b ShardBefore, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT tenant, coalesce((
			SELECT sha256
			FROM checkpoint_shards
			WHERE job = @job AND step = @step AND attempt = @attempt AND rank = @rank), ''), EXISTS (
			SELECT 1
			FROM checkpoints
			WHERE job = @job AND step = @step AND attempt = @attempt AND state = 'pruned')
		FROM jobs
		WHERE id = @job`,
		namedArgs{"job": job, "step": step, "attempt": attempt, "rank": rank}).
		Scan(&b.Tenant, &b.SHA256, &b.Pruned)
	return b, mapError(err, "checkpoint of job "+string(job))
}

// Declares reports whether a job's specification has checkpoints or, if output is not "", an output of this name:
// machines get signed addresses to store such objects alone.
func (d *Objects) Declares(ctx context.Context, job berth.JobID, output string) (declared bool, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT CASE WHEN @output = '' THEN s.spec ? 'checkpoint' ELSE EXISTS (
			SELECT 1
			FROM jsonb_array_elements(coalesce(s.spec -> 'outputs', '[]')) o
			WHERE o ->> 'name' = @output) END
		FROM job_specs s
		WHERE s.job = @job`, namedArgs{"job": job, "output": output}).Scan(&declared)
	return declared, mapError(err, "job "+string(job))
}

// AttemptOf names an attempt of a job.
type AttemptOf struct {
	Job     berth.JobID
	Attempt int
}

// EndedAttempts returns the attempts of a list that have a row here and whose members can no longer store objects, by
// the rule of Authorize. All attempts of an archived job have ended. An attempt without a row may be one of another
// cluster with the same bucket, or one from after the backup that this database was restored from.
func (d *Objects) EndedAttempts(ctx context.Context, of []AttemptOf) (map[AttemptOf]bool, error) {
	jobs, attempts := make([]string, len(of)), make([]int, len(of))
	for i, a := range of {
		jobs[i], attempts[i] = string(a.Job), a.Attempt
	}
	rows, err := d.pool.Query(ctx, `
		SELECT DISTINCT u.job::text, u.attempt
		FROM unnest(@jobs::uuid[], @attempts::int[]) AS u (job, attempt)
		WHERE EXISTS (
			SELECT 1
			FROM archived_jobs d
			WHERE d.id = u.job)
		OR EXISTS (
			SELECT 1
			FROM attempts t
			WHERE t.job = u.job AND t.attempt = u.attempt)
		AND NOT EXISTS (
			SELECT 1
			FROM allocations a
			JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
			WHERE a.job = u.job AND a.attempt = u.attempt
			AND (a.state = 'active' OR a.state = 'exited' AND a.sealed_at IS NULL))`,
		namedArgs{"jobs": jobs, "attempts": attempts})
	if err != nil {
		return nil, mapError(err, "ended attempts")
	}
	ended := map[AttemptOf]bool{}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[AttemptOf])
	for _, a := range list {
		ended[a] = true
	}
	return ended, mapError(err, "ended attempts")
}

// VerifiedManifest is the manifest of one member's part of a verified step.
type VerifiedManifest struct {
	Rank   int
	Step   int64
	SHA256 string // in hexadecimal digits
}

// VerifiedManifests returns the manifests of the verified steps of an attempt, in order.
func (d *Objects) VerifiedManifests(ctx context.Context, job berth.JobID, attempt int) ([]VerifiedManifest, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT h.rank, h.step, h.sha256
		FROM checkpoints c
		JOIN checkpoint_shards h ON h.job = c.job AND h.step = c.step AND h.attempt = c.attempt
		WHERE c.job = @job AND c.attempt = @attempt AND c.state = 'verified'
		ORDER BY h.step, h.rank`, namedArgs{"job": job, "attempt": attempt})
	if err != nil {
		return nil, mapError(err, "manifests of job "+string(job))
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[VerifiedManifest])
	return list, mapError(err, "manifests of job "+string(job))
}

// DeletionsHeld reports whether deletions are held back at present. It is for objects that no row names, which a caller
// deletes if the answer is false: a backup that begins meanwhile reads no row of them.
func (d *Objects) DeletionsHeld(ctx context.Context) (held bool, err error) {
	err = d.tx(ctx, func(tx pgx.Tx) (err error) {
		held, err = holdsDeletions(ctx, tx)
		return err
	})
	return held, mapError(err, "deletions")
}
