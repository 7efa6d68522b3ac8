package db

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/failure"
	"berth/wire"
)

// tell stores the effects of a report on its job: state changes, the image digest and
// events. tell does nothing unless the job's row is locked.
func (r *reporting) tell(ctx context.Context, a *reportedRow, p wire.RankReport, ended bool) error {
	j := r.jobs[a.Job]
	if j == nil || j.Attempt != a.Attempt {
		return nil
	}
	j.moves = j.moves || p.Phase == berth.PhasePrepared || p.Phase == berth.PhaseRunning
	if j.Digest == "" {
		j.newDigest = p.ImageDigest
	}
	// These events belong to the first report of a prepared member; repeated reports add
	// none.
	if p.Restored != nil && a.prepared {
		if err := r.restored(ctx, a, *p.Restored); err != nil {
			return err
		}
	}
	if a.prepared {
		for _, f := range p.Fetched {
			if err := r.event(ctx, a, wire.EventFetched,
				fmt.Sprintf("member %d on %s: %s", a.Rank, r.machine, f)); err != nil {
				return err
			}
		}
		if err := r.compareInputs(ctx, a, p.Fetched); err != nil {
			return err
		}
	}
	if p.Warning != "" {
		if err := r.warn(ctx, a, p.Warning); err != nil {
			return err
		}
	}
	if ended && a.exit != nil && !plain(*a.exit) {
		return r.event(ctx, a, wire.EventExited, describeExit(a, r.machine))
	}
	return nil
}

// restored records the checkpoint step from which an attempt continues.
func (r *reporting) restored(ctx context.Context, a *reportedRow, step int64) error {
	_, err := r.tx.Exec(ctx, `
		UPDATE attempts
		SET resume_from = @step
		WHERE job = @job AND attempt = @attempt AND resume_from IS DISTINCT FROM @step`,
		namedArgs{"job": a.Job, "attempt": a.Attempt, "step": step})
	if err != nil {
		return fmt.Errorf("store restored step: %w", err)
	}
	e := wire.Event{
		Kind: wire.EventRestored, Detail: fmt.Sprintf("member %d resumes from step %d", a.Rank, step),
		Facts: &wire.EventFacts{Step: &step},
	}
	var parts int
	err = r.tx.QueryRow(ctx, `
		SELECT o.source::text, coalesce(o.parts, 0)
		FROM job_sources o
		WHERE o.job = @job AND o.array_index = -1 AND o.step = @step
		  AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.job = @job AND c.step = @step AND c.state = 'verified')`,
		namedArgs{"job": a.Job, "step": step}).Scan(&e.Facts.Job, &parts)
	if err != nil && !isNoRows(err) {
		return fmt.Errorf("read source of job %s: %w", a.Job, err)
	}
	if e.Facts.Job != "" {
		e.Detail += " of job " + string(e.Facts.Job)
		if parts > 0 {
			e.Detail += " with the parts of " + plural(parts, "member")
		}
	}
	return r.eventOf(ctx, a, e)
}

// describeExit returns the text of an exit for the job's history.
func describeExit(a *reportedRow, m berth.MachineID) string {
	x := a.exit
	about := fmt.Sprintf("member %d on %s: ", a.Rank, m)
	if x.Cause == failure.CauseOrdered && x.Started() && !x.OOMKilled {
		return about + fmt.Sprintf("stopped on request (exit code %d)", x.Code)
	}
	var parts []string
	if x.Started() && x.Cause != failure.CauseVanished { // a removed container has no exit code
		parts = append(parts, fmt.Sprintf("exit code %d", x.Code))
	}
	if x.OOMKilled {
		parts = append(parts, "out of memory")
	}
	if x.Message != "" {
		parts = append(parts, x.Message)
	} else if x.Cause != failure.CauseExited {
		parts = append(parts, string(x.Cause))
	}
	return about + strings.Join(parts, ", ")
}

