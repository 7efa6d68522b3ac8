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

// Hold keeps a waiting job from being placed until Release. A job that is already held
// stays as it is. For a pipeline, nothing inside is placed from the commit on, at any
// depth, also where an inner pipeline was held before.
func (d *Jobs) Hold(ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string) error {
	var kind berth.Kind
	err := d.change(ctx, tenant, id, func(tx pgx.Tx, job lockedJob) (string, error) {
		kind = job.Kind
		if job.Kind == berth.KindJob && !job.State.Waiting() {
			return "", berth.Errorf(berth.CodeConflict,
				"job %s is %s: only submitted, queued and retrying jobs can be held", id, job.State)
		}
		if job.State.Terminal() || job.State == berth.Canceling {
			return "", berth.Errorf(berth.CodeConflict, "job %s is %s and cannot be held", id, job.State)
		}
		if kind == berth.KindPipeline {
			if _, err := holdBelow(ctx, tx, id, actor); err != nil {
				return "", err
			}
		}
		if job.HeldAt != nil {
			return "", nil
		}
		return "held", holdJob(ctx, tx, job, actor)
	}, actor)
	if err == nil && kind == berth.KindPipeline {
		err = reconcileInside(ctx, d.core, id)
	}
	return err
}

// holdJob sets the hold of a locked job.
func holdJob(ctx context.Context, tx pgx.Tx, job lockedJob, actor string) error {
	_, err := tx.Exec(ctx, `
		UPDATE jobs
		SET held = true, held_at = now(), version = version + 1, actor = @actor
		WHERE id = @job`,
		namedArgs{"job": job.ID, "actor": actor})
	return err
}

// Release ends the hold of a job; for a parent, of all jobs inside. The time on hold does
// not count towards the queue timeout. A job that is not held stays as it is. A job inside
// a held pipeline or array is a conflict: the parent's next reconciliation would hold the
// job again, and until then the job could start.
func (d *Jobs) Release(ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string) error {
	var pipeline, step bool
	err := d.change(ctx, tenant, id, func(tx pgx.Tx, job lockedJob) (string, error) {
		pipeline, step = job.Kind == berth.KindPipeline, job.HasParent
		if job.HeldAt == nil || job.State.Terminal() {
			return "", nil
		}
		if err := heldAround(ctx, tx, id); err != nil {
			return "", err
		}
		// The time on hold moves the queue deadline, and the job does not age in that time.
		_, err := tx.Exec(ctx, `
			UPDATE jobs
			SET held = false, held_at = NULL, queue_deadline = queue_deadline + (now() - held_at),
				unaged_ms = unaged_ms + (extract(epoch FROM now() - held_at) * 1000)::bigint,
					version = version + 1, actor = @actor
			WHERE id = @job`,
			namedArgs{"job": id, "actor": actor})
		if err == nil && job.Kind != berth.KindJob {
			err = releaseChildren(ctx, tx, job, actor)
		}
		return "released from hold", err
	}, actor)
	if err != nil {
		return err
	}
	// Jobs that only the hold kept from starting may start now. The release is committed, so a
	// failure only delays them: the reconciler finds them.
	var late error
	if pipeline {
		d.hub.Publish(TopicPoke, string(id))
		late = reconcileInside(ctx, d.core, id)
	}
	if step {
		notifyParents(ctx, d.core, id)
	} else if late == nil { // a job whose needs ended while it was held
		_, late = judgeJobs(ctx, d.core, []berth.JobID{id}, judgeBatch)
	}
	if late != nil {
		d.log.Warn("released job not reconciled, will be later", "job_id", id, "err", late)
	}
	return nil
}

