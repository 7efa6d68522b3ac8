package agent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/internal/machine/deadman"
	"berth/spec"
	"berth/wire"
)

// serves checks that a job runs on the machine's second device, and ends well.
func (m *machine) serves(id berth.JobID) {
	m.s.t.Helper()
	m.until("machine is ready", func() bool { return m.s.machineState(m.id) == berth.MachineReady })
	_, w := m.runOn(1, id)
	if x := w.exit(); x.Code != 0 {
		m.s.t.Errorf("exit is %+v", x)
	}
	if j := m.s.settle(id); j.Status != berth.Succeeded {
		m.s.t.Errorf("job is %s", j.Status)
	}
}

// asksSoon makes the agent, from its next process on, warn soon of a container whose state its engine does not give.
func (m *machine) asksSoon() {
	m.cfg.Timing.EngineProbe, m.cfg.Timing.EnginePatience = 20*time.Millisecond, 50*time.Millisecond
}

// An engine that gives the state of one container no more keeps the agent neither from registering nor from serving
// the others. Nothing is known about this one, so nothing is decided about it: its member holds its capacity, also
// across restarts of the agent, until the engine answers.
func TestAContainerWithoutAnAnswerHoldsUpNoOtherOne(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	stuck, other := s.submit(nil, "trap-term", "0"), s.submit(nil, "trap-term", "0")
	reqStuck, wStuck := m.run(stuck)
	reqOther, wOther := m.runOn(1, other)
	for _, id := range []berth.JobID{stuck, other} {
		s.until("the start is reported", func() bool { return s.job(id).Status == berth.Running })
	}
	name := berth.ContainerName(stuck, 0, 1)
	before, err := m.container(reqStuck)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.runtime.Silence(name, true)
	m.asksSoon()
	m.start()
	m.endsWhenReady(reqOther)
	if x := wOther.exit(); x.Code != 0 {
		t.Errorf("the other job ended with %+v", x)
	}
	s.settle(other)
	m.serves(s.submit(nil, "exit", "0"))
	s.until("the job shows that its state is unknown", func() bool {
		return s.hasEvent(stuck, wire.EventWarning, "does not give the state of this member's container")
	})
	m.restart()
	m.serves(s.submit(nil, "exit", "0"))
	if j := s.job(stuck); j.Status != berth.Running || j.Attempt != 1 {
		t.Errorf("the job is %s, attempt %d", j.Status, j.Attempt)
	}
	if state, used := s.allocation(reqStuck); state != berth.AllocActive || used != 1000 {
		t.Errorf("its allocation is %s and holds %d", state, used)
	}
	m.runtime.Silence(name, false)
	if after, err := m.container(reqStuck); err != nil || after.ID != before.ID || after.State != node.ContainerRunning {
		t.Errorf("its container was %+v and is %+v, %v", before, after, err)
	}
	m.endsWhenReady(reqStuck)
	if x := wStuck.exit(); x.Code != 0 {
		t.Errorf("it ended with %+v", x)
	}
	if j := s.settle(stuck); j.Status != berth.Succeeded || len(j.Attempts) != 1 {
		t.Errorf("it is %s after %d attempts", j.Status, len(j.Attempts))
	}
}

// The job of a lost machine goes on elsewhere. The container of the old attempt may run, so the machine that comes
// back without an answer about it gives back nothing.
func TestAnOrphanWithoutAnAnswerKeepsItsCapacity(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "sleep", "1h")
	req, _ := m.run(id)
	m.running(req)
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`UPDATE allocations SET state = 'orphaned', orphaned_at = now(), orders = orders || '{"kill": true}'`,
		`UPDATE machines SET state = 'lost'`,
	} {
		if _, err := s.db.Pool().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	s.settle(id)
	name := berth.ContainerName(id, 0, 1)
	m.runtime.Silence(name, true)
	m.start()
	m.until("the removal was tried", func() bool { return strings.Contains(m.logs.text(), "cannot remove leftovers") })
	m.restart()
	if state, used := s.allocation(req); state != berth.AllocOrphaned || used != 1000 {
		t.Errorf("its allocation is %s and holds %d", state, used)
	}
	if state := s.machineState("m1"); state != berth.MachineJoining {
		t.Errorf("the machine is %s", state)
	}
	m.runtime.Silence(name, false)
	m.cleared(req)
	if state, _ := s.stateOf(req); state != berth.AllocReleased {
		t.Errorf("its allocation is %s", state)
	}
	m.until("the machine takes work", func() bool { return s.machineState("m1") == berth.MachineReady })
}

