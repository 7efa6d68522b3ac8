package agent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/failure"
	"berth/internal/machine/agent"
	"berth/wire"
)

func TestRestartedAgentAdopts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	running := s.submit(nil, "do", "lines 300 2ms", "trap-term 5") // it runs until it is stopped
	req, w := m.run(running)
	s.until("some of the log is stored", func() bool { return len(s.log(running, 1)) > 20 })
	before, err := m.container(req)
	if err != nil {
		t.Fatal(err)
	}
	m.restart()
	after, err := m.container(req)
	if err != nil || after.ID != before.ID || !after.StartedAt.Equal(before.StartedAt) {
		t.Errorf("container was %+v and is %+v, %v", before, after, err)
	}
	m.endsWhenReady(req)
	if x := w.exit(); x.Code != 5 || x.Cause != failure.CauseExited {
		t.Errorf("exit is %+v", x)
	}
	s.wantLines(running, 300)
	if e := s.machineEpoch("m1"); e != 1 {
		t.Errorf("the restart moved the machine's epoch to %d", e)
	}
}

// endsWhenReady sends SIGTERM once the program waits for it. Its log must reach
// the control plane.
func (m *machine) endsWhenReady(req wire.RunRequest) {
	m.s.t.Helper()
	m.s.until("the program waits for its end", func() bool { return slices.Contains(m.s.log(req.Job, req.Attempt), "ready") })
	m.terminate(req)
}

// wantLines checks that a first attempt has printed these lines, then n numbered
// ones, and then waited for its end: each line once and in order.
func (s *site) wantLines(id berth.JobID, n int, before ...string) {
	s.t.Helper()
	want := slices.Clone(before)
	for i := range n {
		want = append(want, fmt.Sprintf("line %d", i+1))
	}
	want = append(want, "ready", "term")
	if got := s.log(id, 1); !slices.Equal(got, want) {
		s.t.Errorf("%d lines are stored, want %d: %q", len(got), len(want), got)
	}
}

func (s *site) machineEpoch(id berth.MachineID) int64 {
	s.t.Helper()
	m, err := s.db.Machines.Get(s.t.Context(), "", id)
	if err != nil {
		s.t.Fatal(err)
	}
	return m.Epoch
}

func TestContainerThatEndedWhileNobodyLookedIsReported(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "do", "echo before", "trap-term 0", "echo after", "exit 9")
	req, _ := m.run(id)
	s.until("the program waits for its end", func() bool { return slices.Contains(s.log(id, 1), "ready") })
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.terminate(req)
	m.until("container ended", func() bool {
		c, err := m.container(req)
		return err == nil && c.State == node.ContainerExited
	})
	m.start()
	if x := m.wait(req).exit(); x.Code != 9 {
		t.Errorf("exit is %+v", x)
	}
	if diff := cmp.Diff([]string{"before", "ready", "term", "after"}, s.log(id, 1)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	s.settle(id)
	m.cleared(req)
}

// No waiter is needed: a rank that an agent has claimed once goes on after a restart, at any
// point of its start where the agent may have died.
func TestRestartBeforeTheStart(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"EnsureImage", "Create", "Start"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			m := s.machine("m1")
			reached, free := make(chan struct{}, 10), make(chan struct{})
			m.runtime.Intercept(func(c fakeruntime.Call) error {
				if c.Method != method {
					return nil
				}
				reached <- struct{}{}
				<-free
				return errors.New("the call was cut off")
			})
			id := s.submit(nil, "echo", "hello")
			req := m.place(id)
			<-reached
			m.cancel()
			m.until("the agent has released the member", func() bool {
				return strings.Contains(m.logs.text(), "agent stopping, containers keep running")
			})
			close(free)
			if err := m.stop(); err != nil {
				t.Fatal(err)
			}
			m.runtime.Intercept(nil)
			m.start()
			s.until("rank is sealed", func() bool {
				v, err := s.db.Jobs.Load(t.Context(), id)
				return err == nil && len(v.Slots) == 1 && v.Slots[0].Sealed
			})
			if j := s.settle(id); j.Status != berth.Succeeded {
				t.Errorf("job is %s, %+v", j.Status, j.Reason)
			}
			m.cleared(req)
		})
	}
}

// A process that dies with a reservation it was handed, and did not claim, takes
// its knowledge along. The next process learns it from its first set.
func TestF7AReservationThatADeadProcessTookAlongIsTakenUp(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	id := s.submit(nil, "echo", "hello")
	req := m.place(id)
	m.start()
	s.until("the rank is sealed without a waiter", func() bool {
		v, err := s.db.Jobs.Load(t.Context(), id)
		return err == nil && len(v.Slots) == 1 && v.Slots[0].Sealed
	})
	if j := s.settle(id); j.Status != berth.Succeeded || len(j.Attempts) != 1 {
		t.Errorf("job is %s after %d attempts", j.Status, len(j.Attempts))
	}
	m.cleared(req)
}

