package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// ErrScheduleChanged reports that a schedule was changed after the caller of Fire has read it.
// The fire is not decided: read the schedule again, judge its work, and repeat the call.
var ErrScheduleChanged = berth.Errorf(berth.CodeUnavailable, "the schedule was changed meanwhile; try again")

// Apply creates a schedule, or changes the tenant's schedule of that name to n.Spec in place: its
// id, its pause and its fires stay, and running jobs continue. Apply pauses a schedule if n.Spec
// says so, and never resumes one. A repeat changes nothing.
//
//	the schedule         | Apply                  | a fire under way
//	none                 | creates it             | -
//	equal                | changes nothing        | is decided
//	another work         | stores it              | read before: ErrScheduleChanged, repeated with the new work
//	other times          | stores them; times     | of a time that the schedule no longer has: not decided
//	                     | count from now on      |
//	deleted meanwhile    | creates another one    | of the deleted one: not_found
//
// A fire and Apply lock the schedule's row, so one of them comes first.
func (d *Schedules) Apply(ctx context.Context, n NewSchedule) (a wire.AppliedSchedule, err error) {
	var id berth.ScheduleID
	err = d.tx(ctx, func(tx pgx.Tx) error {
		if a, id, err = applySchedule(ctx, tx, n); err != nil || a.Result == wire.ScheduleUnchanged {
			return err
		}
		return keepTenant(ctx, tx, n.Tenant)
	})
	if err != nil {
		return wire.AppliedSchedule{}, mapError(err, "schedule "+n.Spec.Name)
	}
	if a.Result != wire.ScheduleUnchanged {
		d.hub.Publish(TopicClock, string(id))
	}
	a.Schedule, err = d.Get(ctx, n.Tenant, n.Spec.Name, 0)
	return a, err
}

// Holds reports whether the tenant has this schedule already, so that Apply would change nothing.
func (d *Schedules) Holds(ctx context.Context, tenant berth.TenantID, schedule spec.Schedule) (bool, error) {
	found, err := d.Get(ctx, tenant, schedule.Name, 0)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	changes, err := scheduleChanges(found.Schedule, found.Paused, schedule)
	return len(changes) == 0, err
}

// scheduleChanges returns the differences between a stored schedule and the one to apply. The
// pause is a column. Defaults are filled in on both sides, so that a default of a newer version is
// no change.
func scheduleChanges(before spec.Schedule, paused bool, after spec.Schedule) ([]spec.Change, error) {
	before = before.WithDefaults()
	before.Paused, after.Paused = paused, paused || after.Paused
	return spec.Changes(before, after)
}

// applySchedule is Apply in a transaction. The caller then locks the tenant, last in the lock
// order.
func applySchedule(
	ctx context.Context, tx pgx.Tx, n NewSchedule,
) (a wire.AppliedSchedule, id berth.ScheduleID, err error) {
	if err := lockSchedules(ctx, tx, n.Tenant); err != nil {
		return a, "", err
	}
	var before spec.Schedule
	var paused bool
	err = tx.QueryRow(ctx, `
		SELECT id, spec, paused
		FROM schedules
		WHERE tenant = @tenant AND name = @name AND deleted_at IS NULL
		FOR NO KEY UPDATE`, namedArgs{"tenant": n.Tenant, "name": n.Spec.Name}).Scan(&id, &before, &paused)
	if errors.Is(err, pgx.ErrNoRows) {
		id, a.Result = newScheduleID(), wire.ScheduleCreated
		_, err = insertSchedule(ctx, tx, id, n)
		return a, id, err
	}
	if err != nil {
		return a, id, err
	}
	if a.Changes, err = scheduleChanges(before, paused, n.Spec); err != nil {
		return a, id, err
	}
	if a.Result = wire.ScheduleUnchanged; len(a.Changes) == 0 {
		return a, id, nil
	}
	a.Result = wire.ScheduleUpdated
	after := n.Spec
	timed := before.Cron != after.Cron || before.Every != after.Every || before.TimeZone != after.TimeZone ||
		(before.At == nil) != (after.At == nil) || before.At != nil && !before.At.Equal(after.At.Time)
	return a, id, changeSchedule(ctx, tx, id, n, timed)
}

// changeSchedule stores another spec in a schedule's locked row. timed reports that its times are
// other ones: they count from now on, so that none of the past is made up.
func changeSchedule(ctx context.Context, tx pgx.Tx, id berth.ScheduleID, n NewSchedule, timed bool) error {
	pause := n.Spec.Paused
	n.Spec.Paused = false // stored in a column instead
	rawSpec, err := json.Marshal(n.Spec)
	if err != nil {
		return fmt.Errorf("marshal schedule: %w", err)
	}
	uploads, err := bindNeeds(ctx, tx, n.Tenant, n.Spec)
	if err != nil {
		return err
	}
	args := namedArgs{"id": id, "tenant": n.Tenant, "spec": rawSpec, "pause": pause, "timed": timed,
		"revision": berth.NewSecret()[:16], "addresses": addressesOf(uploads)}
	if _, err := tx.Exec(ctx, `
		UPDATE schedules
		SET spec = @spec::jsonb, paused = paused OR @pause, revision = @revision,
			changed_at = clock_timestamp(), updated_at = now(),
			active_since = CASE WHEN @timed THEN now() ELSE active_since END
		WHERE id = @id`, args); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `DELETE FROM schedule_uploads WHERE schedule = @id`, args); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO schedule_uploads (schedule, tenant, address) SELECT @id, @tenant,
		unnest(@addresses::text[])`, args)
	return err
}
