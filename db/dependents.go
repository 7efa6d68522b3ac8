package db

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// A job outside of pipelines may wait for other jobs. Its row is submitted and blocked, like the row
// of a step, and job_needs names the other jobs. The end of a job is judged in two places: the
// end's own process calls wakeDependents after its commit, and the submit of a dependent
// judges it after its commit. The submit locks the needed jobs until then, so one of the two
// sees both. The leader's reconciler repeats the judgement where a process died in between.
//
// A job can name only jobs that exist at its submit, and its needs never change. So needs
// have no cycles.

// SlugNoJob is the stable code for a needed job that does not exist.
const SlugNoJob = "no_job"

// judgeBatch is the number of dependents that one transaction judges. It is also the greatest number
// that the end of a job judges itself, for all that follows from it: the leader judges the rest.
const judgeBatch = 100

// waitFor makes a job or a pipeline wait for others.
func (r *submitRow) waitFor(needs []string, when string) {
	if r.waits = spec.NeededJobs(needs); len(r.waits) == 0 {
		return
	}
	r.args["blocked"], r.args["queue_ms"] = true, 0 // the deadline counts from the start; see letGo
	if when != "" {
		r.args["run_when"] = when
	}
}

// lockNeeded locks the jobs that a new job waits for, so that none of them ends or is
// archived before the commit. Another tenant's job gives the same error as one that does not
// exist. Outputs of needed jobs that have not ended are bound later, when the job may start.
func (r *submitRow) lockNeeded(ctx context.Context, tx pgx.Tx) error {
	if len(r.waits) == 0 {
		return nil
	}
	args := namedArgs{"ids": r.waits, "tenant": r.args["tenant"]}
	states, err := r.neededStates(ctx, tx, args)
	if err != nil {
		return err
	}
	live := map[berth.JobID]bool{}
	for i, id := range r.waits {
		state, ok := states[id]
		if !ok {
			detail := fmt.Sprintf("no such job %s", id)
			return &berth.Error{Code: berth.CodeNotFound, Slug: SlugNoJob, Message: detail,
				Fields: []berth.FieldError{{Field: fmt.Sprintf("needs[%d]", i), Detail: detail,
					Allowed: "a job that berth list shows"}}}
		}
		live[id] = !state.Terminal()
	}
	if err := declared(ctx, tx, r.needs.inputs, live); err != nil {
		return err
	}
	r.needs = r.needs.without(live)
	return nil
}