// Update changes a live job, in its row and in the spec from which the next attempt is
// started. A new time limit applies from the next attempt on, because machines receive the
// limit with the claim.
func (d *Jobs) Update(ctx context.Context, tenant berth.TenantID, id berth.JobID, p spec.JobPatch, actor string) error {
	return d.change(ctx, tenant, id, func(tx pgx.Tx, job lockedJob) (string, error) {
		if job.State.Terminal() {
			return "", berth.Errorf(berth.CodeConflict, "job %s is %s and cannot be changed", id, job.State)
		}
		args, err := patchArgs(id, p, actor)
		if err != nil {
			return "", err
		}
		batch := &pgx.Batch{}
		batch.Queue(`
			UPDATE jobs
			SET priority = coalesce(@priority::integer, priority),
				run_limit_ms = coalesce(@run_limit_ms::bigint, run_limit_ms),
				labels = (labels || @set_labels) - @unset_labels::text[], version = version + 1, actor = @actor
			WHERE id = @job`, args)
		batch.Queue(`
			UPDATE job_specs s
			SET spec = s.spec || @spec || jsonb_build_object('labels', j.labels)
			FROM jobs j
			WHERE s.job = @job AND j.id = @job`, args)
		// The limit applies to the merged labels; an error rolls the update back. A patch
		// without labels passes even if an older job has too many.
		batch.Queue(`SELECT count(*) FROM jobs, jsonb_object_keys(labels)
			WHERE id = @job`, args).QueryRow(func(row pgx.Row) error {
			var labels int
			if err := row.Scan(&labels); err != nil {
				return err
			}
			if labels > spec.MaxLabels && len(p.Labels) > 0 {
				return berth.Errorf(berth.CodeInvalid, "job %s would have %d labels; allowed: at most %d", id, labels,
					spec.MaxLabels)
			}
			return nil
		})
		err = tx.SendBatch(ctx, batch).Close()
		if err == nil && job.Kind != berth.KindJob {
			err = patchChildren(ctx, tx, job, args, describePatch(p))
		}
		return describePatch(p), err
	}, actor)
}

// patchArgs returns the arguments of Update's statements. A priority or time limit that
// does not change is null.
func patchArgs(id berth.JobID, p spec.JobPatch, actor string) (namedArgs, error) {
	changed := map[string]any{}
	set, unset := map[string]string{}, []string{}
	args := namedArgs{"job": id, "actor": actor, "priority": nil, "run_limit_ms": nil}
	if p.Priority != nil {
		args["priority"] = int(*p.Priority)
		changed["priority"] = *p.Priority
	}
	if p.TimeLimit != nil {
		args["run_limit_ms"] = p.TimeLimit.Std().Milliseconds()
		changed["time_limit"] = *p.TimeLimit
	}
	for k, v := range p.Labels {
		if v == nil {
			unset = append(unset, k)
		} else {
			set[k] = *v
		}
	}
	raw, err := json.Marshal(changed)
	if err != nil {
		return nil, fmt.Errorf("marshal patch: %w", err)
	}
	args["spec"], args["set_labels"], args["unset_labels"] = raw, set, unset
	return args, nil
}

// describePatch returns a patch as JSON, for the detail of the job's event.
func describePatch(p spec.JobPatch) string {
	b, err := json.Marshal(p)
	if err != nil {
		panic("patch does not marshal: " + err.Error())
	}
	return string(b)
}

// change runs f on a locked job of the tenant and records the text that f returns in the
// job's history. An empty text means that nothing changed. If the job is a pipeline or an
// array, change reconciles it after the commit, so that its children follow.
func (d *Jobs) change(ctx context.Context, tenant berth.TenantID, id berth.JobID,
	f func(pgx.Tx, lockedJob) (string, error), actor string) error {
	var detail string
	var kind berth.Kind
	err := d.tx(ctx, func(tx pgx.Tx) error {
		job, err := lockJob(ctx, tx, tenant, id, 0)
		if err != nil {
			return err
		}
		kind = job.Kind
		if detail, err = f(tx, job); err != nil || detail == "" {
			return err
		}
		return addEvent(ctx, tx, id, wire.Event{
			Kind: wire.EventUpdated, Attempt: job.Attempt, Actor: actor,
			Detail: detail,
		})
	})
	if err != nil {
		return mapError(err, "job "+string(id))
	}
	if detail != "" {
		touched{job: id, queue: true}.publish(d.hub)
	}
	if kind != berth.KindJob { // a hold applies to the elements too
		left := followUp
		_, err = reconcileThrough(ctx, d.core, id, &left)
	}
	return err
}
