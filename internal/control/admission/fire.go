package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/calendar"
	"berth/lifecycle"
	"berth/placement"
	"berth/spec"
	"berth/wire"
)

// CheckSchedule returns every fault of a schedule with its defaults, except faults
// of its times.
func CheckSchedule(s spec.Schedule) []berth.FieldError {
	return checkSchedule(s, placement.CheckConstraint)
}

func checkSchedule(s spec.Schedule, constraint func(string) error) []berth.FieldError {
	faults := s.Validate()
	add := func(prefix string, more []berth.FieldError) {
		for _, f := range more {
			f.Field = prefix + f.Field
			faults = append(faults, f)
		}
	}
	if s.Job != nil {
		add("job.", append(checkOutside(*s.Job, constraint), spec.UnsourcedReshard(*s.Job)...))
	}
	if s.Pipeline != nil {
		add("pipeline.", append(checkSteps(*s.Pipeline, constraint), unsourced(*s.Pipeline)...))
	}
	return faults
}

// AdmitSchedule admits the work of a schedule, by the rules for a submit at this moment.
func (c *Controller) AdmitSchedule(ctx context.Context, tenant berth.TenantID, s spec.Schedule) error {
	switch {
	case s.Job != nil:
		return c.admit(ctx, tenant, "job.", *s.Job)
	case s.Pipeline != nil:
		return c.admitPipeline(ctx, tenant, "pipeline.", *s.Pipeline)
	default:
		return nil // which is a fault
	}
}

// Fire submits the work of a schedule for one of its times, by the rules of any submit, or
// records the refusal on the schedule. Fire is idempotent. The result is empty if the schedule no
// longer exists.
func (c *Controller) Fire(ctx context.Context, id berth.ScheduleID, at time.Time) (wire.FireResult, error) {
	for tries := 1; ; tries++ {
		result, err := c.fire(ctx, id, at)
		if !errors.Is(err, db.ErrScheduleChanged) || tries == fireTries {
			return result, err
		}
	}
}

// fireTries bounds the tries for a schedule that changes all the time. The leader, or Temporal,
// repeats the call.
const fireTries = 5

// fire is one try of Fire: it reads the schedule and judges its work, which may change before the
// decision.
func (c *Controller) fire(ctx context.Context, id berth.ScheduleID, at time.Time) (wire.FireResult, error) {
	s, err := c.db.Schedules.GetByID(ctx, id)
	if err != nil {
		return wire.FireResult{}, unlessGone(err)
	}
	// The defaults were filled in and validated at the creation of the schedule.
	// Another version of this program may have other defaults and rules.
	s.Schedule = s.Schedule.WithDefaults()
	if former, err := c.former(ctx, s, at); former || err != nil {
		return wire.FireResult{}, err
	}
	refused, err := c.refusal(ctx, s)
	if err != nil {
		return wire.FireResult{}, err
	}
	result, err := c.db.Schedules.Fire(ctx, db.Firing{Schedule: s, At: at, Refused: refused})
	return result, unlessGone(err)
}

// former reports whether a time belongs only to the former times of a schedule that was changed:
// its clock is set a moment after the change, and may fire for the former times until then. A
// time with a row was asked for, or is decided already.
func (c *Controller) former(ctx context.Context, s wire.Schedule, at time.Time) (bool, error) {
	if s.ChangedAt == nil {
		return false, nil
	}
	times, fault := calendar.Read(s.Schedule)
	if fault != nil || times.Next(at.Add(-time.Nanosecond)).Equal(at) {
		return false, nil // a fault is recorded as the refusal of the fire
	}
	_, err := c.db.Schedules.FireAt(ctx, s.ID, at)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return true, nil
	}
	return false, err
}

// unlessGone drops the error for a deleted schedule.
func unlessGone(err error) error {
	if berth.CodeOf(err) == berth.CodeNotFound {
		return nil
	}
	return err
}

// refusal returns the reason for which a schedule's work would be refused, or nil. An error means
// that neither is known.
func (c *Controller) refusal(ctx context.Context, s wire.Schedule) (*berth.Reason, error) {
	// The limit of a constraint's cost is for new ones: a schedule from before it goes on.
	if faults := checkSchedule(s.Schedule, placement.CompileConstraint); len(faults) > 0 {
		return lifecycle.WhyRefused(&berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec,
			Message: "the job of the schedule is no longer valid", Fields: faults}), nil
	}
	err := c.AdmitSchedule(ctx, s.Tenant, s.Schedule)
	if why := lifecycle.WhyRefused(err); why != nil || err == nil {
		return why, nil
	}
	return nil, fmt.Errorf("admit the job of schedule %s: %w", s.Name, err)
}
