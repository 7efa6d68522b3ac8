package agent_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/failure"
	"berth/internal/machine/notice"
	"berth/spec"
	"berth/wire"
)

// noticed gives the agent, from its next process on, a notice file, and returns the file's path.
func (m *machine) noticed() (path string) {
	m.s.t.Helper()
	path = filepath.Join(m.s.t.TempDir(), "notice.json")
	m.cfg.Notices = notice.File(path)
	m.cfg.Timing.NoticePoll, m.cfg.Timing.NoticeRepeat = 5*time.Millisecond, 10*time.Millisecond
	m.restart()
	return path
}

// ends writes a notice as a whole, and returns it.
func ends(t *testing.T, path string, in time.Duration) wire.CloudNotice {
	t.Helper()
	n := wire.CloudNotice{Kind: wire.NoticeFile, Deadline: time.Now().Add(in).UTC().Truncate(time.Second)}
	text := fmt.Sprintf(`{"action": "terminate", "time": %q}`, n.Deadline.Format(time.RFC3339))
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return n
}

// trapping is a running job that prints each signal and goes on.
func (m *machine) trapping(edit func(*spec.Job)) (wire.RunRequest, *waiter) {
	m.s.t.Helper()
	req, w := m.run(m.s.submit(edit, "trap", "SIGUSR1", "SIGTERM"))
	m.until("the program has its handlers", func() bool { return len(m.s.log(req.Job, req.Attempt)) > 0 })
	return req, w
}

// signals counts the checkpoint signals in the log of a job.
func (s *site) signals(req wire.RunRequest) int {
	return strings.Count(strings.Join(s.log(req.Job, req.Attempt), "\n"), "SIGUSR1")
}

func every(d time.Duration) func(*spec.Job) {
	return func(j *spec.Job) {
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Signal: "SIGUSR1", Interval: spec.Duration(d)}
	}
}

// The members are signaled before the server learns of the notice, also in their first interval and
// without an interval; the drain that follows and a restart of the agent do not repeat the signal. The report waits
// for the signal for longer than the test runs, so that the order does not depend on the speed of the host.
func TestANoticeIsSignaledFirstAndReportedSecond(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.cfg.Timing.NoticeHold = time.Hour
	path := m.noticed()
	hourly, _ := m.trapping(every(time.Hour))
	hourlySaves := func() int { return s.signals(hourly) }
	var early atomic.Bool
	var reports atomic.Int64
	hold := func(r *http.Request) int {
		if r.Header.Get(wire.HeaderCloudNotice) != "" {
			reports.Add(1)
			if !strings.Contains(m.logs.text(), "signaling the job to save before the end of the machine") {
				early.Store(true)
			}
		}
		return 0
	}
	s.gate.refuse.Store(&hold)
	n := ends(t, path, 2*time.Minute)
	s.until("the job is signaled", func() bool { return hourlySaves() == 1 })
	s.until("the machine drains", func() bool { return s.machineState(m.id) == berth.MachineDraining })
	s.until("the agent has the confirmation", func() bool { return strings.Contains(m.logs.text(), "control plane has the cloud's notice") })
	if early.Load() {
		t.Error("the server learned of the notice before the member")
	}
	got, err := s.db.Machines.Get(t.Context(), "", m.id)
	if err != nil || got.Reason != n.Reason() || got.DrainBy != "agent:m1" {
		t.Errorf("drained by %s for %q, %v", got.DrainBy, got.Reason, err)
	}
	sent := reports.Load()
	if _, err := s.db.Attempts.AnnounceDrains(t.Context(), s.term, 10); err != nil {
		t.Fatal(err)
	}
	m.restart()
	s.until("the notice is reported to the new session", func() bool { return reports.Load() > sent })
	s.until("it is confirmed", func() bool { return strings.Count(m.logs.text(), "control plane has the cloud's notice") == 2 })
	if _, err := s.db.Attempts.AnnounceDrains(t.Context(), s.term, 10); err != nil {
		t.Fatal(err)
	}
	m.terminates(hourly)
	if hourlySaves() != 1 {
		t.Errorf("%d signals: %q", hourlySaves(), s.log(hourly.Job, 1))
	}
}

