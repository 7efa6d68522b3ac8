package db

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// PrunedShard is a folder of checkpoint objects that can be deleted.
type PrunedShard struct {
	Tenant  berth.TenantID
	Job     berth.JobID
	Attempt int
	Rank    int
	Step    int64
}

// Key returns the folder's key in the object store.
func (p PrunedShard) Key() string {
	return berth.CheckpointKey(p.Tenant, p.Job, p.Attempt, p.Rank, p.Step)
}

// withoutHeld returns the shards whose objects may be deleted after the commit: all, or none while
// deletions are held back. The folders of the others are marked for removal.
func withoutHeld(ctx context.Context, tx pgx.Tx, shards []PrunedShard) ([]PrunedShard, error) {
	if len(shards) == 0 {
		return nil, nil
	}
	held, err := holdsDeletions(ctx, tx)
	if err != nil || !held {
		return shards, err
	}
	folders := make([]string, len(shards))
	for i, s := range shards {
		folders[i] = s.Key()
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO doomed_objects (prefix)
		SELECT k
		FROM unnest(@folders::text[]) k
		ORDER BY k
		ON CONFLICT DO NOTHING`, namedArgs{"folders": folders})
	return nil, err
}

// RegisterCheckpoint records one member's shard of a checkpoint step, for the current
// attempt only. The step is verified once the shards of all members are recorded. A report
// with Bad records instead that a restore found the shard damaged.
//
// RegisterCheckpoint returns the shards beyond the job's keep, which are pruned. The caller
// deletes their objects after the commit, as best effort. While a backup runs, it returns none and marks
// their folders for removal after the backup; see Objects.Doomed. A shard over a storage quota of
// the tenant is refused with slug storage_quota together with its whole step, and the
// returned shards belong to the refused step.
func (d *Objects) RegisterCheckpoint(ctx context.Context, machine berth.MachineID,
	p wire.CheckpointReport) ([]PrunedShard, error) {
	if p.Step < 0 || p.Bad == "" && (p.Manifest == "" || p.SHA256 == "") {
		return nil, berth.Errorf(berth.CodeInvalid,
			"a checkpoint needs a step that is not negative, a manifest and its sha256")
	}
	var pruned []PrunedShard
	err := d.tx(ctx, func(tx pgx.Tx) error {
		pruned = nil
		c := checkpointing{tx: tx, machine: machine, report: p}
		if err := c.lock(ctx); err != nil {
			return err
		}
		if p.Bad != "" {
			return c.reject(ctx)
		}
		if err := c.owns(); err != nil {
			return err
		}
		if err := lockStorage(ctx, tx, c.limits, StoredCheckpoints); err != nil {
			return err
		}
		verified, err := c.register(ctx)
		switch {
		case err != nil:
			return err
		case !c.added:
			if pruned, err = c.late(ctx); err != nil {
				return err
			}
			pruned, err = withoutHeld(ctx, tx, pruned)
			return err
		case verified:
			if pruned, err = c.prune(ctx); err != nil {
				return err
			}
			if pruned, err = withoutHeld(ctx, tx, pruned); err != nil {
				return err
			}
		}
		return checkStorage(ctx, tx, c.limits, StoredCheckpoints, 0, p.Bytes)
	})
	what := fmt.Sprintf("checkpoint %d of job %s", p.Step, p.Job)
	if berth.IsSlug(err, berth.SlugStorageQuota) {
		pruned, failed := d.refuseStep(ctx, machine, p, err)
		return pruned, mapError(cmp.Or(failed, err), what)
	}
	if err != nil {
		return nil, mapError(err, what)
	}
	d.hub.Publish(TopicJob, string(p.Job))
	return pruned, nil
}

// checkpointing is one call of RegisterCheckpoint in its transaction. lock fills the
// fields from tenant to limits, and register fills added.
type checkpointing struct {
	tx      pgx.Tx
	machine berth.MachineID
	report  wire.CheckpointReport

	tenant berth.TenantID
	ranks  int
	keep   int
	best   *spec.KeepBest // nil: the newest alone are kept
	limits []StorageLimit // of the tenant
	added  bool           // false for a repeated report and for a pruned step
}

// lock locks the job's row, reads the job's settings, and checks the reporter: the session
// and the allocation must be current. An ended container may report until the allocation
// is sealed.
func (c *checkpointing) lock(ctx context.Context) error {
	p := c.report
	if p.OfJob != "" { // both rows in the order of ids; the next statement locks one of them again
		if err := lockPlainJobs(ctx, c.tx, []berth.JobID{p.OfJob, p.Job}); err != nil {
			return err
		}
	}
	var attempt int
	var state berth.State
	var limits []byte
	err := c.tx.QueryRow(ctx, `
		SELECT j.tenant, j.state, j.attempt, coalesce((s.spec ->> 'members')::int, 1),
			coalesce((s.spec -> 'checkpoint' ->> 'keep')::int, 2), storage_limits(j.tenant),
			s.spec -> 'checkpoint' -> 'keep_best'
		FROM jobs j
		JOIN job_specs s ON s.job = j.id
		WHERE j.id = @job
		FOR NO KEY UPDATE OF j`, namedArgs{"job": p.Job}).
		Scan(&c.tenant, &state, &attempt, &c.ranks, &c.keep, &limits, &c.best)
	if err != nil {
		return err
	}
	if c.limits, err = readLimits(limits); err != nil {
		return err
	}
	var boot string
	var epoch int64
	var ours bool
	err = c.tx.QueryRow(ctx, `
		SELECT m.agent_boot, m.epoch, EXISTS (
			SELECT 1 FROM allocations a
			WHERE a.id = @alloc AND a.machine_id = m.id AND a.job = @job AND a.attempt = @attempt AND a.rank = @rank
			  AND (a.state = 'active' OR a.state = 'exited' AND a.sealed_at IS NULL))
		FROM machines m
		WHERE m.id = @machine`,
		namedArgs{"machine": c.machine, "alloc": int64(p.Alloc), "job": p.Job, "attempt": p.Attempt,
			"rank": p.Rank}).Scan(&boot, &epoch, &ours)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return berth.Errorf(berth.CodeNotFound, "no such machine %s", c.machine)
	case err != nil:
		return err
	case boot != p.AgentBoot || epoch != p.Epoch:
		return berth.ErrStaleEpoch("machine %s: register again", c.machine)
	case !ours || attempt != p.Attempt || state.Terminal():
		return errStaleAttempt(p.Alloc)
	}
	return nil
}

// owns checks that the reported manifest is the reporter's: its key follows from the rows, and the key in the report
// is never trusted. A restore and the deletion of a shard use the recorded key.
func (c *checkpointing) owns() error {
	p := c.report
	key := berth.CheckpointKey(c.tenant, p.Job, p.Attempt, p.Rank, p.Step) + "/" + berth.ManifestName
	if p.Manifest != key {
		return berth.Errorf(berth.CodeInvalid,
			"manifest %.200q of step %d: allowed is the key of this member's part, %s", p.Manifest, p.Step, key)
	}
	return nil
}

// sumShards adds up the shards of a partial step, which is verified once all are stored.
const sumShards = `
	UPDATE checkpoints c
	SET state = CASE WHEN s.n = c.ranks THEN 'verified' ELSE c.state END, bytes = s.bytes,
	    metric_value = s.metric, write_ms = s.write_ms, store_ms = s.store_ms, chunked_bytes = s.chunked,
	    stored_bytes = s.stored
	FROM (
		SELECT count(*) AS n, sum(bytes) AS bytes, max(write_ms) AS write_ms, max(store_ms) AS store_ms,
			sum(chunked_bytes) AS chunked,
			CASE WHEN count(stored_bytes) > 0 THEN sum(coalesce(stored_bytes, bytes)) END AS stored,
			(array_agg(metric_value ORDER BY rank) FILTER (WHERE metric_value IS NOT NULL))[1] AS metric
		FROM checkpoint_shards
		WHERE job = @job AND step = @step AND attempt = @attempt
	) s
	WHERE c.job = @job AND c.step = @step AND c.attempt = @attempt AND c.state = 'partial'
	RETURNING c.state = 'verified', c.bytes`

// register stores the shard and returns true if the shard was the last one of its step.
func (c *checkpointing) register(ctx context.Context) (bool, error) {
	p := c.report
	args := namedArgs{
		"job": p.Job, "step": p.Step, "attempt": p.Attempt, "rank": p.Rank, "ranks": c.ranks,
		"manifest": p.Manifest, "sha256": p.SHA256, "bytes": p.Bytes, "metric": p.MetricValue,
		"write": millis(p.WriteTime), "store": millis(p.StoreTime),
	}
	var verified bool
	var bytes int64
	if _, err := c.tx.Exec(ctx, `
		INSERT INTO checkpoints (job, step, attempt, ranks, state)
		VALUES (@job, @step, @attempt, @ranks, 'partial')
		ON CONFLICT DO NOTHING`, args); err != nil {
		return false, err
	}
	tag, err := c.tx.Exec(ctx, `
		INSERT INTO checkpoint_shards (job, step, attempt, rank, manifest, sha256, bytes, metric_value, write_ms,
			store_ms)
		SELECT @job, @step, @attempt, @rank, @manifest, @sha256, @bytes, @metric, @write, @store
		WHERE EXISTS (
			SELECT 1 FROM checkpoints
			WHERE job = @job AND step = @step AND attempt = @attempt AND state <> 'pruned')
		ON CONFLICT DO NOTHING`, args)
	if err != nil {
		return false, err
	}
	if c.added = tag.RowsAffected() > 0; c.added {
		if err := c.refer(ctx); err != nil {
			return false, err
		}
	}
	err = c.tx.QueryRow(ctx, sumShards, args).Scan(&verified, &bytes)
	if errors.Is(err, pgx.ErrNoRows) { // the step is no longer partial: a repeated or late report
		return false, nil
	}
	if err != nil || !verified {
		return false, err
	}
	return true, c.whole(ctx, bytes)
}

// millis returns a time in milliseconds; nil: not measured.
func millis(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

// whole records that all members' parts of the step are stored. Machines lost before
// this step no longer count against the job.
func (c *checkpointing) whole(ctx context.Context, bytes int64) error {
	p := c.report
	_, err := c.tx.Exec(ctx, `
		UPDATE jobs
		SET has_checkpoint = true, losses = 0, verified_at = now()
		WHERE id = @job`, namedArgs{"job": p.Job})
	if err != nil {
		return err
	}
	return addEvent(ctx, c.tx, p.Job, wire.Event{
		Kind: wire.EventCheckpoint, Attempt: p.Attempt, Actor: AgentActor(c.machine),
		Detail: fmt.Sprintf("step %d, %d bytes", p.Step, bytes),
		Facts:  &wire.EventFacts{Step: &p.Step, Bytes: &bytes},
	})
}

// late returns the reported shard for deletion if the step is already pruned.
func (c *checkpointing) late(ctx context.Context) ([]PrunedShard, error) {
	p := c.report
	var pruned bool
	err := c.tx.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT 1 FROM checkpoints
			WHERE job = @job AND step = @step AND attempt = @attempt AND state = 'pruned')`,
		namedArgs{"job": p.Job, "step": p.Step, "attempt": p.Attempt}).Scan(&pruned)
	if err != nil || !pruned {
		return nil, err
	}
	return []PrunedShard{{Tenant: c.tenant, Job: p.Job, Attempt: p.Attempt, Rank: p.Rank, Step: p.Step}}, nil
}

