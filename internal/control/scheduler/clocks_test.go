package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/scheduler"
	"berth/spec"
	"berth/wire"
)

// tower is Temporal's schedules, as the leader sees them.
type tower struct {
	mu       sync.Mutex
	clocks   map[berth.ScheduleID]db.Clock
	unlisted bool // visibility knows none of them
	away     bool
	mute     int // answers to be lost, of successful calls
	lists    int
	calls    []string // the changes
}

func (x *tower) change(what string, id berth.ScheduleID, f func()) (existed bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.away {
		return false, errors.New("connection refused")
	}
	_, existed = x.clocks[id]
	x.calls = append(x.calls, what)
	f()
	return existed, nil
}

func (x *tower) SetClock(_ context.Context, c db.Clock) error {
	_, err := x.change(fmt.Sprintf("set %s paused %t", c.Name, c.Paused), c.Schedule, func() { x.clocks[c.Schedule] = c })
	x.mu.Lock()
	defer x.mu.Unlock()
	if err == nil && x.mute > 0 {
		x.mute--
		return errors.New("deadline exceeded")
	}
	return err
}

func (x *tower) RemoveClock(_ context.Context, id berth.ScheduleID) (bool, error) {
	return x.change("remove", id, func() { delete(x.clocks, id) })
}

func (x *tower) Clocks(_ context.Context, each func(berth.ScheduleID, string)) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lists++
	for id, c := range x.clocks {
		if !x.unlisted {
			each(id, c.Revision)
		}
	}
	return nil
}

func (x *tower) ClockRevision(_ context.Context, id berth.ScheduleID) (string, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.clocks[id].Revision, nil
}

func (x *tower) has(id berth.ScheduleID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, ok := x.clocks[id]
	return ok
}

func (x *tower) edit(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f()
}

func (x *tower) did() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.calls)
}

// fires keeps which times were to be decided, and leaves them to the database.
type fires struct {
	r  *rig
	mu sync.Mutex
	at []time.Time
}

func (f *fires) Fire(ctx context.Context, id berth.ScheduleID, at time.Time) (wire.FireResult, error) {
	f.mu.Lock()
	f.at = append(f.at, at.UTC())
	f.mu.Unlock()
	s, err := f.r.db.Schedules.GetByID(ctx, id)
	if err != nil {
		return wire.FireResult{}, err
	}
	return f.r.db.Schedules.Fire(ctx, db.Firing{Schedule: s, At: at})
}

func (f *fires) times() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.at)
}

// leadClocks leads with a tower, at short intervals.
func (r *rig) leadClocks() (*tower, *fires) {
	x, f := &tower{clocks: map[berth.ScheduleID]db.Clock{}}, &fires{r: r}
	r.lead(func(o *scheduler.Options) {
		o.Clocks, o.Fires, o.ReconcileEvery = x, f, 20*time.Millisecond
	})
	return x, f
}

func (r *rig) schedule(name string, edit func(*spec.Schedule)) berth.ScheduleID {
	r.t.Helper()
	s := spec.Schedule{Name: name, Cron: "@hourly", Job: &spec.Job{Image: "busybox"}}
	if edit != nil {
		edit(&s)
	}
	made, _, err := r.db.Schedules.Create(r.t.Context(), db.NewSchedule{Tenant: "default", Spec: s.WithDefaults(), Actor: "user:test"})
	if err != nil {
		r.t.Fatal(err)
	}
	return made.ID
}

// compares waits until all was compared twice more, with passes in between.
func (r *rig) compares(x *tower) {
	r.t.Helper()
	lists := func() (n int) { x.edit(func() { n = x.lists }); return n }
	before := lists()
	r.await("rows and clocks are compared", func() bool { return lists() >= before+3 })
}

// knownAsSet reports whether the rows say that all clocks are as they should be.
func (r *rig) knownAsSet() bool {
	r.t.Helper()
	return value[int](r, `SELECT count(*) FROM schedules WHERE revision <> clock_revision`) == 0
}

func TestClocksFollowTheRowsWhicheverCallIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x, _ := r.leadClocks()
	x.edit(func() { x.away = true })
	id := r.schedule("hours", nil)
	r.await("the call fails", func() bool {
		return strings.Contains(r.log.String(), "cannot set the clock of a schedule")
	})
	x.edit(func() { x.away = false })
	r.await("the clock is set", func() bool { return x.has(id) })
	if err := r.db.Schedules.Pause(t.Context(), "default", "hours", ""); err != nil {
		t.Fatal(err)
	}
	r.await("the clock is stopped", func() bool { return slices.Contains(x.did(), "set hours paused true") })

	r.await("it is known as set", r.knownAsSet)
	before := x.did()
	r.compares(x)
	if after := x.did(); len(after) != len(before) {
		t.Errorf("over what is sound it did %v", after[len(before):])
	}

	x.edit(func() { delete(x.clocks, id) })
	r.await("a lost clock is set again", func() bool { return x.has(id) })
	x.edit(func() { x.clocks[id] = db.Clock{Schedule: id, Name: "hours"} }) // somebody changed it
	r.await("a changed clock is set again", func() bool { rev, _ := x.ClockRevision(t.Context(), id); return rev != "" })
	stray := berth.NewScheduleID(time.Now())
	x.edit(func() { x.clocks[stray] = db.Clock{Schedule: stray} })
	r.await("a clock without a row goes", func() bool { return !x.has(stray) })

	x.edit(func() { x.away = true })
	if err := r.db.Schedules.Delete(t.Context(), "default", "hours"); err != nil {
		t.Fatal(err)
	}
	x.edit(func() { x.away = false })
	r.await("the clock goes, and then the row", func() bool { return value[int](r, `SELECT count(*) FROM schedules`) == 0 })
	if x.has(id) {
		t.Error("the row went before the clock")
	}
}

