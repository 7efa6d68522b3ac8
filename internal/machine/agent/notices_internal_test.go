package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/failure"
	"berth/internal/machine/notice"
	"berth/spec"
	"berth/wire"
)

// board returns a board with its state in dir, as a new process opens it.
func board(dir string) *noticeBoard {
	return openNotices(Config{StateDir: dir, Notices: notice.File(filepath.Join(dir, "source"))},
		slog.New(slog.DiscardHandler))
}

// endAt is a notice that the machine ends at a time.
func endAt(at time.Time) notice.State {
	return notice.State{End: &wire.CloudNotice{Kind: wire.NoticeSpot, Deadline: at.UTC().Truncate(time.Second)}}
}

// A notice is signaled at once and once: also in the first interval and without an interval, but not to
// a container that is newer than the notice. Advice is for jobs with an interval, as an order to save.
func TestSignalsOfANotice(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	type act func(b *noticeBoard, plan *stopPlan, engine *signaled)
	show := func(in time.Duration) act {
		return func(b *noticeBoard, _ *stopPlan, engine *signaled) { b.take(endAt(engine.from.Add(in)), nil) }
	}
	advise := func(b *noticeBoard, _ *stopPlan, _ *signaled) { b.take(notice.State{Rebalance: time.Now()}, nil) }
	fail := func(b *noticeBoard, _ *stopPlan, _ *signaled) { b.take(notice.State{}, errors.New("no answer")) }
	withdraw := func(b *noticeBoard, _ *stopPlan, _ *signaled) { b.take(notice.State{}, nil) }
	restart := act(nil)
	s := func(seconds ...int) (list []time.Duration) {
		for _, n := range seconds {
			list = append(list, time.Duration(n)*time.Second)
		}
		return list
	}
	for name, c := range map[string]struct {
		interval time.Duration
		acts     map[int]act // by second after the start
		lose     int
		want     []time.Duration // signals within 150 s
	}{
		"in the first interval":  {hour, map[int]act{10: show(130 * time.Second)}, 0, s(10)},
		"without an interval":    {0, map[int]act{10: show(130 * time.Second)}, 0, s(10)},
		"shown again":            {0, map[int]act{10: show(130 * time.Second), 11: show(130 * time.Second)}, 0, s(10)},
		"its time moves":         {0, map[int]act{10: show(130 * time.Second), 11: show(131 * time.Second), 12: show(90 * time.Second)}, 0, s(10)},
		"after a failed look":    {0, map[int]act{10: show(130 * time.Second), 11: fail, 12: show(130 * time.Second)}, 0, s(10)},
		"withdrawn and the same": {0, map[int]act{10: show(130 * time.Second), 11: withdraw, 12: show(130 * time.Second)}, 0, s(10)},
		"withdrawn and another":  {0, map[int]act{10: show(130 * time.Second), 11: withdraw, 12: show(140 * time.Second)}, 0, s(10, 12)},
		"the agent restarts":     {0, map[int]act{10: show(130 * time.Second), 11: restart, 12: show(130 * time.Second)}, 0, s(10)},
		"the engine fails twice": {0, map[int]act{10: show(130 * time.Second)}, 2, s(12)},
		"before the start":       {0, map[int]act{-1: show(130 * time.Second)}, 0, nil},
		"advice":                 {time.Minute, map[int]act{80: advise}, 0, s(60, 80, 140)},
		"advice in the first":    {time.Minute, map[int]act{10: advise}, 0, s(60, 120)},
		"advice, no interval":    {0, map[int]act{10: advise}, 0, nil},
		"advice and a restart":   {time.Minute, map[int]act{80: advise, 81: restart}, 0, s(60, 80, 141)},
		"advice, then a notice":  {time.Minute, map[int]act{70: advise, 90: show(210 * time.Second)}, 0, s(60, 70, 90, 150)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				engine := &signaled{from: time.Now().Add(time.Second), lose: c.lose}
				b := board(dir)
				plan := saving(t, engine, dir, c.interval)
				plan.notices = b
				if early := c.acts[-1]; early != nil {
					early(b, plan, engine)
				}
				time.Sleep(time.Second)
				plan.begin()
				for second := range 151 {
					steerUntil(plan, engine, time.Duration(second)*time.Second)
					act, acts := c.acts[second]
					switch {
					case acts && act == nil:
						b = board(dir)
						adopted := saving(t, engine, dir, c.interval)
						adopted.notices = b
						adopted.adopt(plan.scratch.memo(), engine.from)
						adopted.begin()
						plan = adopted
					case acts:
						act(b, plan, engine)
					}
					plan.steer(nil, &hangWatch{core: plan.core})
				}
				if !slices.Equal(engine.got, c.want) {
					t.Errorf("signals at %v, want %v", engine.got, c.want)
				}
			})
		})
	}
}

