package agent_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/internal/machine/agent"
	"berth/spec"
)

// looking is an engine that counts the belt's looks at the containers of any cluster.
type looking struct {
	*fakeruntime.Fake
	looks atomic.Int64
}

func (l *looking) List(ctx context.Context, labels map[string]string) ([]node.Container, error) {
	if len(labels) == 1 {
		l.looks.Add(1)
	}
	return l.Fake.List(ctx, labels)
}

// belted sets a short limit.
func belted(cfg agent.Config) agent.Config {
	cfg.ShutdownAfter, cfg.Timing.BeltEvery = 100*time.Millisecond, 5*time.Millisecond
	return cfg
}

// runs runs an agent's process until the test ends it, and returns its result.
func runs(t *testing.T, cfg agent.Config) <-chan error {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done <- agent.Run(ctx, cfg)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return done
}

func unneeded(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if !errors.Is(err, agent.ErrUnneeded) {
			t.Errorf("the agent ends with %v", err)
		}
	case <-time.After(patience):
		t.Error("the agent runs on")
	}
}

func TestMachineThatDoesNotJoinIsUnneeded(t *testing.T) {
	t.Parallel()
	for name, closed := range map[string]bool{"its token is rejected": false, "the control plane is away": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.gate.closed.Store(closed)
			fake := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
			t.Cleanup(fake.Shutdown)
			cfg := s.config(&machine{s: s, id: "m1", logs: &lockedBuffer{}}, fake, "berthjoin_000000000000_none")
			unneeded(t, runs(t, belted(cfg)))
		})
	}
}

// A fault that passes neither ends the agent nor keeps the machine from work.
func TestBeltedAgentRunsAgainAfterAFault(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	j, err := s.db.JoinTokens.Create(t.Context(), spec.NewJoinToken{}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	fake := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	t.Cleanup(fake.Shutdown)
	m := &machine{s: s, id: "m1", logs: &lockedBuffer{}}
	cfg := s.config(m, fake, j.Secret)
	cfg.ShutdownAfter, cfg.Timing.RerunMin, cfg.Timing.RerunMax = time.Hour, time.Millisecond, time.Millisecond
	if err := os.WriteFile(cfg.StateDir, nil, 0o600); err != nil { // no folder can be made
		t.Fatal(err)
	}
	done := runs(t, cfg)
	s.until("the agent has failed twice", func() bool {
		return strings.Count(m.logs.text(), `msg="agent failed, will retry"`) >= 2
	})
	if err := os.Remove(cfg.StateDir); err != nil {
		t.Fatal(err)
	}
	s.until("the machine serves", func() bool {
		select {
		case err := <-done:
			t.Fatalf("the agent ends: %v", err)
		default:
		}
		return s.machineState("m1") == berth.MachineReady
	})
}

// A second agent on the same state folder must not shut the machine of the first one down.
func TestSecondAgentOfABeltedMachineDoesNotEndIt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	select {
	case err := <-runs(t, belted(m.cfg)):
		if err == nil || errors.Is(err, agent.ErrUnneeded) || !strings.Contains(err.Error(), "in use by another agent") {
			t.Errorf("the second agent ends with %v", err)
		}
	case <-time.After(patience):
		t.Error("the second agent waits")
	}
}

// No control plane ends a machine that was removed from the cluster, so the machine ends itself.
func TestRetiredMachineIsUnneeded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Machines.Retire(t.Context(), "m1", "operator:test"); err != nil {
		t.Fatal(err)
	}
	unneeded(t, runs(t, belted(m.cfg)))
}

// A process that starts in an outage has no members; a container of the process before it keeps the machine.
func TestContainerKeepsAMachineInAnOutage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.run(s.submit(nil, "sleep", "1h"))
	m.until("the container runs", func() bool {
		all, err := m.runtime.List(t.Context(), map[string]string{berth.LabelMachine: "m1"})
		return err == nil && len(all) == 1 && all[0].State == node.ContainerRunning
	})
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	s.gate.closed.Store(true)
	engine := &looking{Fake: m.runtime}
	m.cfg.Runtime = engine
	done := runs(t, belted(m.cfg))
	lives := func(what string) {
		t.Helper()
		seen := engine.looks.Load()
		s.until("the belt looks again", func() bool { return engine.looks.Load() > seen+50 })
		select {
		case err := <-done:
			t.Fatalf("%s, and the agent ends: %v", what, err)
		default:
		}
	}
	lives("a container runs")
	all, err := m.runtime.List(t.Context(), map[string]string{berth.LabelMachine: "m1"})
	if err != nil || len(all) != 1 {
		t.Fatalf("containers %+v, %v", all, err)
	}
	m.runtime.Silence(all[0].Name, true)
	lives("a container may run")
	m.runtime.Silence(all[0].Name, false)
	m.runtime.Exit(all[0].Name, 0)
	lives("a container has results to report")
	m.runtime.Vanish(all[0].Name)
	unneeded(t, done)
}
