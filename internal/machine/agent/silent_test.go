package agent_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node/fakeruntime"
	"berth/failure"
	"berth/spec"
)

func (s *site) engineSilent(id berth.MachineID) bool {
	s.t.Helper()
	m, err := s.db.Machines.Get(s.t.Context(), "", id)
	return err == nil && m.EngineSilentSince != nil
}

func TestF53AMachineWhoseEngineHangsGetsNoNewWork(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.cfg.Timing.EngineProbe, m.cfg.Timing.ProbePatience, m.cfg.Timing.EnginePatience = 20*time.Millisecond, time.Second, time.Hour
	m.restart()
	running := s.submit(nil, "sleep", "1h")
	was, _ := m.run(running)
	m.running(was)

	free, asked := make(chan struct{}), make(chan struct{})
	reached := sync.OnceFunc(func() { close(asked) })
	var deaf atomic.Bool // to probes
	m.runtime.Lag(func(c fakeruntime.Call) {
		switch {
		case c.Method == "Create":
			reached()
		case c.Method == "Probe" && !deaf.Load():
			return
		}
		<-free
	})
	release := sync.OnceFunc(func() { m.runtime.Lag(nil); close(free) })
	t.Cleanup(release)
	caught := s.submit(nil, "exit", "0") // placed before anybody knows
	_, w := m.runOn(1, caught)
	<-asked
	deaf.Store(true)
	s.until("the control plane knows", func() bool { return s.engineSilent("m1") })
	found, err := s.db.Machines.Get(t.Context(), "", "m1")
	if err != nil || found.State != berth.MachineReady || !strings.HasPrefix(found.Reason, "its container engine has not answered since ") ||
		!strings.HasSuffix(found.Reason, "; restart it: systemctl restart docker, or bring back the file server that a container waits for") {
		t.Errorf("the machine is %s: %q, %v", found.State, found.Reason, err)
	}
	if !strings.Contains(m.logs.text(), `level=ERROR msg="container engine does not answer, machine gets no new work"`) {
		t.Error("the agent does not log it")
	}
	next := s.submit(nil, "exit", "0")
	if _, err := s.db.Jobs.Load(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	c, err := s.db.Queue.CommitStarts(t.Context(), s.term, []berth.Start{{Job: next, Version: 2, Attempt: 1, Ranks: []berth.Grant{{
		Machine: "m1", Epoch: found.Epoch, Capacity: berth.Capacity{CPUMilli: 1000, MemoryMiB: 64},
	}}}})
	if err != nil || len(c.Started) != 0 || !strings.Contains(fmt.Sprint(c.Refused), "container engine does not answer") {
		t.Errorf("a job was placed there: %+v, %v", c, err)
	}
	if j := s.job(running); j.Status != berth.Running || j.Attempt != 1 {
		t.Errorf("the job that runs there is %s, attempt %d", j.Status, j.Attempt)
	}

	release()
	s.until("the machine takes work again", func() bool { return !s.engineSilent("m1") })
	if x := w.exit(); x.Code != 0 {
		t.Errorf("what was to start meanwhile ended with %+v", x)
	}
	if j := s.settle(caught); j.Status != berth.Succeeded || j.Attempt != 1 || j.Failures != 0 || j.Losses != 0 {
		t.Errorf("it is %s after %d attempts, %d failures, %d losses", j.Status, j.Attempt, j.Failures, j.Losses)
	}
	if _, w := m.runOn(1, next); w.exit().Code != 0 {
		t.Error("the job that was refused does not run")
	}
	if c, err := m.container(was); err != nil || c.FinishedAt.After(c.StartedAt) {
		t.Errorf("the container that ran all the while: %+v, %v", c, err)
	}
}

// A start that the engine refuses while it hangs is the machine's failure: it costs
// the user nothing.
func TestF53AStartThatASilentEngineRefusesIsNotCharged(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.cfg.Timing.EngineProbe, m.cfg.Timing.EnginePatience = 20*time.Millisecond, 10*time.Millisecond
	m.restart()
	var silent atomic.Bool
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "Start" || c.Method == "Probe" && silent.Load() {
			return errDown
		}
		return nil
	})
	id := s.submit(func(j *spec.Job) { j.Retry.MaxAttempts = 1 }, "exit", "0")
	_, w := m.run(id)
	silent.Store(true)
	if x := w.exit(); x.Cause != failure.CauseEngine || x.Started() {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Retrying || j.Failures != 0 || j.Losses != 1 || j.Reason.Rule != "engine_failed" {
		t.Errorf("job is %s, %+v, %d failures, %d losses", j.Status, j.Reason, j.Failures, j.Losses)
	}
	s.until("the control plane knows", func() bool { return s.engineSilent("m1") })
}