// terminates passes the deadline of the drain, and waits for SIGTERM in the job's log.
func (m *machine) terminates(req wire.RunRequest) {
	m.s.t.Helper()
	_, err := m.s.db.Pool().Exec(m.s.t.Context(), `UPDATE machines SET drain_deadline = now() WHERE id = $1`, m.id)
	if err != nil {
		m.s.t.Fatal(err)
	}
	if n, err := m.s.db.Attempts.DrainOverdue(m.s.t.Context(), m.s.term, 10); err != nil || n != 1 {
		m.s.t.Fatalf("%d jobs are ordered to stop, %v", n, err)
	}
	// A save that is asked for has as long as the grace allows; the job saves nothing.
	m.until("the job is asked to end", func() bool {
		return strings.Contains(strings.Join(m.s.log(req.Job, req.Attempt), "\n"), "SIGTERM")
	})
}

func TestANoticeIsSignaledWithTheServerAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	path := m.noticed()
	id := s.submit(checkpointed(5), "train", "/checkpoint", "1000000", "5ms")
	req, _ := m.run(id)
	m.running(req)
	s.until("it trains", func() bool { return len(s.log(id, 1)) > 3 })
	s.gate.closed.Store(true)
	ends(t, path, 2*time.Minute)
	s.until("a checkpoint is written", func() bool {
		found, err := filepath.Glob(filepath.Join(m.scratch(req), "checkpoint", "step-*", "DONE"))
		return err == nil && len(found) == 1
	})
	if s.machineState(m.id) == berth.MachineDraining {
		t.Error("the server is away, and has the notice")
	}
	s.gate.closed.Store(false)
	s.until("the machine drains", func() bool { return s.machineState(m.id) == berth.MachineDraining })
	s.until("the checkpoint is stored", func() bool { return len(s.verified(id)) == 1 })
}

// A program without an interval may exit on the signal. It has neither succeeded nor failed.
func TestAnExitOnANoticeIsADrain(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"0", "3"} {
		s := newSite(t)
		m := s.machine("m1")
		path := m.noticed()
		id := s.submit(func(j *spec.Job) {
			j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Signal: "SIGTERM"}
		}, "trap-term", code)
		req, w := m.run(id)
		m.running(req)
		s.until("the program has its handler", func() bool { return len(s.log(id, 1)) > 0 })
		ends(t, path, 2*time.Minute)
		if x := w.exit(); x.Cause != failure.CauseOrdered {
			t.Errorf("exit %s is %+v", code, x)
		}
		if j := s.settle(id); j.Status != berth.Retrying || j.Reason.Code != berth.ReasonDrained || j.Failures+j.Losses != 0 {
			t.Errorf("exit %s: job is %s, %+v, %d failures, %d losses", code, j.Status, j.Reason, j.Failures, j.Losses)
		}
	}
}

// An old server takes no notice and confirms none: the agent goes on.
func TestAServerWithoutNotices(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	path := m.noticed()
	var reports atomic.Int64
	old := func(r *http.Request) int {
		if r.Header.Get(wire.HeaderCloudNotice) != "" {
			reports.Add(1)
			r.Header.Del(wire.HeaderCloudNotice)
		}
		return 0
	}
	s.gate.refuse.Store(&old)
	ends(t, path, 2*time.Minute)
	s.until("it is repeated", func() bool { return reports.Load() > 3 })
	if got := s.machineState(m.id); got != berth.MachineReady {
		t.Errorf("machine is %s", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s.until("it is withdrawn", func() bool { return strings.Contains(m.logs.text(), "cloud withdrew its notice") })
}
