package timeseries_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/internal/lib/timeseries"
	"berth/wire"
)

var (
	start  = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	cpu    = timeseries.Key{Metric: wire.MetricCPU}
	memory = timeseries.Key{Metric: wire.MetricMemory}
	busy   = timeseries.Key{Metric: wire.MetricGPU, GPU: "GPU-1"}
)

func after(seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)))
}

// show makes gaps comparable.
func show(all []wire.MetricSeries) map[string]string {
	m := map[string]string{}
	for _, s := range all {
		b, _ := json.Marshal(s.Values)
		m[string(s.Metric)+s.GPU] = string(b)
	}
	return m
}

func TestPointsAreRatesPeaksAndMeans(t *testing.T) {
	t.Parallel()
	r := timeseries.New(start, 2*time.Second)
	r.Add(after(1), timeseries.Sample{cpu: 0.5, memory: 100})
	r.Add(after(1.5), timeseries.Sample{cpu: 0.75, memory: 70, busy: 0.2})
	r.Add(after(1.9), timeseries.Sample{cpu: 0.95, memory: 30, busy: 0.6})
	r.Add(after(5), timeseries.Sample{cpu: 7.15, memory: 50, busy: 1}) // two cores over two steps; nothing is known of the memory between
	r.Add(after(4.5), timeseries.Sample{cpu: 100})                     // the clock was set back
	// The first step has 0.95 s of CPU in 1.9 s, then 0.1 s at two cores.
	want := map[string]string{"cpu": "[0.575,2,2]", "memory": "[100,null,50]", "gpuGPU-1": "[0.4,null,1]"}
	if diff := cmp.Diff(want, show(r.Series())); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	share := 0.6
	summary := &berth.Measured{Seconds: 5, CPUMean: 1.43, MemoryPeak: 100, GPUMean: &share}
	if diff := cmp.Diff(summary, r.Summary()); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	if timeseries.New(start, 0).Summary() != nil {
		t.Error("what was not measured has a summary")
	}
}

// A week of samples takes no more space than ten minutes of them, and gives the same
// usage.
func TestSeriesDoNotGrow(t *testing.T) {
	t.Parallel()
	r := timeseries.New(start, 0)
	longest := 0
	for i := 1; i <= 7*24*360; i++ {
		at := float64(10 * i)
		r.Add(after(at), timeseries.Sample{cpu: at * 1.5, memory: float64(i % 100), busy: float64(i % 2)})
		if i%997 == 0 || i == 1000 {
			all := r.Series()
			for _, s := range all {
				longest = max(longest, len(s.Values))
				if len(s.Values) != len(all[0].Values) {
					t.Fatalf("after %v s: %s has %d values, %s has %d", at, s.Metric, len(s.Values), all[0].Metric, len(all[0].Values))
				}
			}
		}
	}
	if longest > wire.MaxPoints || longest < wire.MaxPoints/2 {
		t.Errorf("the longest series had %d points: allowed are %d to %d", longest, wire.MaxPoints/2, wire.MaxPoints)
	}
	for _, s := range r.Series() {
		for i, v := range s.Values {
			want := map[wire.Metric]float64{wire.MetricCPU: 1.5, wire.MetricMemory: 99, wire.MetricGPU: 0.5}[s.Metric]
			if last := i == len(s.Values)-1; math.Abs(v-want) > 0.01 && !last {
				t.Fatalf("%s[%d] = %v, want %v", s.Metric, i, v, want)
			}
		}
	}
	if m := r.Summary(); m.CPUMean != 1.5 || m.MemoryPeak != 99 || *m.GPUMean != 0.5 || m.Seconds != 7*24*3600 {
		t.Errorf("summary is %+v", m)
	}
	if b, err := json.Marshal(r.Series()); err != nil || len(b) > 8<<10 {
		t.Errorf("three series take %d bytes: %v", len(b), err)
	}
}

func TestRecorderOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	whole, parts := timeseries.New(start, 0), timeseries.New(start, 0)
	for i := 1; i <= 1000; i++ {
		s := timeseries.Sample{cpu: float64(i * i), memory: float64(i % 7), busy: 0.25}
		whole.Add(after(float64(2*i)), s)
		parts.Add(after(float64(2*i)), s)
		if i%100 == 0 {
			b, err := parts.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			if parts = timeseries.Restore(b, start); parts == nil {
				t.Fatalf("not restored from %s", b)
			}
		}
	}
	if diff := cmp.Diff(show(whole.Series()), show(parts.Series())); diff != "" {
		t.Errorf("the restored recorder says otherwise (-whole +parts):\n%s", diff)
	}
	b, _ := parts.Marshal()
	for what, r := range map[string]*timeseries.Recorder{
		"another container's": timeseries.Restore(b, start.Add(time.Second)),
		"a damaged":           timeseries.Restore(b[:len(b)/2], start),
		"an empty":            timeseries.Restore(nil, start),
	} {
		if r != nil {
			t.Errorf("%s state is restored", what)
		}
	}
}