// compareInputs adds a warning for each input with another content address than in the
// latest attempt that recorded the input, which may be this attempt by another member. It
// then records the addresses of this member's inputs that its attempt has not recorded yet.
// An input on which members differ gets one warning, however many members differ, so that
// it does not use up maxWarnings.
func (r *reporting) compareInputs(ctx context.Context, a *reportedRow, fetched []wire.Fetched) error {
	if len(fetched) == 0 {
		return nil
	}
	now := map[string]berth.Address{}
	for _, f := range fetched {
		now[f.What] = f.Address
	}
	args := namedArgs{"job": a.Job, "attempt": a.Attempt, "now": now}
	rows, err := r.tx.Query(ctx, `
		SELECT x.key, coalesce((
				SELECT s.spec -> 'inputs' -> substring(x.key FROM '^inputs.([0-9]+).$')::int ->> 'from'
				FROM job_specs s
				WHERE s.job = @job), x.key), x.value, earlier.attempt, earlier.address
		FROM jsonb_each_text(@now) x
		CROSS JOIN LATERAL (
			SELECT t.attempt, t.inputs ->> x.key AS address
			FROM attempts t
			WHERE t.job = @job AND t.attempt <= @attempt AND t.inputs ? x.key
			ORDER BY t.attempt DESC
			LIMIT 1) earlier
		WHERE earlier.address <> x.value
		ORDER BY x.key`, args)
	if err != nil {
		return fmt.Errorf("compare inputs: %w", err)
	}
	var what, from string
	var is, was berth.Address
	var attempt int
	type change struct{ about, text string } // about: the part of text that is equal for all members
	var changes []change
	_, err = pgx.ForEachRow(rows, []any{&what, &from, &is, &attempt, &was}, func() error {
		how, before := fmt.Sprintf("has changed since attempt %d", attempt), fmt.Sprintf("attempt %d", attempt)
		if attempt == a.Attempt {
			how, before = "changed while the members of this attempt fetched it", "an earlier member"
		}
		about := fmt.Sprintf("%s (%.200s) %s: ", what, from, how)
		said := about + fmt.Sprintf("member %d reads %s, %s read %s", a.Rank, is.Short(), before, was.Short())
		if strings.HasPrefix(from, "file://") {
			said += "; files of folders that are local to each machine count as different"
		}
		changes = append(changes, change{about, said})
		return nil
	})
	if err != nil {
		return fmt.Errorf("compare inputs: %w", err)
	}
	for _, c := range changes {
		if err := r.warnOf(ctx, a, c.about, c.text); err != nil {
			return err
		}
	}
	_, err = r.tx.Exec(ctx, `
		UPDATE attempts
		SET inputs = @now::jsonb || coalesce(inputs, '{}')
		WHERE job = @job AND attempt = @attempt AND NOT coalesce(inputs, '{}') @> @now`, args)
	if err != nil {
		return fmt.Errorf("note inputs: %w", err)
	}
	return nil
}

// event adds an event about the member without further facts.
func (r *reporting) event(ctx context.Context, a *reportedRow, kind wire.EventKind, detail string) error {
	return r.eventOf(ctx, a, wire.Event{Kind: kind, Detail: detail})
}

// eventOf adds an event about the member and fills in the member and its machine as facts.
func (r *reporting) eventOf(ctx context.Context, a *reportedRow, e wire.Event) error {
	r.touched[a.Job] = true
	if e.Facts == nil {
		e.Facts = &wire.EventFacts{}
	}
	e.Facts.Rank, e.Facts.Machine = &a.Rank, r.machine
	e.Attempt, e.Actor = a.Attempt, r.actor
	return addEvent(ctx, r.tx, a.Job, e)
}

// maxWarnings bounds the warnings in the history of one attempt. A job that repeats a
// mistake with ever new texts must not grow its history without bound.
const maxWarnings = 50

// warn adds a warning to the attempt's history, once per text and up to maxWarnings.
func (r *reporting) warn(ctx context.Context, a *reportedRow, text string) error {
	return r.warnOf(ctx, a, "", text)
}

// warnOf is warn with a prefix: if about is not empty, an attempt gets only one warning
// that begins with about.
func (r *reporting) warnOf(ctx context.Context, a *reportedRow, about, text string) error {
	var told, before int // warnings equal to this one, and all of the attempt
	err := r.tx.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE detail = @text OR @about <> '' AND starts_with(detail, @about)), count(*)
		FROM job_events
		WHERE job = @job AND kind = 'warning' AND attempt = @attempt`,
		namedArgs{"job": a.Job, "attempt": a.Attempt, "about": about, "text": text}).Scan(&told, &before)
	switch {
	case err != nil || told > 0 || before >= maxWarnings:
		return err
	case before == maxWarnings-1:
		text += " (too many warnings; further ones are only in the agent's log)"
	}
	return r.event(ctx, a, wire.EventWarning, text)
}

// release releases an orphan after its machine has confirmed the end. lockMore has locked
// the job's row, under which the event is numbered.
func (r *reporting) release(ctx context.Context, a *reportedRow, why string) error {
	a.State, a.changed = berth.AllocReleased, true
	r.freed = true
	return r.event(ctx, a, wire.EventReleased,
		fmt.Sprintf("member %d of attempt %d: machine %s is back and reports: %s", a.Rank, a.Attempt, r.machine, why))
}
