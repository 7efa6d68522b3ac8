package agent_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/activities/node/runtimetest"
	"berth/failure"
	"berth/internal/machine/docker"
)

// privateMachine is a machine over a Docker Engine of its own, which the test
// may end.
func privateMachine(t *testing.T, flags ...string) (*site, *machine, *runtimetest.Dockerd) {
	t.Helper()
	d := runtimetest.StartDockerd(t, flags...)
	s := newSite(t)
	s.image = runtimetest.Image(t, d.Host())
	engine, err := docker.Open(d.Host(), docker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	return s, s.machineOn("m1", engine), d
}

// F10: with live-restore, containers outlive the engine's death, and an end in
// the meantime is the container's own.
func TestF10LiveRestoreKeepsContainersOverTheEnginesDeath(t *testing.T) {
	t.Parallel()
	s, m, d := privateMachine(t, "--live-restore")
	stays, ends := s.submit(nil, "trap-term", "5"), s.submit(nil, "trap-term", "3")
	req, waitStays := m.run(stays)
	m.running(req)
	other, waitEnds := m.runOn(1, ends)
	m.running(other)
	s.until("both listen", func() bool { return len(s.log(stays, 1)) > 0 && len(s.log(ends, 1)) > 0 })
	before, err := m.container(other)
	if err != nil {
		t.Fatal(err)
	}
	d.Kill()
	if err := syscall.Kill(before.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.Start()
	if x := waitEnds.exit(); x.Cause != failure.CauseExited || x.Code == 0 {
		t.Errorf("the one that ended while the engine was away: %+v", x)
	}
	m.running(req)
	s.cancel(stays)
	if x := waitStays.exit(); x.Cause != failure.CauseOrdered || x.Code != 5 {
		t.Errorf("the one that stayed: %+v", x)
	}
	if j := s.settle(stays); j.Attempt != 1 {
		t.Errorf("it took %d attempts", j.Attempt)
	}
}

// F11: without live-restore the engine takes its containers along. A Go program
// that is process 1 shows exit 2 then, which looks like its own failure; whether
// the engine stopped in order or was killed, and whether an agent watched or
// not, that is no fault of the user's.
func TestF11EngineRestartIsNoUserFailure(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		end     func(*runtimetest.Dockerd)
		watched bool
	}{
		{"stopped, watched", (*runtimetest.Dockerd).Stop, true},
		{"killed, watched", (*runtimetest.Dockerd).Kill, true},
		{"stopped while no agent ran", (*runtimetest.Dockerd).Stop, false},
		{"killed while no agent ran", (*runtimetest.Dockerd).Kill, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, m, d := privateMachine(t)
			id := s.submit(nil, "trap-term", "2")
			req, w := m.run(id)
			m.running(req)
			s.until("it listens", func() bool { return len(s.log(id, 1)) > 0 })
			if !c.watched {
				if err := m.stop(); err != nil {
					t.Fatal(err)
				}
			}
			c.end(d)
			d.Start()
			if !c.watched {
				m.start()
				w = m.wait(req)
			}
			if x := w.exit(); x.Cause != failure.CauseEngine || x.Code == 0 || !x.Started() {
				t.Errorf("exit is %+v", x)
			}
			if j := s.settle(id); j.Status != berth.Retrying || j.Failures != 0 || j.Losses != 1 || j.Reason.Rule != "engine_stopped" {
				t.Errorf("job is %s, %+v, %d failures, %d losses", j.Status, j.Reason, j.Failures, j.Losses)
			}
		})
	}
}

// Without a restart of the engine, exit 2 is the program's own.
func TestF11ExitTwoWithoutARestartIsTheUsers(t *testing.T) {
	t.Parallel()
	s, m, d := privateMachine(t)
	d.Stop()
	d.Start()
	id := s.submit(nil, "exit", "2")
	_, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseExited || x.Code != 2 {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Failed || j.Reason.Rule != "failed" {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
}

// F34: the first process survives its child's OOM kill, and fails because of it.
func TestF34ChildOutOfMemoryIsTheUsers(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	id := s.submit(nil, "child-oom", "200", "1")
	_, w := m.run(id)
	if x := w.exit(); x.Code != 1 || !x.OOMKilled || x.Cause != failure.CauseExited {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Failed || j.Reason.Code != berth.ReasonOOM {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
}

// F37: the registry's answer decides who is charged for the failure, and how often the registry
// is asked.
func TestF37PullFailuresAreToldApart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		says   error
		cause  failure.ExitCause
		tries  int64
		next   berth.State
		code   berth.ReasonCode
		losses int
	}{
		{node.ErrImageNotFound, failure.CauseImageNotFound, 1, berth.Failed, berth.ReasonImageNotFound, 0},
		{node.ErrImageMismatch, failure.CauseImageMismatch, 1, berth.Failed, berth.ReasonImageMismatch, 0},
		{node.ErrImageUnavailable, failure.CauseImageUnavailable, 5, berth.Retrying, berth.ReasonImageUnavailable, 1},
	} {
		t.Run(string(c.cause), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			m := s.machine("m1")
			var tries atomic.Int64
			m.runtime.Intercept(func(call fakeruntime.Call) error {
				if call.Method != "EnsureImage" {
					return nil
				}
				tries.Add(1)
				return errors.Join(c.says, errors.New("the registry says so"))
			})
			id := s.submit(nil, "echo", "hello")
			_, w := m.run(id)
			if x := w.exit(); x.Cause != c.cause || x.Started() || !strings.Contains(x.Message, "says so") {
				t.Errorf("exit is %+v", x)
			}
			if n := tries.Load(); n != c.tries {
				t.Errorf("the registry was asked %d times, want %d", n, c.tries)
			}
			if j := s.settle(id); j.Status != c.next || j.Reason.Code != c.code || j.Losses != c.losses {
				t.Errorf("job is %s, %+v, %d losses", j.Status, j.Reason, j.Losses)
			}
		})
	}
}

func TestF37RegistryThatIsBackInTimeCostsNoAttempt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	var tries atomic.Int64
	m.runtime.Intercept(func(call fakeruntime.Call) error {
		if call.Method == "EnsureImage" && tries.Add(1) < 5 {
			return errors.Join(node.ErrImageUnavailable, errors.New("429 Too Many Requests"))
		}
		return nil
	})
	id := s.submit(nil, "echo", "hello")
	_, w := m.run(id)
	if x := w.exit(); x.Code != 0 || x.Cause != failure.CauseExited {
		t.Errorf("exit is %+v", x)
	}
}

// The last lines of the log travel with the exit of a failed member.
func TestLastLinesOfAFailedRankAreRead(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "do", "echo ncclSystemError", "lines 50 1ms", "exit 1")
	_, w := m.run(id)
	if x := w.exit(); x.Sign != failure.SignCommunication || x.Code != 1 {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Retrying || j.Losses != 1 || j.Reason.Rule != "communication" {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
}