// stateOf returns the state of a member, and whether it counts against the capacity of its machine.
func (s *site) stateOf(req wire.RunRequest) (state berth.AllocationState, counts bool) {
	s.t.Helper()
	if err := s.db.Pool().QueryRow(s.t.Context(), `SELECT state, counts(state) FROM allocations WHERE id = $1`,
		int64(req.Alloc)).Scan(&state, &counts); err != nil {
		s.t.Fatal(err)
	}
	return state, counts
}

// A container whose rows are lost with the tail of the database may run. It stays, as one that runs.
func TestAForgottenContainerWithoutAnAnswerIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "sleep", "1h")
	req, _ := m.run(id)
	m.running(req)
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	s.forget(id)
	m.runtime.Silence(berth.ContainerName(id, 0, 1), true)
	m.start()
	m.until("it is in quarantine", func() bool { return strings.Contains(m.logs.text(), "does not know a container") })
	m.runtime.Silence(berth.ContainerName(id, 0, 1), false)
	if c, err := m.container(req); err != nil || c.State != node.ContainerRunning {
		t.Errorf("the container is %+v, %v", c, err)
	}
}

// A start that hangs makes the state of its container unknown, and may then fail. The container has never run, so it
// does not keep its machine out of work, and is removed. One that is known to run stays.
func TestAForgottenContainerThatNeverStartedIsRemoved(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.cfg.Timing.StraySweep = 10 * time.Millisecond
	cluster, err := s.db.Cluster.ID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	created, createdLabels := strayIn(cluster)
	runs, runsLabels := strayIn(cluster)
	for name, labels := range map[string]map[string]string{created: createdLabels, runs: runsLabels} {
		m.make(name, labels)
		m.runtime.Silence(name, true)
	}
	m.start()
	m.until("both are in quarantine", func() bool {
		return strings.Count(m.logs.text(), "does not know a container") == 2
	})
	m.runtime.Silence(runs, false)
	if err := m.runtime.Start(t.Context(), runs); err != nil {
		t.Fatal(err)
	}
	var looks atomic.Int32
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "Inspect" && c.Subject == created {
			looks.Add(1)
		}
		return nil
	})
	m.runtime.Silence(created, false)
	gone := func() bool { return !slices.Contains(m.containers(), created) }
	m.until("it is removed, or many looks at it change nothing", func() bool { return gone() || looks.Load() > 50 })
	if !gone() {
		t.Fatal("the one that never started stays")
	}
	if state := s.machineState("m1"); state != berth.MachineJoining {
		t.Errorf("the machine with the other one is %s", state)
	}
	m.runtime.Exit(runs, 0)
	m.until("the machine takes work", func() bool { return s.machineState("m1") == berth.MachineReady })
}

