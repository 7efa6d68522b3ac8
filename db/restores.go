package db

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth/wire"
)

// This file records restores of checkpoints that failed.

// reject records a failed restore of a step of the job, or of the step from which the job
// started. The step is marked bad only if the report proves damage: a store that stalls or
// fails proves nothing about the content, and the next attempt tries the same step elsewhere. A
// step is passed over, and stays stored, if the store returned another verified step of the job
// and then still not this one. The step that it returned is passed over no longer: otherwise
// two steps that different members of a gang do not get would both stand last, in an order that
// no later report changes.
func (c *checkpointing) reject(ctx context.Context) error {
	p := c.report
	passes, err := c.passes(ctx)
	if err != nil {
		return err
	}
	var bad, passed bool
	err = c.tx.QueryRow(ctx, `
		UPDATE checkpoints c
		SET failed_restores = failed_restores + 1,
		    state = CASE WHEN @failed THEN state ELSE 'bad' END,
		    passed_over = c.passed_over OR @passes, detail = @detail
		FROM (SELECT passed_over AS before FROM checkpoints WHERE job = @of_job AND step = @step AND attempt = @of) b
		WHERE job = @of_job AND step = @step AND attempt = @of AND state = 'verified'
		  AND (job = @job OR EXISTS (
			SELECT 1
			FROM job_sources o
			WHERE o.job = @job AND o.array_index = -1 AND o.source = @of_job AND o.step = @step AND o.attempt = @of))
		RETURNING state = 'bad', c.passed_over AND NOT b.before`,
		namedArgs{"job": p.Job, "of_job": cmp.Or(p.OfJob, p.Job), "step": p.Step, "of": p.OfAttempt,
			"failed": p.Failed, "detail": p.Bad,
			"passes": passes}).Scan(&bad, &passed)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	case passes:
		return c.passOver(ctx, passed)
	case !bad:
		return nil
	}
	if p.OfJob != "" && p.OfJob != p.Job {
		return c.rejectSource(ctx)
	}
	return addEvent(ctx, c.tx, p.Job, wire.Event{
		Kind: wire.EventCheckpointRejected, Attempt: p.Attempt, Actor: AgentActor(c.machine),
		Detail: fmt.Sprintf("step %d of attempt %d: %s", p.Step, p.OfAttempt, p.Bad),
		Facts:  &wire.EventFacts{Step: &p.Step},
	})
}

// passes reports whether a restore failed for a step of the job itself and got another verified step of the job. Only
// such a report passes over a step: the agent may be wrong about the step that it names.
func (c *checkpointing) passes(ctx context.Context) (bool, error) {
	p := c.report
	if !p.Failed || p.PassedOverFor == nil || cmp.Or(p.OfJob, p.Job) != p.Job ||
		*p.PassedOverFor == p.Step && p.PassedOverForAttempt == p.OfAttempt {
		return false, nil
	}
	var ok bool
	err := c.tx.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT 1
			FROM checkpoints
			WHERE job = @job AND step = @used AND attempt = @used_of AND state = 'verified')`, c.usedArgs()).Scan(&ok)
	return ok, err
}

// usedArgs names the step that a restore got in the place of the reported one.
func (c *checkpointing) usedArgs() namedArgs {
	return namedArgs{"job": c.report.Job, "used": *c.report.PassedOverFor,
		"used_of": c.report.PassedOverForAttempt}
}

// passOver ends the passing over of the step that the restore got. It adds the event of the step that the restores
// after this one take last, unless they did so before: changed is false.
func (c *checkpointing) passOver(ctx context.Context, changed bool) error {
	_, err := c.tx.Exec(ctx, `
		UPDATE checkpoints
		SET passed_over = false
		WHERE job = @job AND step = @used AND attempt = @used_of AND passed_over`, c.usedArgs())
	if err != nil || !changed {
		return err
	}
	p := c.report
	return addEvent(ctx, c.tx, p.Job, wire.Event{
		Kind: wire.EventCheckpointPassedOver, Attempt: p.Attempt, Actor: AgentActor(c.machine),
		Detail: fmt.Sprintf("step %d of attempt %d: the object store did not return it again and again, and returned "+
			"step %d, from which the job goes on; step %d stays stored: %s", p.Step, p.OfAttempt, *p.PassedOverFor,
			p.Step, p.Bad),
		Facts: &wire.EventFacts{Step: &p.Step},
	})
}

// rejectSource adds the events of a damaged checkpoint from which the job started: to the job
// that saved the step, and to the job that could not start from it.
func (c *checkpointing) rejectSource(ctx context.Context) error {
	p := c.report
	found := wire.Event{
		Kind: wire.EventCheckpointRejected, Attempt: p.OfAttempt, Actor: AgentActor(c.machine),
		Detail: fmt.Sprintf("step %d of attempt %d: found by job %s, which started from it: %s", p.Step, p.OfAttempt,
			p.Job, p.Bad),
		Facts: &wire.EventFacts{Step: &p.Step, Job: p.Job},
	}
	if err := addEvent(ctx, c.tx, p.OfJob, found); err != nil {
		return err
	}
	return addEvent(ctx, c.tx, p.Job, wire.Event{
		Kind: wire.EventCheckpointRejected, Attempt: p.Attempt, Actor: AgentActor(c.machine),
		Detail: fmt.Sprintf("step %d of attempt %d of job %s: %s", p.Step, p.OfAttempt, p.OfJob, p.Bad),
		Facts:  &wire.EventFacts{Step: &p.Step, Job: p.OfJob},
	})
}
