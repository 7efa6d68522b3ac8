package agent_test

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// busy is an inventory whose devices are at work while on.
type busy struct {
	declared
	off atomic.Bool
}

func (b *busy) Use(_ context.Context, uuids []string) ([]wire.GPUUse, error) {
	if b.off.Load() {
		return nil, errors.New("the driver hangs")
	}
	var list []wire.GPUUse
	for _, uuid := range uuids {
		list = append(list, wire.GPUUse{UUID: uuid, Utilization: 0.75, MemoryBytes: 5 << 30})
	}
	return list, nil
}

// metered makes the agent measure often, from its next process on.
func (m *machine) metered(b *busy) {
	m.s.t.Helper()
	if err := m.stop(); err != nil {
		m.s.t.Fatal(err)
	}
	if b != nil {
		b.declared = m.cfg.GPUs.(declared)
		m.cfg.GPUs = b
	}
	m.cfg.Timing.UseStep, m.cfg.Timing.UseFirst, m.cfg.Timing.UseEvery = 10*time.Millisecond, 30*time.Millisecond, 30*time.Millisecond
	m.start()
}

// metrics returns the stored metrics of a job's first attempt, nil without any.
func (s *site) metrics(id berth.JobID) *wire.MemberMetrics {
	s.t.Helper()
	b, err := s.blobs.ReadAll(s.t.Context(), berth.MetricsKey("default", id, 1, 0), wire.MaxMetricBytes)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	m, err := wire.ParseMemberMetrics(b)
	if err != nil {
		s.t.Fatalf("%v in %s", err, b)
	}
	return &m
}

// measured counts the values of a metric.
func measured(m *wire.MemberMetrics, metric wire.Metric) (n int) {
	if m == nil {
		return 0
	}
	for _, line := range m.Series {
		for _, v := range line.Values {
			if line.Metric == metric && !math.IsNaN(v) {
				n++
			}
		}
	}
	return n
}

// covered is how long a metric was measured, to a step or two: the longer a rank
// runs, the fewer and longer are its steps.
func covered(m *wire.MemberMetrics, metric wire.Metric) time.Duration {
	if m == nil {
		return 0
	}
	return time.Duration(measured(m, metric)) * m.Step.Std()
}

// The use of a rank is stored while the rank runs, so that the machine may vanish at any time;
// another process of the agent goes on with the same series.
func TestUseIsStoredWhileARankRunsAndOutlivesTheAgent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.metered(&busy{})
	id := s.submit(nil, "trap-term", "0")
	req, _ := m.run(id)
	s.until("some use is stored", func() bool { return measured(s.metrics(id), wire.MetricGPU) >= 3 })
	before := s.metrics(id)
	m.restart()
	w := m.wait(req)
	s.until("more is stored", func() bool {
		return covered(s.metrics(id), wire.MetricGPUMemory) > covered(before, wire.MetricGPUMemory)+3*before.Step.Std()
	})
	after := s.metrics(id)
	if !after.StartedAt.Equal(before.StartedAt) || after.Machine != "m1" {
		t.Errorf("before %+v, after %+v", before, after)
	}
	s.cancel(id)
	x := w.exit()
	if x.Measured == nil || x.Measured.GPUMean == nil || *x.Measured.GPUMean != 0.75 || x.Measured.GPUMemoryPeak != 5<<30 {
		t.Errorf("exit is %+v, measured %+v", x, x.Measured)
	}
	j := s.settle(id)
	if len(j.Attempts) != 1 || len(j.Attempts[0].Measured) != 1 || *j.Attempts[0].Measured[0].GPUMean != 0.75 {
		t.Errorf("attempts are %+v", j.Attempts)
	}
	end := s.metrics(id)
	if d, had := covered(end, wire.MetricGPU), covered(after, wire.MetricGPU); d+2*end.Step.Std() < had {
		t.Errorf("at the end %s are stored, and there were %s", d, had)
	}
	m.cleared(req)
}

// A cluster runs a million short jobs a day: they leave no object, no row, and
// no word in the rows that there are.
func TestUseOfShortJobsCostsNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "echo", "hello")
	_, w := m.run(id)
	if x := w.exit(); x.Measured != nil {
		t.Errorf("exit has %+v", x.Measured)
	}
	s.settle(id)
	_ = filepath.WalkDir(s.blobDir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || strings.Contains(path, "metrics") {
			t.Errorf("%s is stored, %v", path, err)
		}
		return nil
	})
}

