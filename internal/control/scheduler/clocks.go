package scheduler

import (
	"context"
	"fmt"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/calendar"
	"berth/spec"
	"berth/wire"
)

// Clocks gives the leader access to Temporal's schedules. Each schedule of Berth
// has one as its clock.
type Clocks interface {
	// SetClock creates or updates the clock from the row.
	SetClock(ctx context.Context, c db.Clock) error
	RemoveClock(ctx context.Context, id berth.ScheduleID) (existed bool, err error)
	// Clocks calls each for every clock, with the revision from which it was made. The
	// list may lag.
	Clocks(ctx context.Context, each func(id berth.ScheduleID, revision string)) error
	// ClockRevision returns the revision from which a clock was made, without a lag; ""
	// for an absent clock, and for one that was changed in Temporal.
	ClockRevision(ctx context.Context, id berth.ScheduleID) (string, error)
}

// Fires decides the fires of schedules.
type Fires interface {
	Fire(ctx context.Context, id berth.ScheduleID, at time.Time) (wire.FireResult, error)
}

// clocks keeps Temporal's schedules equal to the rows, and decides the fires
// without a signal of a clock: of backfills, of buffered times, and of times
// without a clock. It acts on hints, and makes a pass as often as the
// reconciler. A pass over sound rows writes nothing.
type clocks struct {
	*Scheduler
	term   db.Term
	passes int
}

// run sets clocks and decides fires at each hint and at least every ReconcileEvery.
func (c *clocks) run(ctx context.Context) error {
	hints := c.DB.Hub().Subscribe(db.TopicClock, "*")
	defer hints.Close()
	tick := time.NewTicker(c.ReconcileEvery)
	defer tick.Stop()
	for {
		c.pass(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-hints.C:
		case <-tick.C:
			c.compare(ctx)
		}
	}
}

// pass sets all clocks and decides all fires that are due. A failure delays only
// its own item, which the next tick repeats.
func (c *clocks) pass(ctx context.Context) {
	list, err := c.DB.Schedules.UnsetClocks(ctx, passLimit)
	if err != nil {
		c.failed(ctx, "cannot read schedules", "", err)
		return
	}
	set := 0
	for _, s := range list {
		if err := c.tell(ctx, s); err != nil {
			c.failed(ctx, "cannot set the clock of a schedule", s.Schedule, err)
			if !c.Poker.Healthy() {
				break // Temporal does not answer: not one of them will do
			}
			continue
		}
		set++
	}
	c.did("clock_set", set)
	fires, err := c.DB.Schedules.PendingFires(ctx, passLimit)
	if err != nil {
		c.failed(ctx, "cannot read schedule fires", "", err)
		return
	}
	decided := 0
	for _, f := range fires {
		if _, err := c.writes.fires.Fire(ctx, f.Schedule, f.At); err != nil {
			c.failed(ctx, "cannot decide a fire", f.Schedule, err)
			continue
		}
		decided++
	}
	if decided == passLimit {
		c.DB.Hub().Publish(db.TopicClock, string(fires[0].Schedule)) // there are more
	}
}

// failed logs a failure that a later pass repeats.
func (c *clocks) failed(ctx context.Context, what string, id berth.ScheduleID, err error) {
	if ctx.Err() == nil {
		c.Logger.Warn(what+", will retry", "schedule_id", id, "err", err)
	}
}

// The method tell updates one clock from its row, and records the update in the row.
func (c *clocks) tell(ctx context.Context, s db.Clock) error {
	if err := c.put(ctx, s); err != nil {
		return err
	}
	if s.Deleted {
		return c.DB.Schedules.Forget(ctx, c.term, s.Schedule)
	}
	if !s.Paused {
		if err := c.catchUp(ctx, s); err != nil {
			return err
		}
	}
	return c.DB.Schedules.ClockSet(ctx, c.term, s.Schedule, s.Revision)
}