// bestSteps selects step and attempt of the verified checkpoints of @job with the @best best
// values; @greatest: the greatest values are the best.
const bestSteps = `
	SELECT step, attempt
	FROM checkpoints
	WHERE job = @job AND state = 'verified' AND metric_value IS NOT NULL
	ORDER BY CASE WHEN @greatest THEN -metric_value ELSE metric_value END, step DESC, attempt DESC
	LIMIT @best`

// prune marks all verified steps but the newest keep, and the partial steps of earlier
// attempts, and returns their shards. Partial steps of the current attempt may still
// become verified. Pinned steps, and those from which live jobs started, stay and do not
// count; a trigger keeps them from every other statement as well. Steps that a restore passed
// over do not count either, and stay until keep higher steps are verified that no restore has
// passed over. The steps with the best
// values of keep_best.metric stay, too; of equal values, the newer step.
func (c *checkpointing) prune(ctx context.Context) ([]PrunedShard, error) {
	var best spec.KeepBest // no steps
	if c.best != nil {
		best = *c.best
		best.Count = max(best.Count, 1)
	}
	rows, err := c.tx.Query(ctx, `
		WITH old AS (
			SELECT step, attempt
			FROM (
				SELECT step, attempt, row_number() OVER (ORDER BY step DESC, attempt DESC) AS n
				FROM checkpoints
				WHERE job = @job AND state = 'verified' AND NOT passed_over
				  AND NOT checkpoint_is_kept(job, step, attempt, pinned_at)
			) v
			WHERE n > @keep AND (step, attempt) NOT IN (`+bestSteps+`)
			UNION ALL
			SELECT c.step, c.attempt
			FROM checkpoints c
			WHERE c.job = @job AND c.state = 'verified' AND c.passed_over
			  AND NOT checkpoint_is_kept(c.job, c.step, c.attempt, c.pinned_at)
			  AND (c.step, c.attempt) NOT IN (`+bestSteps+`)
			  AND (
				SELECT count(*) FROM checkpoints v
				WHERE v.job = @job AND v.state = 'verified' AND NOT v.passed_over AND v.step > c.step) >= @keep
			UNION ALL
			SELECT step, attempt
			FROM checkpoints
			WHERE job = @job AND state = 'partial' AND attempt < @attempt
		), pruned AS (
			UPDATE checkpoints c
			SET state = 'pruned'
			FROM old
			WHERE c.job = @job AND c.step = old.step AND c.attempt = old.attempt
			RETURNING c.step, c.attempt
		)
		SELECT h.attempt, h.rank, h.step
		FROM pruned p
		JOIN checkpoint_shards h ON h.job = @job AND h.step = p.step AND h.attempt = p.attempt`,
		namedArgs{"job": c.report.Job, "attempt": c.report.Attempt, "keep": c.keep, "best": best.Count,
			"greatest": best.Mode == spec.BestIsMax})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (PrunedShard, error) {
		s := PrunedShard{Tenant: c.tenant, Job: c.report.Job}
		err := row.Scan(&s.Attempt, &s.Rank, &s.Step)
		return s, err
	})
}

