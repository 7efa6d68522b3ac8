package agent_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

func TestShortJobLeavesItsLogAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "do", "echo hello world", "stderr oops", "env BERTH_ATTEMPT BERTH_MEMBERS BERTH_RESTORED_STEP BERTH_GPUS MASTER_ADDR NNODES NVIDIA_VISIBLE_DEVICES")
	req, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseExited || x.Code != 0 || !x.Started() {
		t.Errorf("exit is %+v", x)
	}
	want := []string{"hello", "world", "oops", "BERTH_ATTEMPT=1", "BERTH_MEMBERS=1", "BERTH_RESTORED_STEP=", "BERTH_GPUS=m1-0", "MASTER_ADDR=127.0.0.1", "NNODES=1", "NVIDIA_VISIBLE_DEVICES=void"}
	got := s.log(id, 1)
	slices.Sort(want) // stdout and stderr are two streams
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	j := s.settle(id)
	if j.Status != berth.Succeeded || j.ImageDigest == "" {
		t.Errorf("job is %+v", j)
	}
	// A machine that is slow shows the stages before the start, too.
	events := slices.DeleteFunc(s.events(id), func(e wire.Event) bool { return e.Kind == wire.EventStage })
	if len(events) != 5 {
		t.Errorf("a short job has %d events: %+v", len(events), events)
	}
	m.cleared(req)
}

func TestFailuresAreValues(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.runtime.FailImage("nosuch", node.ErrImageNotFound)
	m.runtime.FailImage("away", node.ErrImageUnavailable)
	for _, c := range []struct {
		name    string
		edit    func(*spec.Job)
		command []string
		want    failure.Exit
		state   berth.State
		reason  berth.ReasonCode
	}{
		{"exit code", nil, []string{"exit", "3"}, failure.Exit{Cause: failure.CauseExited, Code: 3}, berth.Failed, berth.ReasonExitCode},
		{"out of memory", nil, []string{"eat-memory", "500"}, failure.Exit{Cause: failure.CauseExited, Code: 137, OOMKilled: true}, berth.Failed, berth.ReasonOOM},
		{"no such image", func(j *spec.Job) { j.Image = "nosuch" }, nil, failure.Exit{Cause: failure.CauseImageNotFound}, berth.Failed, berth.ReasonImageNotFound},
		{"registry away", func(j *spec.Job) { j.Image = "away" }, nil, failure.Exit{Cause: failure.CauseImageUnavailable}, berth.Retrying, berth.ReasonImageUnavailable},
		{"no such command", func(j *spec.Job) { j.Entrypoint = []string{"/nosuch"} }, nil, failure.Exit{Cause: failure.CauseBadCommand}, berth.Failed, berth.ReasonExitCode},
		{"time limit", func(j *spec.Job) { j.TimeLimit = spec.Duration(time.Second) }, []string{"trap-term", "0"}, failure.Exit{Cause: failure.CauseTimeLimit}, berth.Failed, berth.ReasonTimeLimit},
	} {
		id := s.submit(c.edit, c.command...)
		_, w := m.run(id)
		got := w.exit()
		if got.Cause != c.want.Cause || got.Code != c.want.Code || got.OOMKilled != c.want.OOMKilled {
			t.Errorf("%s: exit is %+v", c.name, got)
		}
		j := s.settle(id)
		if j.Status != c.state || j.Reason.Code != c.reason {
			t.Errorf("%s: job is %s, %+v", c.name, j.Status, j.Reason)
		}
	}
}

func TestChildOutOfMemoryIsAWarning(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "child-oom", "500")
	_, w := m.run(id)
	if x := w.exit(); x.Code != 0 || !x.OOMKilled {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Succeeded {
		t.Errorf("job is %s", j.Status)
	}
	if !s.hasEvent(id, wire.EventWarning, "ran out of memory") {
		t.Errorf("no warning: %+v", s.events(id))
	}
}

// A cancel is obeyed wherever the rank stands.
func TestCancelInEveryPhase(t *testing.T) {
	t.Parallel()
	block := func(m *machine, method string) (reached, free chan struct{}) {
		reached, free = make(chan struct{}, 10), make(chan struct{})
		m.runtime.Intercept(func(c fakeruntime.Call) error {
			if c.Method == method {
				reached <- struct{}{}
				<-free
			}
			return nil
		})
		return reached, free
	}
	for _, c := range []struct {
		phase   string
		command []string
		at      func(t *testing.T, s *site, m *machine, id berth.JobID) (wire.RunRequest, *waiter)
		grace   time.Duration
		cause   failure.ExitCause
		code    int
	}{
		{"pulling", []string{"echo", "x"}, func(t *testing.T, s *site, m *machine, id berth.JobID) (wire.RunRequest, *waiter) {
			reached, free := block(m, "EnsureImage")
			req, w := m.run(id)
			<-reached
			s.cancel(id)
			close(free)
			return req, w
		}, patience, failure.CauseNotStarted, 0},
		{"creating", []string{"echo", "x"}, func(t *testing.T, s *site, m *machine, id berth.JobID) (wire.RunRequest, *waiter) {
			reached, free := block(m, "Create")
			req, w := m.run(id)
			<-reached
			s.cancel(id)
			close(free)
			return req, w
		}, patience, failure.CauseNotStarted, 0},
		{"running", []string{"trap-term", "7"}, func(t *testing.T, s *site, m *machine, id berth.JobID) (wire.RunRequest, *waiter) {
			req, w := m.run(id)
			m.running(req)
			s.until("the program listens", func() bool { return slices.Contains(s.log(id, 1), "ready") })
			s.cancel(id)
			return req, w
		}, patience, failure.CauseOrdered, 7},
		{"deaf to SIGTERM", []string{"ignore-term"}, func(t *testing.T, s *site, m *machine, id berth.JobID) (wire.RunRequest, *waiter) {
			req, w := m.run(id)
			s.until("the program listens", func() bool { return slices.Contains(s.log(id, 1), "ready") })
			s.cancel(id)
			return req, w
		}, 300 * time.Millisecond, failure.CauseOrdered, 137},
	} {
		t.Run(c.phase, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			m := s.machine("m1")
			m.awaitsOrders()
			id := s.submit(func(j *spec.Job) { j.StopGrace = ptr(spec.Duration(c.grace)) }, c.command...)
			req, w := c.at(t, s, m, id)
			x := w.exit()
			if x.Cause != c.cause || x.Code != c.code {
				t.Errorf("exit is %+v", x)
			}
			if j := s.settle(id); j.Status != berth.Canceled {
				t.Errorf("job is %s", j.Status)
			}
			m.cleared(req)
		})
	}
}

