package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.temporal.io/api/serviceerror"
	temporal "go.temporal.io/sdk/client"
	sdk "go.temporal.io/sdk/temporal"

	"berth"
	"berth/spec"
	"berth/wire"
)

const (
	beat    = 2 * time.Second // between the times of a schedule that Temporal fires
	handy   = 4               // schedules without a clock, for cells of fires by hand
	handful = 3               // times of a backfill
)

// shift is a schedule that Temporal fires.
type shift struct {
	*stack
	spec   spec.Schedule
	id     berth.ScheduleID
	paused time.Time
}

// clock is the schedule that comes by the cell's failpoint. The job of its first
// time runs on, so that all others are skipped: they cost nothing.
func (s *stack) clock(c cell, lane string) *work {
	job := s.spec(lane, "trap-term", "0")
	job.Checkpoint = nil
	x := &shift{stack: s, spec: spec.Schedule{Name: job.Name, Every: spec.Duration(beat), Overlap: spec.OverlapSkip, Job: &job}}
	w := &work{attempt: 1, drive: func() error { return nil }, submit: x.create}
	before := x.wantOnTime
	switch c.of {
	case aPause:
		w.ready, w.submit, before = x.wantClock, x.pause, x.wantPaused
	case aDelete:
		w.ready, w.submit, before = x.wantClock, x.drop, func() error { return nil }
	}
	w.ended = func() error { return inTurn(before, x.wantOneJob, x.drop, x.wantGone, x.wantOneJob, x.cancelJob) }
	w.undo = func() error { return inTurn(x.drop, x.wantGone, func() error { return s.cancelAll(x.spec.Name) }) }
	return w
}

