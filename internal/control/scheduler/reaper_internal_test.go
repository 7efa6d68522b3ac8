package scheduler

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"berth"
	"berth/db"
)

// slowVerdicts counts verdicts, each of which takes as long as each.
type slowVerdicts struct {
	clock time.Time
	each  time.Duration
	count int
}

func (v *slowVerdicts) PassVerdict(context.Context, db.Term, berth.MachineID, db.Silence) (db.Verdict, error) {
	v.count++
	v.clock = v.clock.Add(v.each)
	return db.Verdict{}, nil
}

// A pass ends its verdicts after judgeFor, so that the rest of the pass follows. The next pass goes on with them.
func TestSlowVerdictsEndAPass(t *testing.T) {
	t.Parallel()
	for each, want := range map[time.Duration]int{0: 20, judgeFor / 4: 5, 2 * judgeFor: 1} {
		v := &slowVerdicts{clock: time.Now(), each: each}
		r := &reaper{
			Scheduler: &Scheduler{Options: Options{Logger: slog.New(slog.DiscardHandler)}, writes: writes{verdicts: v}},
			now:       func() time.Time { return v.clock },
		}
		if err := r.judgeAll(t.Context(), make([]db.Overdue, 20), 1); err != nil {
			t.Fatal(err)
		}
		if v.count != want {
			t.Errorf("%d verdicts of %s each in one pass, want %d", v.count, each, want)
		}
	}
}

// A machine whose link flaps freezes verdicts again and again. Machines that are dead are nevertheless lost in the end:
// after three graces between freezes, a freeze holds no verdict beyond its end.
func TestF27FlapsHoldVerdictsForThreeGracesAtMost(t *testing.T) {
	t.Parallel()
	const grace, silence, heard = time.Minute, 25 * time.Second, 40 * time.Second
	var w thaw
	now := time.Now()
	var unheld time.Duration // between freezes, until the first freeze that holds nothing
	for at := now; ; at = at.Add(silence + heard) {
		hold := w.pass(at, true, grace)
		if !hold {
			break
		}
		if unheld += heard; unheld > time.Hour {
			t.Fatal("freezes hold verdicts for ever")
		}
		w.pass(at.Add(silence), false, grace)
		now = at.Add(silence)
	}
	if unheld < 3*grace || unheld > 3*grace+heard {
		t.Errorf("verdicts were held for %s between freezes", unheld)
	}
	// A freeze within a grace of the last one holds nothing either: one verdict a minute may be passed.
	now = now.Add(heard + silence)
	w.pass(now, false, grace)
	if w.pass(now.Add(grace/2), true, grace) {
		t.Error("the next freeze holds verdicts again")
	}
	// Once the machines were heard for longer than a grace, a freeze counts again.
	w.pass(now.Add(2*grace), false, grace)
	w.pass(now.Add(3*grace+time.Second), false, grace)
	if !w.pass(now.Add(4*grace), true, grace) {
		t.Error("a freeze that follows no other holds no verdict")
	}
}

// The freeze of a term that has just begun holds verdicts, however long it lasts.
func TestALongFreezeHoldsVerdicts(t *testing.T) {
	t.Parallel()
	var w thaw
	now := time.Now()
	for range 1000 {
		if now = now.Add(time.Second); !w.pass(now, true, time.Minute) {
			t.Fatal("a freeze holds no verdict")
		}
	}
}

// A freeze holds verdicts also if no machine was silent for hours before it: no earlier freeze has held any.
func TestF28AFreezeAfterAnyCalmHoldsVerdicts(t *testing.T) {
	t.Parallel()
	const grace, every, long = time.Minute, time.Second, time.Hour
	for _, calm := range []time.Duration{grace / 2, grace, grace + every, 2 * grace, holds * grace, 5 * grace, long} {
		var w thaw
		now := time.Now()
		// The second freeze follows another one, and a calm as long as the first.
		for n := range 2 {
			for end := now.Add(calm); now.Before(end); now = now.Add(every) {
				if w.pass(now, false, grace) {
					t.Fatal("a pass without a freeze holds verdicts")
				}
			}
			for end := now.Add(long); now.Before(end); now = now.Add(every) {
				if !w.pass(now, true, grace) {
					t.Fatalf("freeze %d, after a calm of %s, holds no verdict", n+1, calm)
				}
			}
		}
	}
}