// ObjectAccess is a machine's request to read or write an object of a job's member.
type ObjectAccess struct {
	Tenant  berth.TenantID
	Job     berth.JobID
	Attempt int
	Rank    int
	Step    int64 // of the checkpoint that the object is a part of; -1: of none
	Write   bool
	Session Session // checked for a write only
}

// Authorize allows a machine to write objects of the attempt and rank of its allocation, in
// the current session, and to read all objects of the same job. It may also read the
// checkpoint from which that job started: the part of the same rank, or all parts if each member
// of the job gets all of them. Every other request fails with CodeNotFound.
func (d *Objects) Authorize(ctx context.Context, machine berth.MachineID, o ObjectAccess) error {
	var ok bool
	err := d.pool.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT 1
			FROM allocations a
			JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
			JOIN machines m ON m.id = a.machine_id AND (NOT @write OR m.agent_boot = @boot AND m.epoch = @epoch)
			WHERE a.job = @job AND a.machine_id = @machine AND j.tenant = @tenant
			  AND (a.state = 'active' OR a.state = 'exited' AND a.sealed_at IS NULL)
			  AND (NOT @write OR a.attempt = @attempt AND a.rank = @rank))
		OR NOT @write AND EXISTS (
			SELECT 1
			FROM job_sources o
			JOIN allocations a ON a.job = o.job AND (a.rank = @rank OR @rank < o.parts)
			JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
			WHERE o.source = @job AND o.step = @step AND o.attempt = @attempt AND o.array_index = -1
			  AND a.machine_id = @machine AND a.state = 'active' AND j.tenant = @tenant)`,
		namedArgs{
			"step": o.Step, "machine": machine, "tenant": string(o.Tenant), "job": o.Job, "attempt": o.Attempt,
			"rank":  o.Rank,
			"write": o.Write,
			"boot":  o.Session.AgentBoot, "epoch": o.Session.Epoch,
		}).Scan(&ok)
	if err != nil {
		return mapError(err, "object")
	}
	if !ok && o.Write {
		if err := d.checkSession(ctx, machine, o.Session); err != nil {
			return err
		}
	}
	if !ok {
		return berth.Errorf(berth.CodeNotFound, "no such object")
	}
	return nil
}
