package db_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// bell is a schedule whose fire times are counted in minutes from the start of the test.
type bell struct {
	*stage
	it    wire.Schedule
	start time.Time
}

func (s *stage) bell(edit func(*spec.Schedule)) *bell {
	s.t.Helper()
	return &bell{s, s.schedule(edit), time.Now().UTC().Truncate(time.Second)}
}

func (b *bell) at(minute int) time.Time { return b.start.Add(time.Duration(minute) * time.Minute) }

// fire fires one time of the schedule and returns the result.
func (b *bell) fire(minute int) wire.FireResult {
	b.t.Helper()
	r, err := b.db.Schedules.Fire(b.t.Context(), db.Firing{Schedule: b.it, At: b.at(minute)})
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// wants compares the statuses of all fires, in order of time.
func (b *bell) wants(want ...wire.FireStatus) {
	b.t.Helper()
	x, err := b.db.Schedules.Get(b.t.Context(), "default", "nightly", 1000)
	if err != nil {
		b.t.Fatal(err)
	}
	var got []wire.FireStatus
	for _, f := range slices.Backward(x.Fires) {
		got = append(got, f.Status)
		if (f.Job != nil) != (f.Status == wire.FireSubmitted) || f.Status != wire.FireSubmitted && f.Status != wire.FireDue && f.Reason == nil {
			b.t.Errorf("fire is %+v", f)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		b.t.Errorf("fires (-want +got):\n%s", diff)
	}
}

func (b *bell) jobs() int { return one[int](b.stage, `SELECT count(*) FROM jobs WHERE parent IS NULL`) }

func TestAFireThatComesTwentyTimesMakesOneJob(t *testing.T) {
	t.Parallel()
	b := newStage(t).bell(func(x *spec.Schedule) { x.Overlap = spec.OverlapAllow })
	var mu sync.Mutex
	got := map[wire.FireResult]int{}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			r, err := b.db.Schedules.Fire(t.Context(), db.Firing{Schedule: b.it, At: b.at(0)})
			if err != nil {
				t.Errorf("fire: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			got[r]++
		})
	}
	wg.Wait()
	if len(got) != 1 || b.jobs() != 1 {
		t.Errorf("results are %v, and there are %d jobs", got, b.jobs())
	}
	b.wants(wire.FireSubmitted)
	for r := range got {
		job := b.job(r.Job)
		key := one[string](b.stage, `SELECT idem_key FROM jobs WHERE id = $1`, r.Job)
		if job.Name != "nightly" || key != berth.FireKey(b.it.ID, b.at(0)) {
			t.Errorf("job is %+v with key %s", job, key)
		}
		if actor := one[string](b.stage, `SELECT actor FROM job_events WHERE job = $1`, r.Job); actor != "schedule:nightly" {
			t.Errorf("submitted by %s", actor)
		}
	}
}

func TestOverlapGoesByWhetherJobsHaveEnded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		overlap spec.Overlap
		during  []wire.FireStatus // statuses of two fires while the first job is live
		after   []wire.FireStatus // statuses of all fires after the first job ended and the schedule fired once more
	}{
		{spec.OverlapSkip, []wire.FireStatus{"skipped", "skipped"}, []wire.FireStatus{"submitted", "skipped", "skipped", "submitted"}},
		{spec.OverlapBuffer, []wire.FireStatus{"buffered", "skipped"}, []wire.FireStatus{"submitted", "submitted", "skipped", "buffered"}},
		{spec.OverlapAllow, []wire.FireStatus{"submitted", "submitted"}, []wire.FireStatus{"submitted", "submitted", "submitted", "submitted"}},
		{spec.OverlapCancel, []wire.FireStatus{"submitted", "submitted"}, []wire.FireStatus{"submitted", "submitted", "submitted", "submitted"}},
	} {
		t.Run(string(c.overlap), func(t *testing.T) {
			t.Parallel()
			b := newStage(t).bell(func(x *spec.Schedule) { x.Overlap = c.overlap })
			first := b.fire(0)
			if got := []wire.FireStatus{b.fire(1).Status, b.fire(2).Status}; !slices.Equal(got, c.during) {
				t.Errorf("while the first job lives: %v", got)
			}
			canceled := berth.Submitted
			if c.overlap == spec.OverlapCancel {
				canceled = berth.Canceled
			}
			if job := b.job(first.Job); job.Status != canceled {
				t.Errorf("the first job is %s, %+v", job.Status, job.Reason)
			}
			if b.pending() != "[]" {
				t.Errorf("pending while it lives: %s", b.pending())
			}
			if job := b.job(first.Job); !job.Status.Terminal() {
				b.cancel(first.Job)
			}
			if c.overlap == spec.OverlapBuffer {
				if want := fmt.Sprint([]db.FireRef{{Schedule: b.it.ID, At: b.at(1)}}); b.pending() != want {
					t.Errorf("pending is %s", b.pending())
				}
				if got := b.fire(3); got.Status != wire.FireSkipped { // one fire is buffered already
					t.Errorf("while one waits: %+v", got)
				}
				mustExec(t, b.pool, `DELETE FROM schedule_fires WHERE at = $1`, b.at(3))
				b.fire(1)
			}
			b.fire(3)
			b.wants(c.after...)
		})
	}
}

