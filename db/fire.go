package db

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// NewFires are times of a schedule to be fired.
type NewFires struct {
	Schedule berth.ScheduleID
	Times    []time.Time
	Source   wire.FireSource
	Overlap  spec.Overlap // policy for these fires; "": the schedule's
	Again    bool         // also fire times again that were skipped, refused or missed
}

// AddFires makes times due and returns the number of fires to decide. A time that was fired
// before is left alone, unless Again is set and the fire submitted no job. The leader decides
// due fires soon; Fire decides one at once.
//
// It fails with a conflict if PruneFires may have removed the record of one of the times.
func (d *Schedules) AddFires(ctx context.Context, a NewFires) (n int, err error) {
	if len(a.Times) == 0 {
		return 0, nil
	}
	err = d.tx(ctx, func(tx pgx.Tx) error {
		var forgotten *time.Time
		err := tx.QueryRow(ctx, `SELECT forgotten_to FROM schedules
			WHERE id = @id AND deleted_at IS NULL FOR NO KEY UPDATE`,
			namedArgs{"id": a.Schedule}).Scan(&forgotten)
		if err != nil {
			return err
		}
		// Without the record, a time that was fired would be fired twice.
		if forgotten != nil && !slices.MinFunc(a.Times, time.Time.Compare).After(*forgotten) {
			return berth.Errorf(berth.CodeConflict, "what became of the times up to %s is not on record any more, "+
				"so they cannot be fired once only: take a later range", forgotten.UTC().Format(time.RFC3339))
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO schedule_fires AS f (schedule, at, source, status, overlap, over)
			SELECT @id, at, @source, 'due', nullif(@overlap, ''), false
			FROM unnest(@times::timestamptz[]) AS at
			ON CONFLICT (schedule, at) DO UPDATE
			SET source = excluded.source, status = 'due', overlap = excluded.overlap, reason = NULL, over = false,
				decided_at = NULL
			WHERE @again AND f.status IN ('skipped', 'refused', 'missed')`,
			namedArgs{"id": a.Schedule, "source": a.Source, "overlap": string(a.Overlap), "times": a.Times,
				"again": a.Again})
		n = int(tag.RowsAffected())
		return err
	})
	if err == nil && n > 0 {
		d.hub.Publish(TopicClock, string(a.Schedule))
	}
	return n, mapError(err, "schedule "+string(a.Schedule))
}

// Firing is a fire to be decided.
type Firing struct {
	Schedule wire.Schedule // as read before; Fire returns ErrScheduleChanged if it has another work now
	At       time.Time
	Refused  *berth.Reason // reason to refuse the work, found by the caller; nil: only the database can refuse it
}

// Fire decides one time of a schedule, by lifecycle.Fire: it submits the work or records the
// reason not to.
// A decision is final: a second call for the same time returns the first one's result. A
// deleted schedule is not_found.
func (d *Schedules) Fire(ctx context.Context, f Firing) (wire.FireResult, error) {
	var x firing
	err := d.tx(ctx, func(tx pgx.Tx) error {
		x = firing{Firing: f}
		return x.run(ctx, tx)
	})
	if err != nil {
		return wire.FireResult{}, mapError(err, "schedule "+string(f.Schedule.ID))
	}
	if x.status == wire.FireSubmitted && !x.done {
		d.hub.Publish(TopicSubmit, string(x.job))
	}
	for _, c := range x.canceled {
		if _, err := afterCancel(ctx, d.core, c); err != nil { // the job's own coordinator repeats it
			d.log.Warn("canceled job not reconciled", "job_id", c.job.ID, "err", err)
		}
		d.hub.Publish(TopicPoke, string(c.job.ID))
	}
	return wire.FireResult{Status: x.status, Job: x.job}, nil
}

// firing is a fire under the lock of its schedule. The lock orders concurrent decisions of
// one schedule, so that each sees the jobs of the others.
type firing struct {
	Firing
	facts lifecycle.FireFacts

	done     bool // decided by an earlier call
	status   wire.FireStatus
	job      berth.JobID
	canceled []cancellation
}

// run reads the facts, carries out the decision and stores a changed status.
func (x *firing) run(ctx context.Context, tx pgx.Tx) error {
	if err := x.read(ctx, tx); err != nil || x.done {
		return err
	}
	decision := lifecycle.Fire(x.Schedule.Schedule, x.facts)
	if decision.Status == wire.FireSubmitted {
		var err error
		if decision, err = x.submit(ctx, tx, decision); err != nil {
			return err
		}
	}
	x.status = decision.Status
	if x.status == x.facts.Status {
		return nil // still buffered: nothing changes
	}
	return x.store(ctx, tx, decision.Reason)
}

// read locks the schedule, reads the fire, and finds other fires that it may overlap with. It
// marks fires whose job has ended as over, so that they are not looked at again.
func (x *firing) read(ctx context.Context, tx pgx.Tx) error {
	args := namedArgs{"id": x.Schedule.ID, "at": x.At, "changed_at": x.Schedule.ChangedAt}
	// A fire that the clock brings has no row yet: the defaults count.
	x.facts = lifecycle.FireFacts{At: x.At, Source: wire.FireByClock, Status: wire.FireDue,
		Overlap: x.Schedule.Overlap, Refused: x.Refused}
	f := &x.facts
	var changed bool
	err := tx.QueryRow(ctx, `SELECT paused, clock_timestamp(), changed_at IS DISTINCT FROM @changed_at FROM schedules
		WHERE id = @id AND deleted_at IS NULL FOR NO KEY UPDATE`, args).Scan(&f.Paused, &f.Now, &changed)
	if err != nil {
		return err
	}
	if changed {
		return ErrScheduleChanged
	}
	var job *berth.JobID
	var overlap *spec.Overlap
	err = tx.QueryRow(ctx, `SELECT source, status, overlap, job FROM schedule_fires
		WHERE schedule = @id AND at = @at`, args).Scan(&f.Source, &f.Status, &overlap, &job)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if overlap != nil {
		f.Overlap = *overlap
	}
	// A repeated call returns the first decision.
	if f.Status.Decided() {
		x.done, x.status = true, f.Status
		if job != nil {
			x.job = *job
		}
		return nil
	}
	if _, err := tx.Exec(ctx, `
		UPDATE schedule_fires f
		SET over = true
		WHERE f.schedule = @id AND NOT f.over AND f.status = 'submitted'
		  AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = f.job
		    AND j.state NOT IN ('succeeded', 'failed', 'canceled'))`, args); err != nil {
		return err
	}
	return tx.QueryRow(ctx, `
		SELECT coalesce(array_agg(job::text ORDER BY job) FILTER (WHERE status = 'submitted'), '{}'),
			count(*) FILTER (WHERE status = 'buffered') > 0
		FROM schedule_fires
		WHERE schedule = @id AND NOT over AND at <> @at`, args).Scan(&f.Live, &f.Waits)
}

// submit carries out a decision to submit the work: it cancels the listed jobs first. Both run
// in a savepoint: a refusal of the work also undoes the cancellations, and is the new decision.
// Any other error is returned, and the fire stays undecided.
func (x *firing) submit(ctx context.Context, tx pgx.Tx, d lifecycle.FireDecision) (lifecycle.FireDecision, error) {
	// BeginFunc on a transaction sets a savepoint.
	err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		for _, id := range d.Cancel {
			c, err := cancelJob(ctx, tx, "", id, x.actor(), d.CancelReason, false)
			if err != nil {
				return err
			}
			x.canceled = append(x.canceled, c)
		}
		return x.insert(ctx, tx)
	})
	if err == nil {
		return d, nil
	}
	// The savepoint is rolled back, so nothing was canceled and no job exists.
	x.canceled, x.job = nil, ""
	why := lifecycle.WhyRefused(err)
	if why == nil {
		return d, err
	}
	return lifecycle.Refuse(*why), nil
}

func (x *firing) actor() string { return "schedule:" + x.Schedule.Name }

// insert stores the job. The idempotency key is derived from the schedule and the time, so
// the key may exist already: the job is then the result of an earlier fire of this time that
// is no longer on record. A job with other content under this key is a conflict.
func (x *firing) insert(ctx context.Context, tx pgx.Tx) error {
	key := berth.FireKey(x.Schedule.ID, x.At)
	var row submitRow
	var job wire.Job
	incarnation, err := incarnationOf(ctx, tx)
	if err != nil {
		return err
	}
	if p := x.Schedule.Pipeline; p != nil {
		s := PipelineSubmission{Tenant: x.Schedule.Tenant, Spec: *p, IdemKey: key, Actor: x.actor(),
			incarnation: incarnation}
		if row, err = newPipelineRow(s); err == nil {
			job, err = row.insertPipeline(ctx, tx, s)
		}
	} else if row, err = newSubmitRow(Submission{Tenant: x.Schedule.Tenant, Spec: *x.Schedule.Job, IdemKey: key,
		Actor: x.actor(), incarnation: incarnation}); err == nil {
		job, err = row.insertWithNeeds(ctx, tx)
	}
	if berth.IsSlug(err, SlugNoCheckpoint) { // a refusal, as any other field of the spec
		return &berth.Error{Code: berth.CodeInvalid, Slug: SlugNoCheckpoint, Message: err.Error()}
	}
	if berth.CodeOf(err) != berth.CodeNotFound {
		x.job = job.ID
		return err
	}
	var hash []byte
	if err := tx.QueryRow(ctx, `SELECT id, idem_hash FROM jobs WHERE tenant = @tenant AND idem_key = @key`,
		namedArgs{"tenant": x.Schedule.Tenant, "key": key}).Scan(&x.job, &hash); err != nil {
		return err
	}
	if !bytes.Equal(hash, row.hash) {
		return &berth.Error{Code: berth.CodeConflict, Slug: berth.SlugIdempotencyMismatch,
			Message: fmt.Sprintf("job %s was submitted by hand under this fire's key", x.job)}
	}
	return nil
}

// store writes the status of the fire, with the reason of a fire that submitted nothing.
func (x *firing) store(ctx context.Context, tx pgx.Tx, reason *berth.Reason) error {
	var job *berth.JobID
	if x.status == wire.FireSubmitted {
		job = &x.job
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO schedule_fires (schedule, at, source, status, job, reason, over, decided_at)
		VALUES (@id, @at, @source, @status, @job::uuid, @reason, @over, CASE WHEN @decided THEN clock_timestamp() END)
		ON CONFLICT (schedule, at) DO UPDATE
		SET status = excluded.status, job = excluded.job, reason = excluded.reason, over = excluded.over,
			decided_at = excluded.decided_at`,
		namedArgs{
			"id": x.Schedule.ID, "at": x.At, "source": x.facts.Source, "status": x.status, "job": job, "reason": reason,
			"over": x.status.Decided() && job == nil, "decided": x.status.Decided(),
		})
	return err
}