// The stop that follows a notice sends no second checkpoint signal. It waits for a save in progress.
func TestTheStopAfterANotice(t *testing.T) {
	t.Parallel()
	for _, saves := range []bool{true, false} {
		t.Run(fmt.Sprintf("saved %t", saves), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				engine := &signaled{from: time.Now()}
				b := board(dir)
				plan := saving(t, engine, dir, 0)
				plan.notices = b
				plan.uploader.seen.Store(-1)
				steerUntil(plan, engine, 10*time.Second)
				b.take(endAt(engine.from.Add(130*time.Second)), nil)
				plan.steer(nil, &hangWatch{core: plan.core})
				if saves {
					plan.uploader.seen.Store(7)
					plan.uploader.found.Store(time.Now().UnixNano())
				}
				steerUntil(plan, engine, 120*time.Second)
				plan.orders.take(berth.Orders{Checkpoint: true, Stop: true, GraceMS: 40_000}, 0)
				steerUntil(plan, engine, 151*time.Second)
				want := []time.Duration{10 * time.Second, 120 * time.Second} // SIGTERM at once
				if !saves {
					want[1] += 30 * time.Second // three quarters of the grace
				}
				if !slices.Equal(engine.got, want) {
					t.Errorf("signals at %v, want %v", engine.got, want)
				}
			})
		})
	}
}

// A job whose last checkpoint took longer than the lead learns on which one it stands.
func TestAJobLearnsThatItsNextCheckpointIsTooLate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		save, store time.Duration
		want        string
	}{
		{100 * time.Second, 5 * time.Second, ""},
		{100 * time.Second, 15 * time.Second, "within 1m50s; the last checkpoint took 1m55s to write and store, so the job stands on its last complete one, of step 7"},
		{0, 0, ""},
	} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			engine := &signaled{from: time.Now()}
			plan := saving(t, engine, dir, 0)
			plan.notices = board(dir)
			plan.uploader.seen.Store(7)
			plan.saveTook = c.save
			plan.uploader.storing.Store(int64(c.store))
			time.Sleep(10 * time.Second)
			plan.notices.take(endAt(time.Now().Add(2*time.Minute)), nil)
			plan.steer(nil, &hangWatch{core: plan.core})
			report, _, _ := plan.reports.present()
			if (report.Warning == "") != (c.want == "") || !strings.Contains(report.Warning, c.want) {
				t.Errorf("warning %q, want %q", report.Warning, c.want)
			}
		})
	}
	if text := standsOn(*endAt(time.Now()).End, time.Minute, -time.Second, -1); !strings.Contains(text, "within 0s") || !strings.Contains(text, "no complete one") {
		t.Errorf("without a checkpoint: %s", text)
	}
}

func TestExitsAfterANotice(t *testing.T) {
	t.Parallel()
	at := time.Now()
	for _, c := range []struct {
		interval time.Duration
		code     int
		after    time.Duration // the notice
		want     failure.ExitCause
	}{
		{0, 0, time.Second, failure.CauseOrdered}, {0, 3, time.Second, failure.CauseOrdered},
		{time.Hour, 0, time.Second, ""}, {time.Hour, 138, time.Second, failure.CauseOrdered},
		{0, 0, -time.Second, ""}, {0, 3, 13 * time.Minute, ""},
	} {
		plan := saving(t, &signaled{}, t.TempDir(), c.interval)
		plan.claim.Spec.Checkpoint.Interval = spec.Duration(c.interval)
		plan.heeds = heeded{Notice: "n", At: at, Until: at.Add(2 * time.Minute)}
		if got, _ := plan.exitOnNotice(c.code, at.Add(c.after)); got != c.want {
			t.Errorf("interval %s, code %d, after %s: %q", c.interval, c.code, c.after, got)
		}
	}
}

