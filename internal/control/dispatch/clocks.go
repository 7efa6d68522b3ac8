package dispatch

import (
	"context"
	"errors"
	"fmt"
	"strings"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"berth"
	"berth/db"
	"berth/internal/control/calendar"
	"berth/internal/lib/overload"
	"berth/spec"
	"berth/wire"
)

// TemporalSchedules keeps one Temporal Schedule for each schedule, its clock. All methods
// may be called concurrently.
type TemporalSchedules struct{ calls *Calls }

// SetClock creates or updates the Temporal Schedule of a schedule from its row.
func (s *TemporalSchedules) SetClock(ctx context.Context, c db.Clock) error {
	o, err := clockOptions(c)
	if err != nil {
		return err
	}
	schedules := s.calls.temporal.ScheduleClient()
	exists := false
	err = s.calls.Call(ctx, overload.Start, func(ctx context.Context) error {
		_, err := schedules.Create(ctx, o)
		if exists = errors.Is(err, temporal.ErrScheduleAlreadyRunning); exists {
			return nil
		}
		return err
	})
	if exists {
		err = s.calls.Call(ctx, overload.Start, func(ctx context.Context) error {
			return schedules.GetHandle(ctx, o.ID).Update(ctx,
				client.ScheduleUpdateOptions{DoUpdate: func(client.ScheduleUpdateInput) (*client.ScheduleUpdate,
					error) {
					return &client.ScheduleUpdate{Schedule: &client.Schedule{
						Spec: &o.Spec, Action: o.Action,
						Policy: &client.SchedulePolicies{Overlap: o.Overlap, CatchupWindow: o.CatchupWindow},
						State:  &client.ScheduleState{Note: o.Note, Paused: o.Paused},
					}}, nil
				}})
		})
	}
	if err != nil {
		return fmt.Errorf("set the clock of schedule %s: %w", c.Schedule, err)
	}
	return nil
}

// RemoveClock removes a schedule's Temporal Schedule. It reports whether there
// was one.
func (s *TemporalSchedules) RemoveClock(ctx context.Context, id berth.ScheduleID) (existed bool, err error) {
	err = s.calls.Call(ctx, overload.Start, func(ctx context.Context) error {
		return s.calls.temporal.ScheduleClient().GetHandle(ctx, berth.TemporalScheduleID(id)).Delete(ctx)
	})
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("remove the clock of schedule %s: %w", id, err)
	}
	return true, nil
}

// Clocks calls each for every schedule in Temporal, with the row's revision at its last
// update. The list comes from visibility, some seconds late: confirm with ClockRevision
// before acting on an entry.
func (s *TemporalSchedules) Clocks(ctx context.Context, each func(id berth.ScheduleID, revision string)) error {
	err := s.calls.list(ctx, func(ctx context.Context) error {
		list, err := s.calls.temporal.ScheduleClient().List(ctx, client.ScheduleListOptions{PageSize: pageSize})
		for err == nil && list.HasNext() {
			var entry *client.ScheduleListEntry
			if entry, err = list.Next(); err != nil {
				break
			}
			if id, ok := berth.ScheduleOfTemporal(entry.ID); ok {
				each(id, revisionOf(entry.Note, entry.Paused))
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list the clocks of schedules: %w", err)
	}
	return nil
}

// ClockRevision returns the revision of the row from which a schedule in Temporal was made, from
// Temporal's own state and not from visibility. It returns "" for an absent schedule, and for one
// that somebody has changed in Temporal.
func (s *TemporalSchedules) ClockRevision(ctx context.Context, id berth.ScheduleID) (string, error) {
	var x *client.ScheduleDescription
	err := s.calls.Call(ctx, overload.Sweep, func(ctx context.Context) (err error) {
		x, err = s.calls.temporal.ScheduleClient().GetHandle(ctx, berth.TemporalScheduleID(id)).Describe(ctx)
		return err
	})
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("describe the clock of schedule %s: %w", id, err)
	}
	state := x.Schedule.State
	if state == nil {
		return "", nil
	}
	return revisionOf(state.Note, state.Paused), nil
}

// Temporal's own note on a schedule names the revision of the row. A manual pause in
// Temporal replaces the note, so it is detected.
const (
	notePrefix = "berth "
	notePaused = " paused"
)

// noteOf returns the note for a schedule in Temporal. The note contains the row's revision.
func noteOf(c db.Clock) string {
	note := notePrefix + c.Revision
	if c.Paused {
		note += notePaused
	}
	if c.Note != "" {
		note += ": " + c.Note
	}
	return note
}

// revisionOf returns the revision in a note, or "" if the note is not Berth's or its paused
// state differs from the schedule's.
func revisionOf(note string, paused bool) string {
	text, ok := strings.CutPrefix(note, notePrefix)
	if !ok {
		return ""
	}
	text, _, _ = strings.Cut(text, ":")
	revision, wasPaused := strings.CutSuffix(text, notePaused)
	if paused != wasPaused {
		return ""
	}
	return revision
}

// clockOptions returns a schedule in Temporal's form: its times, and the one workflow that each
// time starts. That workflow ends at once, so Temporal's policy for overlaps does not matter.
func clockOptions(c db.Clock) (client.ScheduleOptions, error) {
	times, fault := calendar.Read(c.Spec)
	if fault != nil {
		return client.ScheduleOptions{}, berth.Errorf(berth.CodeInvalid, "schedule %s: %s %s", c.Name,
			fault.Field, fault.Detail)
	}
	return client.ScheduleOptions{
		ID:   berth.TemporalScheduleID(c.Schedule),
		Spec: timesOf(times, c),
		Action: &client.ScheduleWorkflowAction{
			ID:        berth.FireWorkflowID(c.Schedule),
			Workflow:  berth.WorkflowFire,
			Args:      []any{wire.FireInput{Schedule: c.Schedule}},
			TaskQueue: berth.QueueControl,
			TypedSearchAttributes: temporal.NewSearchAttributes(tenantAttribute.ValueSet(string(c.Tenant)),
				kindAttribute.ValueSet(spec.KindSchedule)),
			StaticSummary: c.Name,
		},
		Overlap:       enumspb.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL,
		CatchupWindow: c.Spec.CatchUp.Std(),
		Note:          noteOf(c),
		Paused:        c.Paused,
	}, nil
}

// timesOf returns the times of a schedule in Temporal's form.
func timesOf(times calendar.Calendar, c db.Clock) client.ScheduleSpec {
	fields, zone := times.Fields()
	temporalSpec := client.ScheduleSpec{TimeZoneName: zone, Jitter: c.Spec.Jitter.Std()}
	for _, f := range fields {
		temporalSpec.Calendars = append(temporalSpec.Calendars, client.ScheduleCalendarSpec{
			Second: ranges(f.Seconds), Minute: ranges(f.Minutes), Hour: ranges(f.Hours),
			DayOfMonth: ranges(f.Days), Month: ranges(f.Months), DayOfWeek: ranges(f.Weekdays), Year: ranges(f.Years),
		})
	}
	if every := times.Every(); every > 0 {
		temporalSpec.Intervals = []client.ScheduleIntervalSpec{{Every: every}}
	}
	return temporalSpec
}

// ranges writes a set of numbers as runs of neighbours.
func ranges(f calendar.Field) []client.ScheduleRange {
	var runs []client.ScheduleRange
	for _, n := range f {
		if last := len(runs) - 1; last >= 0 && runs[last].End == n-1 {
			runs[last].End = n
			continue
		}
		runs = append(runs, client.ScheduleRange{Start: n, End: n})
	}
	return runs
}