// A member warns of its container once the engine answers probes and does not give the container's state, whichever
// error it answers instead. An engine that is silent as a whole is a fact about the machine, not about its jobs.
func TestAMemberWarnsOfAContainerWithoutAState(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "sleep", "1h")
	req, w := m.run(id)
	m.running(req)
	s.until("the start is reported", func() bool { return s.job(id).Status == berth.Running })
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	name := berth.ContainerName(id, 0, 1)
	var answers atomic.Bool // all but this container's state
	m.runtime.Silence(name, true)
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		switch {
		case !answers.Load() && c.Method == "Probe":
			return context.DeadlineExceeded
		case answers.Load() && c.Method == "Inspect" && c.Subject == name:
			return errors.New("RWLayer of the container is missing")
		}
		return nil
	})
	m.asksSoon()
	m.start()
	m.until("the engine counts as silent", func() bool {
		return strings.Contains(m.logs.text(), "container engine does not answer, machine gets no new work")
	})
	tries := func() int {
		return strings.Count(m.logs.text(), "does not give the state of the container, will retry")
	}
	before := tries()
	m.until("the member has asked again", func() bool { return tries() > before+20 })
	if s.hasEvent(id, wire.EventWarning, "container engine") {
		t.Fatalf("the job shows the silence of the whole engine: %+v", s.events(id))
	}
	answers.Store(true)
	s.until("the job shows the engine's answer", func() bool {
		return s.hasEvent(id, wire.EventWarning, "the state of this member's container (RWLayer of the container is missing)")
	})
	m.runtime.Intercept(nil)
	m.runtime.Silence(name, false)
	m.runtime.Exit(name, 0)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Succeeded || j.Attempt != 1 {
		t.Errorf("the job is %s, attempt %d", j.Status, j.Attempt)
	}
}

// The devices of a member without an answer are in use by it: what is on them is no foreign use.
func TestAMemberWithoutAnAnswerKeepsItsGPUs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	g := m.proving(func(m *machine) { m.asksSoon() })
	id := s.submit(nil, "sleep", "1h")
	req, w := m.run(id)
	m.running(req)
	s.until("the start is reported", func() bool { return s.job(id).Status == berth.Running })
	g.use(node.GPUHolding{MemoryBytes: 1 << 30}) // of a process that the driver does not list
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	name := berth.ContainerName(id, 0, 1)
	m.runtime.Silence(name, true)
	m.start()
	s.until("the job shows that its state is unknown", func() bool {
		return s.hasEvent(id, wire.EventWarning, "does not give the state of this member's container")
	})
	before := g.proofs()
	s.until("the device is proven, or many proofs fail", func() bool {
		return m.gpu0().Healthy || g.proofs() > before+50
	})
	if d := m.gpu0(); !d.Healthy {
		t.Errorf("the device is %+v", d)
	}
	m.runtime.Silence(name, false)
	g.use(node.GPUHolding{})
	m.runtime.Exit(name, 0)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Succeeded {
		t.Errorf("the job is %s", j.Status)
	}
}

// The deadman goes on to watch the container of at_most_one work, which may run.
func TestAFencedContainerWithoutAnAnswerStaysUnderItsFence(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.fences()
	id := s.submit(func(j *spec.Job) { j.Execution = spec.AtMostOne }, "sleep", "1h")
	req, _ := m.run(id)
	m.running(req)
	c, err := m.container(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.runtime.Silence(c.Name, true)
	m.asksSoon()
	m.start()
	s.until("its state is known to be unknown", func() bool { return s.hasEvent(id, wire.EventWarning, "does not give the state") })
	lease, err := deadman.ReadLease(deadman.Dir(m.cfg.StateDir))
	if err != nil || !slices.ContainsFunc(lease.Ranks, func(r deadman.Rank) bool { return r.Container == c.ID }) {
		t.Errorf("the deadman watches %+v, %v; want %s", lease.Ranks, err, c.ID)
	}
	m.runtime.Silence(c.Name, false)
}

// A machine that was removed from the cluster ends itself once it runs no container. One without an answer may run.
func TestAContainerWithoutAnAnswerKeepsARetiredMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Machines.Retire(t.Context(), "m1", "operator:test"); err != nil {
		t.Fatal(err)
	}
	m.make("left", map[string]string{berth.LabelMachine: "m1"})
	m.runtime.Silence("left", true)
	engine := &looking{Fake: m.runtime}
	m.cfg.Runtime = engine
	done := runs(t, belted(m.cfg))
	m.until("the agent has failed", func() bool { return strings.Contains(m.logs.text(), "agent failed, machine will be shut down") })
	seen := engine.looks.Load()
	m.until("the belt looks again", func() bool { return engine.looks.Load() > seen+50 })
	select {
	case err := <-done:
		t.Fatalf("a container may run, and the agent ends: %v", err)
	default:
	}
	m.runtime.Silence("left", false)
	unneeded(t, done) // it was never started
}
