package agent

import (
	"encoding/json"
	"math"
	"os"
	"sync"
	"time"
)

// bestMetric keeps the recent values of the metric that checkpoint.keep_best names, as the
// progress file had them. It is safe for concurrent use: the progress watcher and the uploader
// both add the values that they read.
type bestMetric struct {
	name      string
	workspace *os.Root

	mu   sync.Mutex
	read []metricValue // by time, the oldest first; at most maxMetricValues
}

// metricValue is one version of the progress file with a value of the metric.
type metricValue struct {
	at    time.Time // of the file
	step  int64
	value float64
}

// maxMetricValues bounds the memory of a member. A checkpoint needs the values since the one
// before it.
const maxMetricValues = 512

// add notes the value in a progress file with the given content and time.
func (b *bestMetric) add(content []byte, at time.Time) {
	var file struct {
		Step   int64          `json:"step"`
		Values map[string]any `json:"values"`
	}
	if json.Unmarshal(content, &file) != nil {
		return
	}
	v, ok := file.Values[b.name].(float64)
	if !ok || math.IsNaN(v) || math.IsInf(v, 0) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.read); n > 0 && !at.After(b.read[n-1].at) { // read by the other reader already
		return
	}
	if b.read = append(b.read, metricValue{at, file.Step, v}); len(b.read) > maxMetricValues {
		b.read = b.read[1:]
	}
}

// of returns the value for a checkpoint that was complete at done: the one that the job reported
// with the number of the checkpoint's step or, without such a report, its last one before done. A
// value from before the time since, when the checkpoint before was complete, says nothing about
// this one. nil: the job has reported none.
func (b *bestMetric) of(step int64, since, done time.Time) *float64 {
	if info, err := b.workspace.Stat(progressFile); err == nil {
		if content, err := readRegular(b.workspace, progressFile, maxProgress); err == nil {
			b.add(content, info.ModTime())
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var last *float64
	for i := len(b.read) - 1; i >= 0 && b.read[i].at.After(since); i-- {
		v := b.read[i]
		if v.step == step {
			return &v.value
		}
		if last == nil && !v.at.After(done) {
			last = &v.value
		}
	}
	return last
}
