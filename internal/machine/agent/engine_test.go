package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/failure"
)

func TestVanishedContainerIsAnExit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "sleep", "1h")
	req, w := m.run(id)
	m.running(req)
	m.runtime.Vanish(berth.ContainerName(id, 0, 1))
	if x := w.exit(); x.Cause != failure.CauseVanished {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Retrying {
		t.Errorf("job is %s", j.Status)
	}
	req, _ = m.run(id)
	m.running(req)
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.runtime.Vanish(berth.ContainerName(id, 0, 2))
	m.start()
	if x := m.wait(req).exit(); x.Cause != failure.CauseVanished {
		t.Errorf("after a restart the exit is %+v", x)
	}
}

func TestEngineHiccupsAreRiddenOut(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	left := map[string]int{"Create": 2, "Start": 2, "Wait": 2, "Logs": 2, "Remove": 2}
	mu := make(chan struct{}, 1)
	mu <- struct{}{}
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		<-mu
		defer func() { mu <- struct{}{} }()
		if left[c.Method] > 0 {
			left[c.Method]--
			return fmt.Errorf("%s: the engine does not answer", c.Method)
		}
		return nil
	})
	id := s.submit(nil, "lines", "20", "1ms", "0")
	req, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseExited || x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	if n := len(s.log(id, 1)); n != 20 {
		t.Errorf("%d lines are stored", n)
	}
	s.settle(id)
	m.cleared(req)
}

// An engine without live-restore ends its containers when it stops, and a
// program that is process 1 may well exit 2 then: no fault of the user's.
func TestEngineThatTakesContainersAlongIsToBlame(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		code  int
		cause failure.ExitCause
	}{{"killed along", 2, failure.CauseEngine}, {"done in time", 0, failure.CauseExited}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			m := s.machine("m1")
			if err := m.stop(); err != nil {
				t.Fatal(err)
			}
			engine := &mortal{Fake: m.runtime, down: make(chan struct{})}
			m.cfg.Runtime = engine
			m.start()
			id := s.submit(nil, "sleep", "1h")
			req, w := m.run(id)
			m.running(req)
			s.until("the engine is watched", func() bool { return engine.waits.Load() > 0 })
			close(engine.down)
			m.runtime.Exit(berth.ContainerName(id, 0, 1), c.code)
			s.until("the agent has noticed", func() bool { return engine.refused.Load() > 1 })
			engine.back.Store(true)
			if x := w.exit(); x.Cause != c.cause || x.Code != c.code {
				t.Errorf("exit is %+v", x)
			}
		})
	}
}

// mortal is an engine without live-restore that can go down and come back.
type mortal struct {
	*fakeruntime.Fake
	down           chan struct{}
	back           atomic.Bool
	waits, refused atomic.Int64
}

var errDown = errors.New("the engine is down")

func (m *mortal) Info(ctx context.Context) (node.RuntimeInfo, error) {
	i, err := m.Fake.Info(ctx)
	i.LiveRestore = false
	return i, err
}

func (m *mortal) isDown() bool {
	select {
	case <-m.down:
		if m.back.Load() {
			return false
		}
		m.refused.Add(1)
		return true
	default:
		return false
	}
}

func (m *mortal) Inspect(ctx context.Context, name string) (node.Container, error) {
	if m.isDown() {
		return node.Container{}, errDown
	}
	return m.Fake.Inspect(ctx, name)
}

// Wait breaks off when the engine goes down, as its connection would.
func (m *mortal) Wait(ctx context.Context, name string) (node.Container, error) {
	if m.isDown() {
		return node.Container{}, errDown
	}
	if m.back.Load() {
		return m.Fake.Wait(ctx, name)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.waits.Add(1)
	type result struct {
		c   node.Container
		err error
	}
	got := make(chan result, 1)
	go func() {
		c, err := m.Fake.Wait(ctx, name)
		got <- result{c, err}
	}()
	select {
	case <-m.down:
		cancel()
		<-got
		return node.Container{}, errDown
	case r := <-got:
		if m.isDown() {
			return node.Container{}, errDown
		}
		return r.c, r.err
	}
}

func TestUnhealthyGPUEndsItsRank(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	gpus := &moody{declared: m.cfg.GPUs.(declared)}
	m.cfg.GPUs = gpus
	m.start()
	id := s.submit(nil, "trap-term", "0")
	req, w := m.run(id)
	m.running(req)
	gpus.fail.Store(true)
	if x := w.exit(); x.Cause != failure.CauseGPU || !strings.Contains(x.Message, "XID 79") {
		t.Errorf("exit is %+v", x)
	}
	m.until("the device is shown unhealthy", func() bool {
		mach, err := s.db.Machines.Get(t.Context(), "", "m1")
		return err == nil && !mach.GPUs[0].Healthy
	})
}