func TestCancelOtherCancelsWhatRunsAndUndoesItIfNothingFollows(t *testing.T) {
	t.Parallel()
	b := newStage(t).bell(func(x *spec.Schedule) {
		x.Overlap = spec.OverlapCancel
		x.Job.Array = &spec.Array{Size: 3}
	})
	first := b.fire(0)
	b.tend(first.Job)
	mustExec(t, b.pool, `UPDATE tenants SET max_queued = 0 WHERE id = 'default'`)
	if got := b.fire(1); got.Status != wire.FireRefused {
		t.Errorf("beyond the quota: %+v", got)
	}
	if job := b.job(first.Job); job.Status.Terminal() || job.Status == berth.Canceling {
		t.Errorf("the job that was to make way is %s", job.Status)
	}
	mustExec(t, b.pool, `UPDATE tenants SET max_queued = NULL WHERE id = 'default'`)
	b.fire(2)
	if job := b.job(first.Job); job.Status != berth.Canceled || job.Reason.Code != berth.ReasonOverlap {
		t.Errorf("the array that was to make way is %s, %+v", job.Status, job.Reason)
	}
	b.wants(wire.FireSubmitted, wire.FireRefused, wire.FireSubmitted)
}

func TestARefusalIsOnRecordAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	b := newStage(t).bell(func(x *spec.Schedule) {
		p := graph(spec.FailFast, "a", "b")
		x.Job, x.Pipeline = nil, &p
	})
	mustExec(t, b.pool, `UPDATE tenants SET max_queued = 1 WHERE id = 'default'`) // the second step exceeds the quota
	if got := b.fire(0); got.Status != wire.FireRefused || b.jobs() != 0 {
		t.Errorf("got %+v, and %d jobs", got, b.jobs())
	}
	why := lifecycle.WhyRefused(berth.Errorf(berth.CodeCapacity, "no machine could ever hold it"))
	if r, err := b.db.Schedules.Fire(t.Context(), db.Firing{Schedule: b.it, At: b.at(1), Refused: why}); err != nil || r.Status != wire.FireRefused {
		t.Errorf("refused from outside: %+v, %v", r, err)
	}
	x, err := b.db.Schedules.Get(t.Context(), "default", "nightly", 10)
	if err != nil || len(x.Fires) != 2 {
		t.Fatal(x.Fires, err)
	}
	if r := x.Fires[1].Reason; r.Code != "quota" || !strings.Contains(r.Message, "max_queued") {
		t.Errorf("reason is %+v", r)
	}
	if r := x.Fires[0].Reason; r.Code != "capacity" || r.Message != "no machine could ever hold it" {
		t.Errorf("reason is %+v", r)
	}
	mustExec(t, b.pool, `UPDATE tenants SET max_queued = NULL WHERE id = 'default'`)
	if b.fire(0); b.jobs() != 0 {
		t.Error("a refusal was forgotten when the fire came again")
	}
	if b.fire(2); b.jobs() != 1 {
		t.Errorf("the next fire made %d pipelines", b.jobs())
	}
	if err := lifecycle.WhyRefused(berth.Errorf(berth.CodeUnavailable, "the database is away")); err != nil {
		t.Errorf("an outage counts as a refusal: %+v", err)
	}
}

