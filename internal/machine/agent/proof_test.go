package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// usedGPUs is an inventory whose devices a test lets processes use.
type usedGPUs struct {
	declared
	mu    sync.Mutex
	used  map[string]node.GPUHolding
	asked int
}

// use makes the driver report a holding of the first device. The zero holding is a free device.
func (g *usedGPUs) use(h node.GPUHolding) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.used = map[string]node.GPUHolding{g.declared[0].UUID: h}
}

func (g *usedGPUs) Holders(_ context.Context, uuids []string) (list []node.GPUHolding, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	for _, uuid := range uuids {
		h := g.used[uuid]
		h.UUID = uuid
		list = append(list, h)
	}
	return list, nil
}

// proofs returns how often the devices' holders were asked for.
func (g *usedGPUs) proofs() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// intruder is a process outside of Berth with 4 GiB of a device: this one.
func intruder() node.GPUHolding {
	return node.GPUHolding{MemoryBytes: 4 << 30, Processes: []node.GPUProcess{{PID: os.Getpid(), Bytes: 4 << 30}}}
}

// proving starts the machine again with such an inventory, and with checks.
func (m *machine) proving(edit func(*machine)) *usedGPUs {
	m.s.t.Helper()
	if err := m.stop(); err != nil {
		m.s.t.Fatal(err)
	}
	g := &usedGPUs{declared: m.cfg.GPUs.(declared)}
	m.cfg.GPUs = g
	m.cfg.Timing.ProofPatience, m.cfg.Timing.ProofEvery = 60*time.Millisecond, 10*time.Millisecond
	if edit != nil {
		edit(m)
	}
	m.start()
	// The first look, at the agent's start, finds the devices free; the test changes them later.
	m.s.until("the devices are proven", func() bool { return g.proofs() > 0 })
	return g
}

// gpu0 is the first device as the server has it.
func (m *machine) gpu0() wire.MachineGPU {
	m.s.t.Helper()
	mach, err := m.s.db.Machines.Get(m.s.t.Context(), "", m.id)
	if err != nil {
		m.s.t.Fatal(err)
	}
	return mach.GPUs[0]
}

func TestAJobMovesFromADeviceInUseOutsideOfBerth(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	g := m.proving(nil)
	g.use(intruder())
	id := s.submit(nil, "exit", "0")
	_, w := m.run(id)
	x := w.exit()
	if want := fmt.Sprintf("process %d", os.Getpid()); x.Cause != failure.CauseGPUInUse || x.Started() ||
		!strings.Contains(x.Message, want) || !strings.Contains(x.Message, "4.0 GiB since 20") {
		t.Errorf("exit is %+v, want %q, its memory and start", x, want)
	}
	// Nobody pays: no failure, no loss, no fault of the machine, and the machine stays open.
	if j := s.settle(id); j.Status != berth.Retrying || j.Reason.Rule != "gpu_in_use" || j.Failures != 0 || j.Losses != 0 {
		t.Errorf("job is %s, %+v, %d failures, %d losses", j.Status, j.Reason, j.Failures, j.Losses)
	}
	s.until("the device is out of use", func() bool {
		d := m.gpu0()
		return !d.Healthy && strings.Contains(d.Reason, fmt.Sprintf("in use outside of Berth by process %d", os.Getpid()))
	})
	if state := s.machineState("m1"); state != berth.MachineReady {
		t.Errorf("machine is %s", state)
	}
	g.use(node.GPUHolding{})
	s.until("the device is in use again", func() bool { return m.gpu0().Healthy })
}

func TestADeviceIsProvenBeforeAnExitFreesIt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	g := m.proving(nil)
	id := s.submit(nil, "sleep", "1h")
	req, w := m.run(id)
	m.running(req)
	// Memory that no process has: a driver whose list misses the process, or that has not given it back.
	g.use(node.GPUHolding{MemoryBytes: 1 << 30})
	m.runtime.Exit(berth.ContainerName(id, 0, 1), 0)
	if x := w.exit(); x.Cause != failure.CauseExited || x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	if d := m.gpu0(); d.Healthy || !strings.Contains(d.Reason, "1.0 GiB of its memory in use by no listed process") {
		t.Errorf("with the exit on record, the device is %+v", d)
	}
	if j := s.settle(id); j.Status != berth.Succeeded {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	// Another agent process proves the device again, before any job.
	m.restart()
	s.until("the device is out of use", func() bool { return !m.gpu0().Healthy })
	g.use(node.GPUHolding{MemoryBytes: node.FreeMemory})
	s.until("the device is in use again", func() bool { return m.gpu0().Healthy })
}

// check writes a program for the operator's checks.
func check(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "check")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAFailedCheckClosesTheMachineAndTheJobMoves(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.proving(func(m *machine) {
		m.cfg.Checks.Before = check(t, `echo "$BERTH_CHECK $BERTH_TENANT $BERTH_MEMBER of $BERTH_JOB_ID on $BERTH_GPUS: fan broken"; exit 3`)
	})
	id := s.submit(nil, "sleep", "1h")
	_, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseCheck || x.Started() || !strings.HasSuffix(x.Message, "exit status 3: before default 0 of "+string(id)+" on m1-0: fan broken") {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Retrying || j.Reason.Rule != "check_failed" || j.Failures != 0 || j.Losses != 0 {
		t.Errorf("job is %s, %+v, %d failures, %d losses", j.Status, j.Reason, j.Failures, j.Losses)
	}
	mach, err := s.db.Machines.Get(t.Context(), "", "m1")
	if err != nil || mach.State == berth.MachineReady || !strings.Contains(mach.Reason, "exit status 3") {
		t.Errorf("machine is %+v, %v", mach, err)
	}
	want := fmt.Sprintf("its output ends with: before default 0 of %s on m1-0: fan broken", id)
	if e := s.eventsOf(id, wire.EventWarning); len(e) != 1 || !strings.Contains(e[0].Detail, want) {
		t.Errorf("warnings are %+v, want %q", e, want)
	}
}

func TestACheckAfterTheEndLeavesTheResult(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.proving(func(m *machine) {
		m.cfg.Checks.Before = check(t, "exit 0")
		m.cfg.Checks.After = check(t, `echo "code $BERTH_EXIT_CODE"; sleep 100 & sleep 100`)
		m.cfg.Checks.Timeout = 15 * time.Second // also of the check before, which must end in time
	})
	id := s.submit(func(j *spec.Job) {}, "exit", "0")
	_, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseExited || x.Code != 0 || !strings.Contains(x.CheckFailed, "stopped after 15s") {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Succeeded {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	mach, err := s.db.Machines.Get(t.Context(), "", "m1")
	if err != nil || mach.State == berth.MachineReady || !strings.Contains(mach.Reason, "stopped after 15s") {
		t.Errorf("machine is %+v, %v", mach, err)
	}
	if e := s.eventsOf(id, wire.EventWarning); len(e) != 1 || !strings.Contains(e[0].Detail, "code 0") {
		t.Errorf("warnings are %+v", e)
	}
}