func TestVisibilityThatLagsIsNotBelieved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x, _ := r.leadClocks()
	id := r.schedule("hours", nil)
	r.await("the clock is known as set", func() bool { return x.has(id) && r.knownAsSet() })
	x.edit(func() { x.unlisted = true })
	before := len(x.did())
	r.compares(x)
	if did := x.did(); len(did) != before {
		t.Errorf("it did %v", did[before:])
	}
}

// gaps is how many of the last minutes a schedule has not fired for.
const gaps = `
	SELECT count(*)
	FROM generate_series($2::timestamptz - interval '7 minutes', $2, interval '1 minute') AS due
	WHERE NOT EXISTS (SELECT 1 FROM schedule_fires WHERE schedule = $1 AND at = due AND status <> 'due')`

func eachMinute(s *spec.Schedule) {
	s.Cron, s.Every, s.CatchUp, s.Overlap = "", spec.Duration(time.Minute), spec.Duration(10*time.Minute), spec.OverlapAllow
}

// The leader that set the clock may have died before it caught up the earlier times, or before
// the answer arrived: its successor finds the clock set.
func TestTimesBeforeAClockAreCaughtUpThoughItWasSetWithoutAWord(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x, _ := r.leadClocks()
	x.edit(func() { x.away = true })
	id := r.schedule("minutes", eachMinute)
	r.exec(`UPDATE schedules SET active_since = now() - interval '1 hour'`)
	last := value[time.Time](r, `SELECT date_trunc('minute', now())`)
	x.edit(func() { x.away, x.mute = false, 1 })
	r.await("the clock is known as set", r.knownAsSet)
	r.await("what came without a clock is caught up", func() bool { return value[int](r, gaps, id, last) == 0 })
}

func TestTimesAfterAResumeThatTemporalHeardOfLateAreCaughtUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x, _ := r.leadClocks()
	id := r.schedule("minutes", func(s *spec.Schedule) { eachMinute(s); s.Paused = true })
	r.await("the clock is set", func() bool { return x.has(id) })
	x.edit(func() { x.away = true })
	if err := r.db.Schedules.Resume(t.Context(), "default", "minutes", ""); err != nil {
		t.Fatal(err)
	}
	r.exec(`UPDATE schedules SET active_since = now() - interval '1 hour'`)
	last := value[time.Time](r, `SELECT date_trunc('minute', now())`)
	x.edit(func() { x.away = false })
	r.await("what came since the resume is caught up", func() bool { return value[int](r, gaps, id, last) == 0 })
}

func TestTimesWithoutAClockAreCaughtUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.schedule("minutes", eachMinute)
	paused := r.schedule("paused", func(s *spec.Schedule) { s.Paused = true })
	// There was no leader for an hour, and Temporal lost its schedules half an hour ago.
	r.exec(`UPDATE schedules SET active_since = now() - interval '1 hour'`)
	r.exec(`
		INSERT INTO schedule_fires (schedule, at, source, status, reason, over, decided_at)
		VALUES ($1, date_trunc('minute', now()) - interval '5 minutes', 'clock', 'skipped', '{}', true, now())`, id)
	last := value[time.Time](r, `SELECT date_trunc('minute', now())`) // others come due while the test runs
	r.leadClocks()
	r.await("what came within ten minutes is caught up", func() bool { return value[int](r, gaps, id, last) == 0 })
	if n := value[int](r, `SELECT count(*) FROM schedule_fires WHERE schedule = $1 AND at < $2::timestamptz - interval '12 minutes'`, id, last); n != 0 {
		t.Errorf("%d times of before were caught up", n)
	}
	if s := value[string](r, `SELECT string_agg(status, ' ') FROM schedule_fires WHERE schedule = $1 AND reason = '{}'`, id); s != "skipped" {
		t.Errorf("what had fired is now %s", s)
	}
	if n := value[int](r, `SELECT count(*) FROM schedule_fires WHERE schedule = $1`, paused); n != 0 {
		t.Errorf("a paused schedule fired %d times", n)
	}
}

func TestAScheduleWithoutTimesHasNoClock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.schedule("once", func(s *spec.Schedule) {
		s.Cron, s.At = "", &spec.Instant{Time: time.Now().Add(-time.Minute)}
	})
	r.exec(`UPDATE schedules SET active_since = now() - interval '1 hour'`) // Temporal was away at its time
	x, f := r.leadClocks()
	r.await("its time is caught up", func() bool { return len(f.times()) > 0 })
	r.compares(x)
	at := f.times()
	if at = slices.CompactFunc(at, time.Time.Equal); x.has(id) || len(at) != 1 { // a decision that failed is repeated
		t.Errorf("has a clock: %t; fired %v", x.has(id), at)
	}
}

func TestABufferedFireComesWhenTheJobHasEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// It has no time of its own that could come while the test runs.
	id := r.schedule("years", func(s *spec.Schedule) { s.Cron, s.Overlap = "@yearly", spec.OverlapBuffer })
	x, f := r.leadClocks()
	now := time.Now().UTC().Truncate(time.Second)
	first, err := f.Fire(t.Context(), id, now.Add(-time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if waits, err := f.Fire(t.Context(), id, now); err != nil || waits.Status != wire.FireBuffered {
		t.Fatalf("%+v, %v", waits, err)
	}
	r.compares(x)
	if n := len(f.times()); n != 2 {
		t.Errorf("the buffered fire was tried %d times while the job lived", n-2)
	}
	if _, err := r.db.Jobs.RequestCancel(t.Context(), "default", first.Job, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	r.await("it is submitted", func() bool {
		return value[int](r, `SELECT count(*) FROM schedule_fires WHERE status = 'submitted'`) == 2
	})
}
