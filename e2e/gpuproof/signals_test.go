package gpuproof_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	sampleEvery = 200 * time.Millisecond
	sampleTime  = 15 * time.Second
	// settleTime passes before the first sample: the driver reports rates over its last period.
	settleTime = 1500 * time.Millisecond
)

// expectation is the right answer to whether a workload shows the sign of life `gpu`.
type expectation int

const (
	quiet expectation = iota
	alive
	either // both are defensible; docs/guide/hangs.md says which one it is
)

// signals are the workloads, in the order in which they run.
var signals = []struct {
	name    string
	command string // "": none
	want    expectation
	length  time.Duration
}{
	{"idle", "", quiet, sampleTime / 3},
	{"context", "context", quiet, sampleTime / 3},
	{"train", "train", alive, sampleTime},
	{"train, asleep 70 %", "train 0.7", alive, sampleTime},
	{"train, asleep 95 %", "train 0.95", either, sampleTime},
	{"small model", "small", either, sampleTime / 3},
	{"matrices in cache", "matmul 2048", alive, sampleTime / 3},
	{"spin, 24 blocks, flag in device memory", "spin spin_one 24 512 device", quiet, sampleTime},
	{"spin, 24 blocks, flag in host memory", "spin spin_one 24 512 host", quiet, sampleTime},
	{"spin, 24 blocks, all threads", "spin spin_all 24 512 device", quiet, sampleTime / 3},
	{"spin, 32 blocks, all threads, host", "spin spin_all 32 640 host", quiet, sampleTime / 3},
	{"spin, one block", "spin spin_one 1 32 host", quiet, sampleTime / 3},
	{"one thread reads the clock", "sleep_kernel", quiet, sampleTime / 3},
}

func TestSignOfLifeTellsWorkFromWaiting(t *testing.T) {
	s := open(t)
	w := startWorker(t)
	w.ready(t)
	for _, g := range signals {
		if g.command != "" {
			if _, err := w.begin(t, g.command); err != nil {
				t.Errorf("%s: %v", g.name, err)
				continue
			}
		}
		works, samples := s.sample(t, g.name, g.length)
		switch {
		case samples == 0:
			t.Errorf("%s: no sample", g.name)
		case g.want == quiet && works > 0:
			t.Errorf("%s: %d of %d samples show work", g.name, works, samples)
		case g.want == alive && works == 0:
			t.Errorf("%s: none of %d samples shows work", g.name, samples)
		}
	}
}

// sample measures the device, and returns in how many of the samples it works.
func (s site) sample(t *testing.T, name string, length time.Duration) (works, samples int) {
	t.Helper()
	values := map[string][]float64{}
	begun, tick := time.Now(), time.NewTicker(sampleEvery)
	defer tick.Stop()
	for now := range tick.C {
		if now.Sub(begun) > settleTime+length {
			break
		}
		if now.Sub(begun) < settleTime {
			continue
		}
		use, err := s.inv.Use(t.Context(), []string{s.uuid})
		if err != nil || len(use) != 1 {
			t.Fatalf("measure: %v, %d devices", err, len(use))
		}
		u := use[0]
		samples++
		if u.Works() {
			works++
		}
		values["utilization"] = append(values["utilization"], u.Utilization)
		values["memory GiB"] = append(values["memory GiB"], float64(u.MemoryBytes)/(1<<30))
		if u.MemoryBusy != nil {
			values["memory traffic"] = append(values["memory traffic"], *u.MemoryBusy)
		}
		if u.Watts != nil {
			values["watts"] = append(values["watts"], *u.Watts)
		}
		if u.Watts != nil && u.LimitWatts != nil && *u.LimitWatts > 0 {
			values["share of limit"] = append(values["share of limit"], *u.Watts / *u.LimitWatts)
		}
		if mhz, ret := s.device.GetClockInfo(nvml.CLOCK_SM); ret == nvml.SUCCESS {
			values["SM MHz"] = append(values["SM MHz"], float64(mhz))
		}
	}
	line := map[string]any{"workload": name, "works": works, "samples": samples}
	verdict := "hung"
	if works > 0 {
		verdict = "alive"
	}
	line["berth"] = verdict
	for what, v := range values {
		slices.Sort(v)
		line[what] = fmt.Sprintf("%.3g/%.3g/%.3g", v[0], v[len(v)/2], v[len(v)-1])
	}
	record(t, "signals", line)
	return works, samples
}