func TestRebootedMachineStartsAnew(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "sleep", "1h")
	req, _ := m.run(id)
	s.until("the start is reported", func() bool { return s.job(id).Status == berth.Running })
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.runtime.Reboot(255)
	m.cfg.HostBoot = "boot-2"
	m.start()
	if e := s.machineEpoch("m1"); e != 2 {
		t.Errorf("epoch is %d", e)
	}
	j := s.settle(id)
	if j.Status != berth.Retrying || j.Reason.Code != berth.ReasonMachineLost {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	m.cleared(req)
	m.until("machine is ready", func() bool { return s.machineState("m1") == berth.MachineReady })
	_, w := m.run(id)
	_ = w
}

// The agent of a rebooted machine reports that the member is gone before the job is settled, and
// the order to forget arrives before the answer to that report: the member is reported again.
func TestOrderToForgetOvertakesAReport(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "sleep", "1h")
	req, _ := m.run(id)
	s.until("the start is reported", func() bool { return s.job(id).Status == berth.Running })
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.runtime.Reboot(255)
	m.cfg.HostBoot = "boot-2"
	stored, ordered := make(chan struct{}), make(chan struct{})
	answer := sync.OnceFunc(func() { close(ordered) })
	t.Cleanup(answer) // the server does not close before
	var once sync.Once
	var set atomic.Pointer[string] // digest of the set that the agent has, by its latest poll
	watch := func(body []byte) (after func()) {
		var call wire.SyncRequest
		switch err := json.Unmarshal(body, &call); {
		case err != nil:
		case len(call.Gone) > 0:
			return func() {
				once.Do(func() {
					close(stored)
					<-ordered
				})
			}
		case call.WaitMS > 0:
			set.Store(&call.Digest)
		}
		return nil
	}
	s.gate.watch.Store(&watch)
	m.start()
	<-stored
	s.until("a poll", func() bool { return set.Load() != nil })
	before := *set.Load()
	if j := s.settle(id); j.Status != berth.Retrying {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	s.until("the agent has the order to forget", func() bool { return *set.Load() != before })
	answer()
	m.cleared(req)
}

// A machine that was declared lost comes back: the agent removes the old container, releases its
// resources and opens a new session.
func TestZombieIsKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "sleep", "1h")
	req, w := m.run(id)
	m.running(req)
	s.gate.closed.Store(true)
	for _, sql := range []string{
		`UPDATE allocations SET state = 'orphaned', orphaned_at = now(), orders = orders || '{"kill": true}'`,
		`UPDATE machines SET state = 'lost'`,
	} {
		if _, err := s.db.Pool().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if j := s.settle(id); j.Status != berth.Retrying {
		t.Errorf("job is %s", j.Status)
	}
	s.gate.closed.Store(false)
	if r := w.result(); r.Phase == berth.PhaseSealed {
		t.Errorf("the zombie's waiter got %+v", r)
	}
	m.cleared(req)
	m.until("machine is ready", func() bool { return s.machineState("m1") == berth.MachineReady })
	if !s.hasEvent(id, wire.EventReleased, "m1") {
		t.Errorf("events: %+v", s.events(id))
	}
}

func TestAgentsShareAnEngineAndLeaveEachOtherAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	one, two := s.machine("m1"), s.machine("m2")
	if err := two.stop(); err != nil {
		t.Fatal(err)
	}
	two.cfg.Runtime, two.runtime = one.runtime, one.runtime
	two.start()
	a, b := s.submit(nil, "trap-term", "1"), s.submit(nil, "trap-term", "1")
	reqA, _ := one.run(a)
	reqB, _ := two.run(b)
	one.running(reqA)
	two.running(reqB)
	stranger := node.ContainerSpec{Name: "stranger", Image: "testprog", Command: []string{"sleep", "1m"}, CPUMilli: 1, MemoryMiB: 4}
	if _, err := one.runtime.Create(t.Context(), stranger); err != nil {
		t.Fatal(err)
	}
	one.restart()
	two.restart()
	one.running(reqA)
	two.running(reqB)
	if _, err := one.runtime.Inspect(t.Context(), "stranger"); err != nil {
		t.Errorf("the stranger: %v", err)
	}
}

func TestStateFolderBelongsToOneAgent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := agent.Run(t.Context(), m.cfg); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second agent in the same folder: %v", err)
	}
	cfg := m.cfg
	cfg.StateDir, cfg.Machine = t.TempDir(), "m9"
	if err := agent.Run(t.Context(), cfg); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("a spent join token: %v", err)
	}
	cfg.JoinToken = ""
	if err := agent.Run(t.Context(), cfg); err == nil {
		t.Error("an agent without a token ran")
	}
}