// A control plane or a driver that does not answer holds up nothing: neither
// the rank nor its seal.
func TestUseThatCannotBeStoredHoldsUpNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	b := &busy{}
	m.metered(b)
	id := s.submit(nil, "trap-term", "0")
	req, w := m.run(id)
	s.until("some use is stored", func() bool { return measured(s.metrics(id), wire.MetricGPU) > 0 })
	m.running(req)
	b.off.Store(true)
	refuse := func(r *http.Request) int {
		if strings.HasSuffix(r.URL.Path, "metrics.json") {
			return http.StatusServiceUnavailable
		}
		return 0
	}
	s.gate.refuse.Store(&refuse)
	s.cancel(id)
	if x := w.exit(); x.Measured == nil {
		t.Errorf("exit is %+v", x)
	}
	s.settle(id)
	m.cleared(req)
}

// GPUs at work are a sign of life.
func TestBusyGPUsAreNoStall(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	b := &busy{}
	m.metered(b)
	const stall = 2 * time.Second // a sample may be late by a slow write
	id := s.submit(func(j *spec.Job) { j.StallTimeout = spec.Duration(stall) }, "trap-term", "0")
	_, w := m.run(id)
	s.until("it has run for longer than its stall_timeout", func() bool { return covered(s.metrics(id), wire.MetricGPU) > stall*3/2 })
	b.off.Store(true)
	if x := w.exit(); x.Cause != failure.CauseStalled {
		t.Errorf("exit is %+v", x)
	}
	s.settle(id)
}

// The measured use of a machine follows its GPUs.
func TestUseOfAMachineIsReported(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	b := &busy{}
	m.metered(b)
	use := func() *wire.MeasuredUse {
		found, err := s.db.Machines.Get(t.Context(), "", "m1")
		if err != nil {
			t.Fatal(err)
		}
		return found.Measured
	}
	s.until("the GPUs are shown", func() bool { u := use(); return u != nil && len(u.GPUs) == 2 && *u.GPUs[0].Busy == 0.75 })
	if u := use(); u.GPUs[0].UUID != "m1-0" || *u.GPUs[0].MemoryMiB != 5<<10 {
		t.Errorf("the use is %+v", u.GPUs[0])
	}
	b.off.Store(true)
	s.until("the use is shown without GPUs", func() bool { return len(use().GPUs) == 0 })
	b.off.Store(false)
	s.until("the GPUs are shown again", func() bool { return len(use().GPUs) == 2 })
}

func TestDockerUseIsMeasured(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	m.metered(nil)
	id := s.submit(nil, "do", "eat-memory 20", "lines 100 20ms", "trap-term 0")
	req, w := m.run(id)
	s.until("it was measured for a while", func() bool { return measured(s.metrics(id), wire.MetricCPU) >= 60 })
	memory := func() int64 {
		found, err := s.db.Machines.Get(t.Context(), "", "m1")
		if err != nil || found.Measured == nil {
			return -1
		}
		return found.Measured.MemoryMiB
	}
	s.until("the machine shows its memory", func() bool { return memory() >= 20 && memory() <= 64 })
	m.endsWhenReady(req)
	x := w.exit()
	if x.Code != 0 || x.Measured == nil {
		t.Fatalf("exit is %+v", x)
	}
	if u := x.Measured; u.MemoryPeak < 20<<20 || u.MemoryPeak > 64<<20 || u.CPUMean <= 0 || u.CPUMean > 8 || u.Seconds < 0.5 {
		t.Errorf("measured %+v", u)
	}
	stored := s.metrics(id)
	if stored == nil {
		t.Fatal("nothing is stored")
	}
	var metrics []wire.Metric
	for _, line := range stored.Series {
		metrics = append(metrics, line.Metric)
	}
	for _, want := range []wire.Metric{wire.MetricCPU, wire.MetricMemory, wire.MetricReceived, wire.MetricSent} {
		if !slices.Contains(metrics, want) {
			t.Errorf("%s is not measured; there are %v", want, metrics)
		}
	}
	s.settle(id)
	s.until("the machine shows no memory of an ended job", func() bool { return memory() == 0 })
}