func TestTheClockDoesNotFireWhatIsPausedOrTooLate(t *testing.T) {
	t.Parallel()
	b := newStage(t).bell(func(x *spec.Schedule) { x.CatchUp = spec.Duration(10 * time.Minute) })
	if got := b.fire(-20); got.Status != wire.FireMissed {
		t.Errorf("20 minutes late: %+v", got)
	}
	if err := b.db.Schedules.Pause(t.Context(), "default", "nightly", ""); err != nil {
		t.Fatal(err)
	}
	if got := b.fire(-1); got.Status != wire.FireSkipped {
		t.Errorf("paused: %+v", got)
	}
	n, err := b.db.Schedules.AddFires(t.Context(), db.NewFires{Schedule: b.it.ID, Times: []time.Time{b.at(0)}, Source: wire.FireByHand})
	if err != nil || n != 1 {
		t.Fatal(n, err)
	}
	if got := b.fire(0); got.Status != wire.FireSubmitted {
		t.Errorf("by hand: %+v", got)
	}
	b.wants(wire.FireMissed, wire.FireSkipped, wire.FireSubmitted)
}

func TestABackfillFiresWhatHasMadeNoJob(t *testing.T) {
	t.Parallel()
	b := newStage(t).bell(nil)
	b.fire(-3)
	b.fire(-2) // skipped: the first job is live
	fill := func(want int) {
		t.Helper()
		n, err := b.db.Schedules.AddFires(t.Context(), db.NewFires{
			Schedule: b.it.ID, Times: []time.Time{b.at(-3), b.at(-2), b.at(-1)}, Source: wire.FireByBackfill, Overlap: spec.OverlapAllow, Again: true,
		})
		if err != nil || n != want {
			t.Errorf("%d fires are due, %v; want %d", n, err, want)
		}
	}
	fill(2)
	b.wants(wire.FireSubmitted, wire.FireDue, wire.FireDue)
	fill(0)
	if want := fmt.Sprint([]db.FireRef{{Schedule: b.it.ID, At: b.at(-2)}, {Schedule: b.it.ID, At: b.at(-1)}}); b.pending() != want {
		t.Errorf("pending is %s", b.pending())
	}
	b.fire(-2)
	b.fire(-1)
	b.wants(wire.FireSubmitted, wire.FireSubmitted, wire.FireSubmitted)
	fill(0)
	if b.jobs() != 3 {
		t.Errorf("%d jobs", b.jobs())
	}
	n, err := b.db.Schedules.AddFires(t.Context(), db.NewFires{Schedule: b.it.ID, Times: []time.Time{b.at(-3), b.at(-4)}, Source: wire.FireByClock})
	if err != nil || n != 1 {
		t.Errorf("caught up with %d fires, %v; want those of the one time that was not fired", n, err)
	}
}

// TestAKeyThatSomebodyTookIsARefusal checks that a fire is refused when a user who knows the schedule's id
// has used its idempotency key for another job. The user harms only the user's own tenant, and the refusal is
// recorded.
func TestAKeyThatSomebodyTookIsARefusal(t *testing.T) {
	t.Parallel()
	b := newStage(t).bell(nil)
	theirs := submission("other", berth.FireKey(b.it.ID, b.at(0)))
	if _, _, err := b.db.Jobs.Submit(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	same := db.Submission{Tenant: "default", Spec: *b.it.Job, IdemKey: berth.FireKey(b.it.ID, b.at(1)), Actor: "user:test"}
	job, _, err := b.db.Jobs.Submit(t.Context(), same)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.fire(0); got.Status != wire.FireRefused {
		t.Errorf("another body: %+v", got)
	}
	if got := b.fire(1); got.Status != wire.FireSubmitted || got.Job != job.ID {
		t.Errorf("the same body: %+v, want job %s", got, job.ID)
	}
}
