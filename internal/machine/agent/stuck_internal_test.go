package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/spec"
	"berth/wire"
)

// An engine that is away delivers no SIGKILL: its container computes on, and must not be given up.
func TestAContainerIsGivenUpOnlyAfterAMinuteInWhichTheEngineAnswers(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(*fakeruntime.Fake){
		"refuses": func(f *fakeruntime.Fake) {
			f.Intercept(func(fakeruntime.Call) error { return errors.New("connection refused") })
		},
		"hangs": func(f *fakeruntime.Fake) { f.Lag(func(fakeruntime.Call) { time.Sleep(time.Hour) }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			probed(t, func(s *Supervisor, engine *fakeruntime.Fake, _ *bytes.Buffer) {
				id, log := &identity{machine: "m1", alloc: 1}, slog.New(slog.DiscardHandler)
				plan := &stopPlan{
					core: &core{
						identity: id, ctx: context.Background(), log: log, timing: s.cfg.Timing, runtime: engine,
						reports: newReporter(id, log, func() {}),
						claim:   &claim{Claim: wire.Claim{Spec: spec.Job{Inputs: []spec.Input{{Mode: spec.InputMount}}}}},
					},
					stuck: newStuckBoard(), health: s.health,
				}
				kills := func(long time.Duration) {
					for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Second) {
						plan.finish(time.Now())
					}
				}
				time.Sleep(15 * time.Second)
				away(engine)
				plan.stage, plan.killBy = terminates, time.Now()
				kills(10 * time.Minute)
				if n := len(plan.stuck.givenUp()); n > 0 || plan.stuck.longest() > 0 {
					t.Errorf("%d are given up while the engine is away", n)
				}
				engine.Lag(nil)
				engine.Intercept(nil)
				time.Sleep(time.Hour) // calls that hang end
				plan.killBy = time.Now()
				kills(55 * time.Second)
				if n := len(plan.stuck.givenUp()); n > 0 {
					t.Errorf("%d are given up too early", n)
				}
				kills(30 * time.Second)
				if n := len(plan.stuck.givenUp()); n != 1 {
					t.Errorf("%d are given up, want 1", n)
				}
			})
		})
	}
}

// unremovable is an engine that removes no container.
type unremovable struct {
	node.Runtime
	state node.ContainerState
	err   error // of Inspect
}

func (u *unremovable) Remove(context.Context, string) error {
	return errors.New("device or resource busy")
}

func (u *unremovable) Inspect(context.Context, string) (node.Container, error) {
	return node.Container{State: u.state}, u.err
}

// The removal of a container that has ended may fail for long, which keeps nothing from running.
func TestOnlyAContainerThatRunsIsStuckInItsRemoval(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		unremovable
		stuck bool
	}{
		"runs":           {unremovable{state: node.ContainerRunning}, true},
		"has ended":      {unremovable{state: node.ContainerExited}, false},
		"engine is away": {unremovable{state: node.ContainerRunning, err: errors.New("connection refused")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := &removePhase{
					identity: &identity{alloc: 1}, log: slog.New(slog.DiscardHandler), timing: Timing{}.withDefaults(),
					runtime: &c.unremovable, stuck: newStuckBoard(),
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				if err := p.clear(ctx); err == nil {
					t.Error("it is removed")
				}
				if got := p.stuck.longest() > 0; got != c.stuck || len(p.stuck.givenUp()) > 0 {
					t.Errorf("it counts as stuck: %t, want %t", got, c.stuck)
				}
			})
		})
	}
}

// After a restore, the database may give the allocation of a member that the agent has lost to another job.
func TestAMemberThatTheAgentHasLostIsNotGivenUp(t *testing.T) {
	t.Parallel()
	b := newStuckBoard()
	lost, next := &identity{alloc: 1}, &identity{alloc: 1}
	b.add(lost, true)
	b.leave(lost)
	if ids := b.givenUp(); len(ids) != 0 || b.longest() != 0 {
		t.Errorf("allocations %v are given up for a member that is no longer here", ids)
	}
	b.add(lost, true)
	b.add(next, false)
	b.leave(lost)
	if ids := b.givenUp(); len(ids) != 0 || b.longest() == 0 {
		t.Errorf("allocations %v are given up, want the later member listed and none given up", ids)
	}
}