// inTurn takes steps until one fails.
func inTurn(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (x *shift) create() error {
	return await("the schedule is made", func() error {
		made, _, err := x.api.CreateSchedule(context.Background(), x.spec)
		x.id = made.ID
		return lasting(err)
	})
}

func (x *shift) pause() error {
	return await("the schedule is paused", func() error {
		_, err := x.api.PauseSchedule(context.Background(), x.spec.Name, "chaos")
		if err == nil && x.paused.IsZero() {
			x.paused = time.Now() // a decision before the commit must not carry a later time
		}
		return lasting(err)
	})
}

func (x *shift) drop() error {
	return await("the schedule is deleted", func() error {
		err := x.api.DeleteSchedule(context.Background(), x.spec.Name)
		if berth.CodeOf(err) == berth.CodeNotFound {
			return nil // by a call whose answer was lost
		}
		return lasting(err)
	})
}

// wantClock makes the schedule, and waits until Temporal has it and a time of it
// has made a job.
func (x *shift) wantClock() error {
	if err := x.create(); err != nil {
		return err
	}
	return await("schedule "+x.spec.Name+" has a clock and has fired", func() error {
		now, err := x.api.Schedule(context.Background(), x.spec.Name, 100)
		submitted := func(f wire.Fire) bool { return f.Status == wire.FireSubmitted }
		if err == nil && (now.Pending || !slices.ContainsFunc(now.Fires, submitted)) {
			err = fmt.Errorf("pending %t, fires %v", now.Pending, now.Fires)
		}
		return err
	})
}

// wantOnTime waits until the schedule has fired for a time that was still to
// come, and for all times before that one.
func (x *shift) wantOnTime() error {
	var next time.Time
	began := time.Now()
	err := await("schedule "+x.spec.Name+" goes on firing", func() error {
		now, err := x.api.Schedule(context.Background(), x.spec.Name, 1)
		if err != nil {
			return err
		}
		if len(now.Fires) == 0 || !now.Fires[0].At.After(began) {
			return fmt.Errorf("its last fire is %v", now.Fires)
		}
		next = now.Fires[0].At
		return nil
	})
	if err != nil {
		return err
	}
	return await("each time of schedule "+x.spec.Name+" is decided", func() error {
		var gaps []time.Time
		err := x.database.QueryRow(context.Background(), `
			SELECT coalesce(array_agg(due ORDER BY due), '{}')
			FROM schedules s, generate_series(to_timestamp(ceil(extract(epoch FROM s.created_at) / $2::int) * $2::int), $3::timestamptz, $2::int * interval '1 second') AS due
			WHERE s.id = $1 AND NOT EXISTS (SELECT 1 FROM schedule_fires f WHERE f.schedule = s.id AND f.at = due AND f.status IN ('submitted', 'skipped'))`,
			x.id, int(beat.Seconds()), next).Scan(&gaps)
		if err == nil && len(gaps) > 0 {
			err = fmt.Errorf("%d times are not, the first is %s", len(gaps), gaps[0])
		}
		return err
	})
}

// wantPaused waits until Temporal knows, and wants each time after the pause that
// comes nevertheless to be left out for it. That none of them makes a job says nothing:
// the first job runs on.
func (x *shift) wantPaused() error {
	err := await("the clock of schedule "+x.spec.Name+" is stopped", func() error {
		now, err := x.api.Schedule(context.Background(), x.spec.Name, 0)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		d, err := x.workflows.ScheduleClient().GetHandle(ctx, berth.TemporalScheduleID(x.id)).Describe(ctx)
		if err == nil && (now.Pending || !d.Schedule.State.Paused) {
			err = fmt.Errorf("pending %t, note %q", now.Pending, d.Schedule.State.Note)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := x.fireLate(); err != nil {
		return err
	}
	return await("the fires of schedule "+x.spec.Name+" are read", func() error {
		var left, others int
		err := x.database.QueryRow(context.Background(), `
			SELECT count(*) FILTER (WHERE reason ->> 'code' = $3), count(*) FILTER (WHERE reason ->> 'code' IS DISTINCT FROM $3)
			FROM schedule_fires
			WHERE schedule = $1 AND at > $2`, x.id, x.paused, berth.ReasonPaused).Scan(&left, &others)
		if err == nil && (left == 0 || others > 0) {
			err = fatal{fmt.Errorf("of the times after its pause at %s %d were left out for it, and %d were not", x.paused, left, others)}
		}
		return err
	})
}

// fireLate acts as a Temporal server that has not received the pause yet: it starts the fire of
// the first time after the pause.
func (x *shift) fireLate() error {
	at := x.paused.Truncate(beat).Add(beat)
	scheduled := sdk.NewSearchAttributeKeyTime(berth.AttributeScheduled)
	return await("a time after the pause of schedule "+x.spec.Name+" is decided", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		run, err := x.workflows.ExecuteWorkflow(ctx, temporal.StartWorkflowOptions{
			ID: berth.FireWorkflowID(x.id) + "-late", TaskQueue: berth.QueueControl, TypedSearchAttributes: sdk.NewSearchAttributes(scheduled.ValueSet(at)),
		}, berth.WorkflowFire, wire.FireInput{Schedule: x.id})
		if err != nil {
			return err
		}
		return run.Get(ctx, nil)
	})
}

// wantGone waits until neither the database nor Temporal knows the schedule.
func (x *shift) wantGone() error {
	return await("schedule "+x.spec.Name+" is gone", func() error {
		var rows int
		if err := x.database.QueryRow(context.Background(), `SELECT count(*) FROM schedules WHERE id::text = $1`, x.id).Scan(&rows); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := x.workflows.ScheduleClient().GetHandle(ctx, berth.TemporalScheduleID(x.id)).Describe(ctx)
		if _, gone := errors.AsType[*serviceerror.NotFound](err); gone && rows == 0 {
			return nil
		}
		return fmt.Errorf("it has %d rows, and Temporal answers %v", rows, err)
	})
}

// wantOneJob wants the first time to have made a job, and no other one: it runs
// on.
func (x *shift) wantOneJob() error {
	jobs, err := x.jobsOf(x.id)
	if err == nil && len(jobs) != 1 {
		err = fmt.Errorf("schedule %s has made the jobs %s, the first of which has not ended", x.spec.Name, jobs)
	}
	return err
}

func (x *shift) cancelJob() error {
	jobs, err := x.jobsOf(x.id)
	if err != nil {
		return err
	}
	if _, err := x.running(jobs[0], 1); err != nil { // before that it would end without an attempt
		return err
	}
	if err := x.cancel(jobs[0]); err != nil {
		return err
	}
	return x.wantCanceled(jobs[0], once)
}

// jobsOf returns the jobs that a schedule has made: exactly one for each submitted time while its
// fires are on record, and no others.
func (s *stack) jobsOf(id berth.ScheduleID, at ...time.Time) (jobs []berth.JobID, err error) {
	var wrong string
	err = await("the jobs of schedule "+string(id)+" are read", func() error {
		return s.database.QueryRow(context.Background(), `
			WITH made AS (
				SELECT j.id, j.idem_key, f.at
				FROM jobs j
				LEFT JOIN schedule_fires f ON f.job = j.id AND f.schedule = $1 AND f.status = 'submitted'
				WHERE j.idem_key LIKE $2 || '%'
			)
			SELECT ARRAY(SELECT id::text FROM made WHERE $3::timestamptz[] IS NULL OR at = ANY($3) ORDER BY at, id), (
				SELECT coalesce(string_agg(format('job %s with key %s is of %s', id, idem_key, at), '; '), '')
				FROM (SELECT m.*, count(*) OVER (PARTITION BY m.at) AS n FROM made m) m
				WHERE EXISTS (SELECT 1 FROM schedules WHERE id = $1) AND (at IS NULL OR n > 1))`,
			id, "schedule/"+string(id)+"/", at).Scan(&jobs, &wrong)
	})
	if err == nil && wrong != "" {
		err = fmt.Errorf("schedule %s: %s", id, wrong)
	}
	return jobs, err
}

// makeSchedules makes schedules whose clock stands still from the beginning.
func (s *stack) makeSchedules() error {
	s.byHand = make(chan string, handy)
	for range handy {
		job := s.spec(calmPlace, "exit", "0")
		job.Checkpoint = nil
		x := &shift{stack: s, spec: spec.Schedule{Name: job.Name, Every: spec.Duration(time.Hour), Overlap: spec.OverlapAllow, Paused: true, Job: &job}}
		if err := x.create(); err != nil {
			return err
		}
		s.byHand <- x.spec.Name
	}
	return nil
}

// fireByHand is a schedule fired by hand, for now or for times that have passed.
func (s *stack) fireByHand(c cell) *work {
	name := <-s.byHand
	began := time.Now().Add(-time.Millisecond)
	w := &work{attempt: 1, drive: func() error { return nil }}
	var given sync.Once
	back := func() error { given.Do(func() { s.byHand <- name }); return nil }
	w.undo = back
	if c.under("api.fire.") {
		w.submit = func() error { return s.runNow(name, began) }
		w.ended = func() error {
			defer back()
			return s.wantFired(name, 1, func(f wire.Fire) bool { return f.Source == wire.FireByHand && f.At.After(began) })
		}
		return w
	}
	// Each backfill is of times that no other one was of.
	to := time.Now().UTC().Truncate(time.Hour).Add(-time.Duration(jobNumber.Add(1)) * handful * time.Hour)
	from := to.Add(-(handful - 1) * time.Hour)
	w.submit = func() error {
		return await("the backfill is answered", func() error {
			_, err := s.api.BackfillSchedule(context.Background(), name, spec.Backfill{From: spec.Instant{Time: from}, To: &spec.Instant{Time: to}})
			return lasting(err)
		})
	}
	w.ended = func() error {
		defer back()
		return s.wantFired(name, handful, func(f wire.Fire) bool {
			return f.Source == wire.FireByBackfill && !f.At.Before(from) && !f.At.After(to)
		})
	}
	return w
}

// runNow fires a schedule as a careful client does: again only once it has read
// that an error has left nothing on record.
func (s *stack) runNow(name string, began time.Time) error {
	doubtful := false
	return await("schedule "+name+" is run", func() error {
		if doubtful {
			now, err := s.api.Schedule(context.Background(), name, handful)
			if err != nil {
				return err
			}
			if slices.ContainsFunc(now.Fires, func(f wire.Fire) bool { return f.At.After(began) }) {
				return nil
			}
		}
		doubtful = true
		_, err := s.api.RunSchedule(context.Background(), name, "")
		return lasting(err)
	})
}

// wantFired waits until so many fires are submitted, and each has made one job,
// which succeeds.
func (s *stack) wantFired(name string, n int, of func(wire.Fire) bool) error {
	var id berth.ScheduleID
	var at []time.Time
	err := await(fmt.Sprintf("schedule %s has fired %d times", name, n), func() error {
		now, err := s.api.Schedule(context.Background(), name, 1000)
		if err != nil {
			return err
		}
		id, at = now.ID, nil
		for _, f := range now.Fires {
			if of(f) && f.Status == wire.FireSubmitted {
				at = append(at, f.At)
			}
		}
		if len(at) < n {
			return fmt.Errorf("%d fires are submitted: %+v", len(at), now.Fires)
		}
		return nil
	})
	if err != nil {
		return err
	}
	jobs, err := s.jobsOf(id, at...)
	if err != nil {
		return err
	}
	if len(jobs) != n || len(at) != n {
		return fmt.Errorf("schedule %s has made %d jobs of %d times, want %d", name, len(jobs), len(at), n)
	}
	for _, job := range jobs {
		if err := s.wantEnded(job, once); err != nil {
			return err
		}
	}
	return nil
}
