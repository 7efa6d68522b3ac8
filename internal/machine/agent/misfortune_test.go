package agent_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node/fakeruntime"
	"berth/failure"
	"berth/wire"
)

// answers makes a gateway, which knows nothing of Berth, answer calls whose
// path contains part, as long as on is true.
func (s *site) answers(status int, method, part string) (on *atomic.Bool, met *atomic.Int64) {
	on, met = &atomic.Bool{}, &atomic.Int64{}
	on.Store(true)
	refuse := func(r *http.Request) int {
		if on.Load() && r.Method == method && strings.Contains(r.URL.Path, part) {
			met.Add(1)
			return status
		}
		return 0
	}
	s.gate.refuse.Store(&refuse)
	return on, met
}

func TestF33GatewayThatFindsNoObjectProvesNoDamage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.impatient()
	id := train(m)
	before := s.verified(id)
	s.answers(http.StatusNotFound, http.MethodGet, "/objects/")
	_, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseRestoreFailed {
		t.Errorf("exit is %+v", x)
	}
	if after := s.verified(id); !slices.Equal(before, after) {
		t.Errorf("checkpoints were %v and are %v", before, after)
	}
}

func TestF33GatewayThatRefusesForAWhileCostsNoLogAndNoCheckpoint(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(checkpointed(3), "train", "/checkpoint", "200", "5ms", "5")
	on, met := s.answers(http.StatusForbidden, http.MethodPut, "/")
	_, w := m.run(id)
	m.until("logs and checkpoints are refused", func() bool { return met.Load() > 10 })
	on.Store(false)
	if x := w.exit(); x.Code != 0 || x.Cause != failure.CauseExited {
		t.Errorf("exit is %+v", x)
	}
	if steps := s.verified(id); len(steps) == 0 {
		t.Error("no checkpoint is stored")
	}
	if lines := s.log(id, 1); len(lines) == 0 || s.hasEvent(id, wire.EventWarning, "not stored") {
		t.Errorf("%d lines are stored; events %+v", len(lines), s.events(id))
	}
}

func TestGatewayThatRefusesAClaimKillsNoContainer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "sleep", "1h")
	req, _ := m.run(id)
	m.running(req)
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	on, met := s.answers(http.StatusNotFound, http.MethodPost, "/claim")
	m.start()
	m.until("the claim is refused", func() bool { return met.Load() > 2 })
	m.running(req)
	on.Store(false)
	w := m.wait(req)
	m.runtime.Exit(berth.ContainerName(id, 0, 1), 3)
	if x := w.exit(); x.Code != 3 {
		t.Errorf("exit is %+v", x)
	}
}

// A container may give its files any time; one that JSON cannot hold must not
// keep the machine's reports from going out.
func TestTimeOfAProgressFileHoldsUpNoReport(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	shm, err := os.MkdirTemp("/dev/shm", "berth-test") // keeps times that disks do not
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(shm) })
	if err := os.CopyFS(filepath.Join(shm, "agent"), os.DirFS(m.cfg.StateDir)); err != nil {
		t.Fatal(err)
	}
	m.cfg.StateDir = filepath.Join(shm, "agent")
	m.start()
	id := s.submit(nil, "trap-term", "0")
	req, w := m.run(id)
	m.running(req)
	file := filepath.Join(m.scratch(req), "workspace", ".berth", "progress")
	for i, at := range []time.Time{time.Date(30_000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(-9, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if err := os.WriteFile(file, fmt.Appendf(nil, `{"step":%d}`, i+1), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
		s.until("the progress is told", func() bool {
			p := s.job(id).Progress
			return p != nil && p.Step == int64(i+1) && time.Since(p.At).Abs() < time.Hour
		})
	}
	s.cancel(id)
	if x := w.exit(); x.Cause != failure.CauseOrdered {
		t.Errorf("exit is %+v", x)
	}
}

func TestEngineThatKeepsItsLogDoesNotHoldTheSealForEver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.impatient()
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "Logs" {
			return errors.New("no logs today")
		}
		return nil
	})
	id := s.submit(nil, "echo", "hello")
	_, w := m.run(id)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	if !s.hasEvent(id, wire.EventWarning, "log") {
		t.Errorf("events: %+v", s.events(id))
	}
}

// A restored backup may hold less of a log than the server has confirmed to the agent.
func TestLogThatTheServerForgotDoesNotHoldTheSealForEver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "do", "lines 100 1ms", "trap-term 0", "lines 100 1ms")
	req, w := m.run(id)
	s.until("the program waits for its end", func() bool { return slices.Contains(s.log(id, 1), "ready") })
	if _, err := s.db.Pool().Exec(t.Context(), `UPDATE allocations SET log_bytes = 0 WHERE id = $1`, int64(req.Alloc)); err != nil {
		t.Fatal(err)
	}
	m.terminate(req)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	if !s.hasEvent(id, wire.EventWarning, "log") {
		t.Errorf("events: %+v", s.events(id))
	}
}

func TestSessionsThatEndAllTheTimeLoseNoWork(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	over := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait := func(d time.Duration) (goOn bool) {
			select {
			case <-over:
				return false
			case <-time.After(d):
				return true
			}
		}
		// However slow this machine is, a session lives about as long as it took to
		// begin it.
		for began := time.Now(); wait(max(15*time.Millisecond, time.Since(began))); {
			_, _ = s.db.Pool().Exec(t.Context(), `UPDATE machines SET agent_boot = 'another'`)
			began = time.Now()
			for boot := "another"; boot == "another" && wait(5*time.Millisecond); {
				_ = s.db.Pool().QueryRow(t.Context(), `SELECT agent_boot FROM machines`).Scan(&boot)
			}
		}
	}()
	for i := range 10 {
		id := s.submit(nil, "exit", fmt.Sprint(i))
		req, w := m.run(id)
		if x := w.exit(); x.Code != i || x.Cause != failure.CauseExited {
			t.Errorf("exit is %+v", x)
		}
		s.settle(id)
		m.cleared(req)
		m.until("machine is ready", func() bool { return s.machineState("m1") == berth.MachineReady })
	}
	close(over)
	<-done
}

func TestScratchThatNobodyRemembersIsRemoved(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "sleep", "1h")
	req, _ := m.run(id)
	m.running(req)
	forgotten := filepath.Join(m.cfg.StateDir, "ranks", berth.ContainerName(berth.NewJobID(time.Now()), 0, 1))
	if err := os.MkdirAll(filepath.Join(forgotten, "checkpoint"), 0o700); err != nil {
		t.Fatal(err)
	}
	m.restart()
	s.until("the forgotten folder is removed", func() bool {
		_, err := os.Stat(forgotten)
		return os.IsNotExist(err)
	})
	m.running(req)
	if _, err := os.Stat(m.scratch(req)); err != nil {
		t.Errorf("the folder of a running rank: %v", err)
	}
}