// neededStates locks the needed jobs of the tenant that are not archived, and returns the
// states of all of them.
func (r *submitRow) neededStates(ctx context.Context, tx pgx.Tx,
	args namedArgs) (map[berth.JobID]berth.State, error) {
	states := map[berth.JobID]berth.State{}
	for _, sql := range []string{`
		SELECT id::text, state
		FROM jobs
		WHERE id = ANY(@ids::uuid[]) AND tenant = @tenant
		ORDER BY kind = 'job', id
		FOR SHARE`, `
		SELECT id::text, state
		FROM archived_jobs
		WHERE id = ANY(@ids::uuid[]) AND tenant = @tenant`} {
		rows, err := tx.Query(ctx, sql, args)
		if err != nil {
			return nil, err
		}
		var id berth.JobID
		var state berth.State
		if _, err := pgx.ForEachRow(rows, []any{&id, &state}, func() error {
			states[id] = state
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return states, nil
}

// declared returns an error for an input from a live job that declares no output of that name.
func declared(ctx context.Context, tx pgx.Tx, named []spec.NamedOutput, live map[berth.JobID]bool) error {
	for _, o := range named {
		if !live[o.Job] {
			continue
		}
		var found bool
		err := tx.QueryRow(ctx, `
			SELECT EXISTS (
				SELECT 1
				FROM job_specs s, jsonb_array_elements(s.spec -> 'outputs') d
				JOIN jobs j ON j.id = @id AND j.kind = 'job'
				WHERE s.job = @id AND d ->> 'name' = @name)`,
			namedArgs{"id": o.Job, "name": o.Name}).Scan(&found)
		if err != nil {
			return err
		}
		if !found {
			return &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec,
				Message: fmt.Sprintf("there will be no output %s", o.OutputRef),
				Fields: []berth.FieldError{{Field: o.Field(),
					Detail:  fmt.Sprintf("job %s declares no output %q", o.Job, o.Name),
					Allowed: "an output of a job, of an element, or of a step"}}}
		}
	}
	return nil
}

// insertNeeded stores the jobs that a new job waits for.
func (r *submitRow) insertNeeded(ctx context.Context, tx pgx.Tx, id berth.JobID) error {
	if len(r.waits) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO job_needs (job, needs)
		SELECT @job::uuid, unnest(@needs::uuid[])`, namedArgs{"job": id, "needs": r.waits})
	return err
}

// judged returns a stored job after its needs were judged for the first time. An error of the
// judgement is only logged, since the reconciler repeats it.
func (r *submitRow) judged(ctx context.Context, d *Jobs, job wire.Job, stored error) (wire.Job, error) {
	if stored != nil || len(r.waits) == 0 {
		return job, stored
	}
	if _, err := judgeJobs(ctx, d.core, []berth.JobID{job.ID}, judgeBatch); err != nil {
		d.log.Warn("needs not judged, will be reconciled", "job_id", job.ID, "err", err)
	}
	return d.Get(ctx, job.Tenant, job.ID)
}

// wakeDependents judges jobs that wait for ended ones, at most judgeBatch. It must be called after
// the commit of the ends. An error is only logged, since the reconciler repeats the call.
func wakeDependents(ctx context.Context, d *core, ended ...berth.JobID) {
	if len(ended) == 0 {
		return
	}
	waiting, err := dependents(ctx, d, ended, judgeBatch)
	if err == nil && len(waiting) > 0 {
		if err = failpoint.Hit("worker.judge.before"); err == nil {
			_, err = judgeJobs(ctx, d, waiting, judgeBatch)
		}
		if err == nil {
			err = failpoint.Hit("worker.judge.after")
		}
	}
	if err != nil && ctx.Err() == nil {
		d.log.Warn("dependent jobs not judged, will be reconciled", "jobs", len(ended), "err", err)
	}
}

// dependents returns at most limit blocked jobs outside of pipelines that wait for one of the jobs.
func dependents(ctx context.Context, d *core, needed []berth.JobID, limit int) ([]berth.JobID, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT DISTINCT j.id::text
		FROM job_needs d
		JOIN jobs j ON j.id = d.job
		WHERE d.needs = ANY(@needed::uuid[]) AND j.parent IS NULL AND j.state = 'submitted' AND j.blocked
		LIMIT @limit`,
		namedArgs{"needed": needed, "limit": limit})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
}

// JudgeDependents judges at most limit blocked jobs whose needs have ended, for the
// reconciler, and returns their number.
func (d *Parents) JudgeDependents(ctx context.Context, limit int) (int, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT j.id::text
		FROM jobs j
		`+verdictOfJobs+`
		WHERE j.parent IS NULL AND j.state = 'submitted' AND j.blocked
		  AND (v.verdict IN ('cancel', 'skip') OR v.verdict = 'start' AND NOT j.held)
		ORDER BY j.id
		LIMIT @limit`, namedArgs{"limit": limit})
	if err != nil {
		return 0, mapError(err, "dependent jobs")
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
	n := 0
	if err == nil {
		n, err = judgeJobs(ctx, d.core, ids, limit)
	}
	return n, mapError(err, "dependent jobs")
}

// judgeJobs starts or ends blocked jobs outside of pipelines, as the ends of the jobs that
// they need decide, and then judges the dependents of the ended ones: at most limit jobs in all,
// whose number it returns. Jobs that still wait, or do not wait any longer, stay as they are.
func judgeJobs(ctx context.Context, d *core, ids []berth.JobID, limit int) (n int, err error) {
	for len(ids) > 0 && n < limit {
		ids = ids[:min(len(ids), limit-n)]
		n += len(ids)
		var ended []berth.JobID
		for part := range slices.Chunk(ids, judgeBatch) {
			some, err := judgeSome(ctx, d, part)
			if err != nil {
				return n, err
			}
			ended = append(ended, some...)
		}
		if len(ended) == 0 || n == limit {
			return n, nil
		}
		if ids, err = dependents(ctx, d, ended, limit-n); err != nil {
			return n, err
		}
	}
	return n, nil
}

// judged is a blocked job with the verdict about it.
type judged struct {
	ID      berth.JobID
	Kind    berth.Kind
	Verdict string
	Because *string
	Takes   bool // it may use outputs of other jobs as inputs
	Queue   []byte
}

// judgeSome judges one batch in a transaction, and returns the jobs that have ended. The rows
// are locked, so that of concurrent calls one changes a job; the verdict of an older snapshot
// still holds, since ends are final.
func judgeSome(ctx context.Context, d *core, ids []berth.JobID) (ended []berth.JobID, err error) {
	var started []string
	var below ending
	err = d.tx(ctx, func(tx pgx.Tx) error {
		started, ended, below = nil, nil, ending{}
		rows, err := tx.Query(ctx, `
			SELECT j.id::text, j.kind, v.verdict, v.because,
				coalesce((SELECT s.spec ? 'inputs' FROM job_specs s WHERE s.job = j.id), false),
				coalesce((SELECT s.spec -> 'queue_timeout' FROM job_specs s WHERE s.job = j.id), 'null')
			FROM jobs j
			`+verdictOfJobs+`
			WHERE j.id = ANY(@ids::uuid[]) AND j.parent IS NULL AND j.state = 'submitted' AND j.blocked
			  AND (v.verdict IN ('cancel', 'skip') OR v.verdict = 'start' AND NOT j.held)
			ORDER BY j.kind = 'job', j.id
			FOR NO KEY UPDATE OF j`, namedArgs{"ids": ids})
		if err != nil {
			return err
		}
		list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[judged])
		if err != nil {
			return err
		}
		for _, j := range list {
			if j.Verdict == "start" {
				started = append(started, string(j.ID))
				err = j.letGo(ctx, tx)
			} else {
				ended = append(ended, j.ID)
				err = j.giveUp(ctx, tx, &below)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, mapError(err, "dependent jobs")
	}
	d.hub.Publish(TopicSubmit, started...)
	below.publish(d.hub)
	for _, id := range append(started, below.canceled...) {
		d.hub.Publish(TopicJob, id)
	}
	return append(ended, below.ids()...), nil
}

// letGo lets a job start; it is unblock for a job outside of pipelines.
func (j judged) letGo(ctx context.Context, tx pgx.Tx) error {
	if j.Takes {
		if err := holdOutputs(ctx, tx); err != nil {
			return err
		}
		if err := bindSteps(ctx, tx, []string{string(j.ID)}); err != nil {
			return err
		}
	}
	limit, err := queueTimeout(j.Queue)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		UPDATE jobs j
		SET blocked = false, version = j.version + 1, actor = 'workflow',
			queue_deadline = CASE WHEN j.kind = 'job'
				THEN now() + nullif(@queue_ms::bigint, 0) * interval '1 millisecond' END,
			unaged_ms = (extract(epoch FROM now() - j.submitted_at) * 1000)::bigint
		WHERE id = @id`, namedArgs{"id": j.ID, "queue_ms": limit.Milliseconds()})
	return err
}

// giveUp ends a job that can no longer run, with everything inside.
func (j judged) giveUp(ctx context.Context, tx pgx.Tx, below *ending) error {
	reason := &berth.Reason{Code: berth.ReasonUpstreamFailed}
	if j.Verdict == "skip" {
		reason.Code = wire.ReasonSkipped
	}
	if j.Because != nil {
		reason.Message = *j.Because
	}
	if j.Kind == berth.KindPipeline {
		some, err := cancelBelow(ctx, tx, withdrawal{parent: j.ID, spare: lifecycle.SpareNone, actor: "workflow",
			reason: reason})
		if err != nil {
			return err
		}
		below.add(some)
	}
	below.canceled = append(below.canceled, string(j.ID))
	_, err := tx.Exec(ctx, `
		UPDATE jobs j
		SET state = 'canceled', version = j.version + 1, actor = 'workflow', reason = @reason,
			tally = CASE WHEN j.kind <> 'job' THEN `+liveTally+` END
		WHERE j.id = @id`, namedArgs{"id": j.ID, "reason": reason})
	return err
}