// put sets the clock of a schedule with a future time, and removes every other clock: Temporal
// drops a schedule without future times sooner or later.
func (c *clocks) put(ctx context.Context, s db.Clock) error {
	if !s.Deleted {
		times, fault := calendar.Read(s.Spec)
		if fault != nil {
			return unreadable(fault)
		}
		if !times.Next(time.Now()).IsZero() {
			return c.writes.clocks.SetClock(ctx, s)
		}
	}
	_, err := c.writes.clocks.RemoveClock(ctx, s.Schedule)
	return err
}

// unreadable returns the error for a stored schedule that this version cannot read.
func unreadable(f *berth.FieldError) error { return fmt.Errorf("%s %s", f.Field, f.Detail) }

// catchUp fires the times without a clock: Temporal was away when the schedule was
// created or resumed, or has lost the clock. A clock that exists now proves nothing:
// a call with a lost answer, or a leader that then died, may have set it a moment
// ago. Earlier fires are on record.
func (c *clocks) catchUp(ctx context.Context, s db.Clock) error {
	times, fault := calendar.Read(s.Spec)
	if fault != nil {
		return unreadable(fault)
	}
	now := time.Now()
	from := now.Add(-s.Spec.CatchUp.Std())
	if s.Since.After(from) {
		from = s.Since.Add(time.Nanosecond)
	}
	n, err := c.DB.Schedules.AddFires(ctx, db.NewFires{Schedule: s.Schedule,
		Times: times.Last(from, now, spec.MaxBackfill), Source: wire.FireByClock})
	c.did("fire_caught_up", n)
	return err
}

// compare periodically compares Temporal's schedules with the rows. The next pass
// sets missing clocks again; clocks without a row are removed.
func (c *clocks) compare(ctx context.Context) {
	c.passes++
	if c.passes%compareEvery != 0 || !c.Poker.Healthy() {
		return
	}
	if err := c.compareAll(ctx); err != nil {
		c.failed(ctx, "cannot compare the clocks of schedules", "", err)
	}
}

// compareAll marks set clocks that Temporal lacks as unset, and removes Temporal's schedules that
// have no row.
func (c *clocks) compareAll(ctx context.Context) error {
	has := map[berth.ScheduleID]string{}
	// Temporal's list before the rows: a clock has a row until after its removal.
	if err := c.Clocks.Clocks(ctx, func(id berth.ScheduleID, revision string) { has[id] = revision }); err != nil {
		return err
	}
	rows, err := c.DB.Schedules.Clocks(ctx)
	if err != nil {
		return err
	}
	var lost []berth.ScheduleID
	for _, s := range rows {
		revision, listed := has[s.Schedule]
		delete(has, s.Schedule)
		if !s.Set || listed && revision == s.Revision || len(lost) >= passLimit {
			continue
		}
		if gone, err := c.isLost(ctx, s); err != nil {
			return err
		} else if gone {
			lost = append(lost, s.Schedule)
		}
	}
	if len(lost) > 0 {
		if err := c.DB.Schedules.ClocksLost(ctx, c.term, lost); err != nil {
			return err
		}
		c.did("clock_lost", len(lost))
	}
	return c.removeStrays(ctx, has)
}

// isLost confirms that Temporal lacks the present revision of a clock. The list may be behind.
func (c *clocks) isLost(ctx context.Context, s db.Clock) (bool, error) {
	times, fault := calendar.Read(s.Spec)
	if fault != nil || times.Next(time.Now()).IsZero() {
		return false, nil
	}
	revision, err := c.Clocks.ClockRevision(ctx, s.Schedule)
	return revision != s.Revision, err
}

// removeStrays removes clocks without a row, such as the clocks of schedules that a
// restored backup does not contain.
func (c *clocks) removeStrays(ctx context.Context, strays map[berth.ScheduleID]string) error {
	n := 0
	for id := range strays {
		if n >= passLimit {
			break
		}
		existed, err := c.Clocks.RemoveClock(ctx, id)
		if err != nil {
			return err
		}
		if existed {
			n++
		}
	}
	c.did("clock_removed", n)
	return nil
}
