package agent_test

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/failure"
	"berth/internal/machine/gpu"
)

// kernel is a kernel log that a test writes: each write is one record.
type kernel struct {
	r *io.PipeReader
	w *io.PipeWriter
}

func (k kernel) Open() (io.ReadCloser, error) { return k.r, nil }
func (kernel) Now() time.Duration             { return time.Hour }

func (k kernel) xid(t *testing.T, device, number int) {
	t.Helper()
	if _, err := fmt.Fprintf(k.w, "4,1,%d,-;NVRM: Xid (PCI:0000:%02x:00): %d, pid=1\n", time.Hour.Microseconds(), device, number); err != nil {
		t.Fatal(err)
	}
}

// onBus is an inventory whose devices have places on a bus.
type onBus struct{ declared }

func (onBus) TakeXids() []gpu.Event { return nil }

func (b onBus) Located(pci string) []string {
	var at int
	if _, err := fmt.Sscanf(pci, "0000:%02x:00", &at); err != nil || at >= len(b.declared) {
		return nil
	}
	return []string{b.declared[at].UUID}
}

// F38, from the kernel's log to the job's verdict and the machine's quarantine.
func TestF38KernelsWordDecidesJobAndMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	var k kernel
	k.r, k.w = io.Pipe()
	bus := onBus{m.cfg.GPUs.(declared)}
	watch, err := gpu.OpenWatch(bus, gpu.WatchOptions{File: filepath.Join(m.cfg.StateDir, "gpu-faults.json"), Boot: "boot-1", Kernel: k})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watch.Close() })
	m.cfg.GPUs = watch
	m.start()

	id := s.submit(nil, "sleep", "1h")
	req, w := m.run(id)
	m.running(req)
	k.xid(t, 0, 31)
	s.until("the agent has heard of it", func() bool {
		return watch.ApplicationXid([]string{bus.declared[0].UUID}, time.Now().Add(-time.Hour)) == 31
	})
	m.runtime.Exit(berth.ContainerName(id, 0, 1), 1)
	if x := w.exit(); x.Xid != 31 || x.Cause != failure.CauseExited {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Retrying || j.Reason.Rule != "gpu_application_error" || j.Failures != 1 {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}

	id = s.submit(nil, "trap-term", "0")
	req, w = m.runOn(1, id)
	m.running(req)
	k.xid(t, 1, 79)
	if x := w.exit(); x.Cause != failure.CauseGPU || !strings.Contains(x.Message, "XID 79") {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Retrying || j.Reason.Code != berth.ReasonGPUError || j.Losses != 1 {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	s.until("the machine is in quarantine", func() bool {
		mach, err := s.db.Machines.Get(t.Context(), "", "m1")
		return err == nil && strings.HasPrefix(string(mach.State), "drain") &&
			strings.Contains(mach.Reason, "XID 79") && mach.GPUs[0].Healthy && !mach.GPUs[1].Healthy
	})
}