func TestCancelBeforeTheClaim(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "echo", "x")
	claims := make(chan struct{}, 1000)
	hold := func(r *http.Request) int {
		if !strings.HasSuffix(r.URL.Path, "/claim") {
			return 0
		}
		claims <- struct{}{}
		return http.StatusServiceUnavailable
	}
	s.gate.refuse.Store(&hold)
	req := m.place(id)
	<-claims // the report shows that the agent has received the set
	s.cancel(id)
	if j := s.settle(id); j.Status != berth.Canceled {
		t.Errorf("job is %s", j.Status)
	}
	s.gate.refuse.Store(nil)
	if x := m.wait(req).exit(); x.Started() { // withdrawn: its end is on record without a start
		t.Errorf("a waiter that came too late got %+v", x)
	}
	m.cleared(req)
	if all, _ := m.runtime.List(t.Context(), nil); len(all) != 0 {
		t.Errorf("containers: %+v", all)
	}
}

// A cancel that comes when the work is done does not undo it.
func TestExitBeforeTheOrderCounts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "echo", "done")
	_, w := m.run(id)
	w.exit()
	s.cancel(id)
	if j := s.settle(id); j.Status != berth.Succeeded {
		t.Errorf("job is %s", j.Status)
	}
}

func TestControlPlaneAwayStopsNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "do", "lines 100 1ms", "trap-term 0", "lines 98 1ms 4")
	req, w := m.run(id)
	s.until("the program waits for its end", func() bool { return slices.Contains(s.log(id, 1), "ready") })
	s.gate.closed.Store(true)
	m.terminate(req)
	m.until("container ended", func() bool {
		c, err := m.container(req)
		return err == nil && c.State == node.ContainerExited
	})
	s.gate.closed.Store(false)
	if x := w.exit(); x.Code != 4 || x.Cause != failure.CauseExited {
		t.Errorf("exit is %+v", x)
	}
	if n := len(s.log(id, 1)); n != 200 {
		t.Errorf("%d lines are stored", n)
	}
}

func TestStalledJobIsStopped(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	quiet := s.submit(func(j *spec.Job) { j.StallTimeout = spec.Duration(200 * time.Millisecond) }, "trap-term", "0")
	busy := s.submit(func(j *spec.Job) { j.StallTimeout = spec.Duration(2 * time.Second) }, "lines", "100", "25ms")
	_, w := m.run(quiet)
	if x := w.exit(); x.Cause != failure.CauseStalled ||
		x.Message != "no log, progress, checkpoint, CPU or GPU activity for 200ms (stall_timeout)" {
		t.Errorf("the quiet one: %+v", x)
	}
	s.settle(quiet)
	_, w = m.run(busy)
	if x := w.exit(); x.Cause != failure.CauseExited {
		t.Errorf("the busy one: %+v", x)
	}
}

func TestProgressIsShown(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "do", `write-file /workspace/.berth/progress {"step":7,"total":7,"message":"x"}`, "sleep 100ms")
	_, w := m.run(id)
	if x := w.exit(); !x.Complete {
		t.Errorf("exit is %+v", x)
	}
	j := s.job(id)
	if j.Progress == nil || j.Progress.Step != 7 || j.Progress.Message != "x" || *j.Attempts[0].LastStep != 7 {
		t.Errorf("progress is %+v, attempts %+v", j.Progress, j.Attempts)
	}
}

func TestLogThatIsRefusedDoesNotHoldTheSealForEver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.impatient()
	refuse := func(r *http.Request) int {
		if strings.Contains(r.URL.Path, "/logs/") {
			return http.StatusInternalServerError
		}
		return 0
	}
	s.gate.refuse.Store(&refuse)
	id := s.submit(nil, "echo", "hello")
	_, w := m.run(id)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	if !s.hasEvent(id, wire.EventWarning, "log was not stored") {
		t.Errorf("events: %+v", s.events(id))
	}
}