// The header is sent until a confirmation, again in a new session, and again for an earlier time.
func TestReportsOfANotice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := board(dir)
		b.repeat = 5 * time.Second
		due := func(want bool) {
			t.Helper()
			if got, _ := b.due(time.Now()); (got != "") != want {
				t.Errorf("due %q, want %t", got, want)
			}
		}
		due(false)
		first := endAt(time.Now().Add(2 * time.Minute))
		b.take(first, nil)
		due(true)
		b.pause(first.End.String())
		due(false)
		if b.header() == "" {
			t.Error("the header waits as well")
		}
		time.Sleep(5 * time.Second)
		due(true)
		b.confirm("spot 2026-01-01T00:00:00Z")
		due(true)
		b.confirm(first.End.String())
		due(false)
		b.reportAgain()
		due(true)
		b.confirm(first.End.String())
		b.take(endAt(first.End.Deadline.Add(time.Minute)), nil) // the earliest time counts
		due(false)
		b.take(endAt(first.End.Deadline.Add(-time.Minute)), nil)
		due(true)
		b = board(dir)
		due(true)
		if want := endAt(first.End.Deadline.Add(-time.Minute)).End; *b.present().End != *want {
			t.Errorf("a new process has %v", b.present().End)
		}
		time.Sleep(20 * time.Minute)
		b = board(dir)
		due(false) // it did not come true
	})
}

// The server is informed once all running containers have their signals, but no later than the hold after the notice.
func TestTheReportOfANoticeWaitsForSignals(t *testing.T) {
	t.Parallel()
	const hold = 500 * time.Millisecond
	type side struct {
		b       *noticeBoard
		plans   []*stopPlan // the first two run
		engines []*signaled
		steer   func(n int)
	}
	for name, c := range map[string]struct {
		act  func(x side)
		want time.Duration // from the notice to the report
	}{
		"all have theirs": {func(x side) {
			x.steer(0)
			time.Sleep(100 * time.Millisecond)
			x.steer(1)
		}, 100 * time.Millisecond},
		"one is busy": {func(x side) { x.steer(0) }, hold},
		"the engine refuses once": {func(x side) {
			x.engines[1].lose = 1
			x.steer(0)
			x.steer(1)
		}, hold},
		"one ends before its signal": {func(x side) {
			x.steer(0)
			time.Sleep(100 * time.Millisecond)
			x.b.leave(x.plans[1])
		}, 100 * time.Millisecond},
		"one ends on its signal": {func(x side) {
			x.steer(0)
			time.Sleep(100 * time.Millisecond)
			x.b.leave(x.plans[0])
		}, 100 * time.Millisecond},
		"one is stopped": {func(x side) {
			x.plans[0].orders.take(berth.Orders{Kill: true}, 0)
			x.steer(0)
			x.steer(1)
		}, 0},
		"another starts": {func(x side) {
			x.b.join(x.plans[2])
			x.steer(0)
			x.steer(1)
			time.Sleep(200 * time.Millisecond)
			x.steer(2)
		}, 200 * time.Millisecond},
		"no container has a signal": {func(x side) {
			x.b.leave(x.plans[0])
			x.b.leave(x.plans[1])
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
			synctest.Test(t, func(t *testing.T) {
				x := side{b: board(dirs[0])}
				x.b.hold = hold
				for _, dir := range dirs {
					engine := &signaled{from: time.Now()}
					plan := saving(t, engine, dir, 0)
					plan.notices = x.b
					x.plans, x.engines = append(x.plans, plan), append(x.engines, engine)
				}
				x.b.join(x.plans[0])
				x.b.join(x.plans[1])
				x.steer = func(n int) { x.plans[n].steer(nil, &hangWatch{core: x.plans[n].core}) }
				time.Sleep(time.Minute)
				noticed, woken := time.Now(), make(chan struct{}, 1)
				x.b.deliver = func() { notify(woken) }
				x.b.take(endAt(time.Now().Add(2*time.Minute)), nil)
				reported := make(chan time.Duration)
				go func() {
					for {
						value, at := x.b.due(time.Now())
						if (value == "") != (x.b.header() == "") {
							t.Errorf("due %q, and the header of other calls is %q", value, x.b.header())
						}
						if value != "" {
							reported <- time.Since(noticed)
							return
						}
						select {
						case <-woken:
						case <-time.After(time.Until(at)):
						}
					}
				}()
				synctest.Wait()
				c.act(x)
				if got := <-reported; got != c.want {
					t.Errorf("reported after %s, want %s", got, c.want)
				}
			})
		})
	}
}
