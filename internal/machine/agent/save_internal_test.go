package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/activities/node"
	"berth/spec"
	"berth/wire"
)

// signaled is an engine that records the signals to a container, by the time since the start.
type signaled struct {
	node.Runtime
	from time.Time
	got  []time.Duration
	lose int // signals that fail first
}

func (s *signaled) Signal(context.Context, string, string) error {
	if s.lose > 0 {
		s.lose--
		return errors.New("no engine")
	}
	s.got = append(s.got, time.Since(s.from))
	return nil
}

// saving is the plan of a container that starts now, of a job with checkpoint.interval.
func saving(t *testing.T, engine *signaled, dir string, interval time.Duration) *stopPlan {
	t.Helper()
	claimed := &claim{Claim: wire.Claim{Spec: spec.Job{
		Checkpoint: &spec.CheckpointPolicy{Path: "/checkpoint", Signal: "SIGUSR1", Interval: spec.Duration(interval)},
	}}}
	c := &core{identity: &identity{}, ctx: t.Context(), log: slog.New(slog.DiscardHandler), runtime: engine,
		reports: testReporter(1), claim: claimed}
	return &stopPlan{core: c, orders: newOrders(), scratch: &scratch{dir: dir}, gpus: &gpuHealth{}, health: &engineHealth{}, begun: engine.from,
		uploader: &checkpointUploader{}}
}

// steerUntil steers as the watch phase does until a time after the start.
func steerUntil(plan *stopPlan, engine *signaled, end time.Duration) {
	for time.Since(engine.from) < end {
		next := plan.steer(nil, &hangWatch{core: plan.core})
		time.Sleep(min(next, end-time.Since(engine.from)))
	}
}

// A drain orders a job with an interval to save. The signal is sent at once, and once, but never
// before the first one of the interval: a program without a handler would be ended by it.
func TestOrderToSave(t *testing.T) {
	t.Parallel()
	const interval = time.Minute
	for _, c := range []struct {
		name    string
		order   time.Duration // after the start; negative: before it
		restart time.Duration // of the agent, after the start; 0: never
		lose    int
		want    []time.Duration // the signals within 150 s
	}{
		{"no order", time.Hour, 0, 0, []time.Duration{60 * time.Second, 120 * time.Second}},
		{"before the start", -time.Second, 0, 0, []time.Duration{60 * time.Second, 120 * time.Second}},
		{"soon after the start", 10 * time.Second, 0, 0, []time.Duration{60 * time.Second, 120 * time.Second}},
		{"later", 80 * time.Second, 0, 0, []time.Duration{60 * time.Second, 80 * time.Second, 140 * time.Second}},
		{"before the agent restarts", 80 * time.Second, 90 * time.Second, 0,
			[]time.Duration{60 * time.Second, 80 * time.Second, 150 * time.Second}},
		{"before the agent restarts in the first interval", 10 * time.Second, 20 * time.Second, 0,
			[]time.Duration{80 * time.Second, 140 * time.Second}},
		{"after the agent has restarted in the first interval", 30 * time.Second, 20 * time.Second, 0,
			[]time.Duration{60 * time.Second, 120 * time.Second}},
		{"the engine fails once", 80 * time.Second, 0, 2, []time.Duration{81 * time.Second, 141 * time.Second}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				engine := &signaled{from: time.Now(), lose: c.lose}
				plan := saving(t, engine, dir, interval)
				ordered := false
				order := func() {
					ordered = true
					plan.orders.take(berth.Orders{Save: 7}, 0)
				}
				if c.order < 0 {
					order()
				}
				plan.begin()
				events := []time.Duration{151 * time.Second}
				events = append(events, max(0, c.order), c.restart)
				slices.Sort(events)
				for _, at := range events {
					if at > 151*time.Second {
						break
					}
					steerUntil(plan, engine, at)
					if at == c.restart && at > 0 {
						adopted := saving(t, engine, dir, interval)
						adopted.orders.take(plan.orders.standing(), 0)
						adopted.adopt(plan.scratch.memo(), engine.from)
						adopted.begin()
						plan = adopted
					}
					if at == c.order && !ordered {
						order()
					}
				}
				if !slices.Equal(engine.got, c.want) {
					t.Errorf("signals at %v, want %v", engine.got, c.want)
				}
			})
		})
	}
}
