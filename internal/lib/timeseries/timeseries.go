// Package timeseries stores the measurements of one member in constant space: a fixed
// number of points, each of which covers a longer interval the longer the member
// runs. It does no I/O and reads no clock. A Recorder is not safe for concurrent use.
package timeseries

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"time"

	"berth"
	"berth/wire"
)

// Step is the time of one point in a series short enough for one point per sample.
const Step = 2 * time.Second

// Key names one series.
type Key struct {
	Metric wire.Metric `json:"metric"`
	GPU    string      `json:"gpu,omitempty"`
	Name   string      `json:"name,omitempty"` // of a progress value
}

// Sample holds the values read at a moment. Counters of use are totals since the
// member's start: seconds of CPU, bytes.
type Sample map[Key]float64

// kind is how samples become a point.
type kind int

const (
	rate kind = iota // of a counter: growth in the step by its time
	peak             // the largest in the step
	mean             // of the samples in the step
)

// kind returns how samples of a metric are combined into one point.
func (k Key) kind() kind {
	switch k.Metric {
	case wire.MetricMemory, wire.MetricGPUMemory:
		return peak
	case wire.MetricGPU, wire.MetricProgress:
		return mean
	default:
		return rate
	}
}

// Recorder keeps the series of one member. Its zero value is of no use; see New.
type Recorder struct {
	state
	lines map[Key]*line
}

// state is the part of Marshal's output in addition to the lines.
type state struct {
	Start time.Time     `json:"start"`
	Step  time.Duration `json:"step"`
	At    time.Time     `json:"at"` // of the last sample; Start before the first
	Lines []*line       `json:"lines,omitempty"`
}

// line is one series: cells[i] collects the samples of step i.
type line struct {
	Key
	Cells []cell  `json:"cells"`
	Last  float64 `json:"last"` // of a counter
}

// cell is a sum and its divisor: seconds for a rate, samples for a mean. A divisor
// of 0 is a gap.
type cell [2]float64

// New returns a recorder of a member that began at start, with all its counters
// at 0 then. A step of 0 is Step.
func New(start time.Time, step time.Duration) *Recorder {
	return &Recorder{state: state{Start: start, Step: cmp.Or(step, Step), At: start}, lines: map[Key]*line{}}
}

// Restore returns the recorder that Marshal wrote, nil for damaged bytes or for a member with
// another start.
func Restore(b []byte, start time.Time) *Recorder {
	r := New(start, 0)
	if json.Unmarshal(b, &r.state) != nil || !r.Start.Equal(start) || r.Step <= 0 || r.At.Before(r.Start) {
		return nil
	}
	for _, l := range r.state.Lines {
		if len(l.Cells) > wire.MaxPoints {
			return nil
		}
		r.lines[l.Key] = l
	}
	r.state.Lines = nil
	return r
}

// Marshal returns all that Restore needs.
func (r *Recorder) Marshal() ([]byte, error) {
	s := r.state
	s.Lines = r.sorted()
	return json.Marshal(s)
}

// Empty reports whether nothing was measured.
func (r *Recorder) Empty() bool { return len(r.lines) == 0 }

// Add takes a sample. One that is not later than the last is ignored: a clock
// was set.
func (r *Recorder) Add(at time.Time, s Sample) {
	if !at.After(r.At) || len(s) == 0 {
		return
	}
	for r.index(at) >= wire.MaxPoints {
		r.halve()
	}
	for key, v := range s {
		l := r.lines[key]
		if l == nil {
			l = &line{Key: key}
			r.lines[key] = l
		}
		if i := r.index(at) + 1; len(l.Cells) < i {
			l.Cells = append(l.Cells, make([]cell, i-len(l.Cells))...)
		}
		switch c := &l.Cells[r.index(at)]; key.kind() {
		case peak:
			c[0], c[1] = max(c[0], v), 1
		case mean:
			c[0], c[1] = c[0]+v, c[1]+1
		case rate:
			if v >= l.Last { // else it was reset, which a container's never is
				r.spread(l, at, v-l.Last)
			}
			l.Last = v
		}
	}
	r.At = at
}

// index returns the point of a time.
func (r *Recorder) index(at time.Time) int { return int(at.Sub(r.Start) / r.Step) }

// spread shares a counter's growth out over the steps since the last sample, by
// the time that lies in each.
func (r *Recorder) spread(l *line, to time.Time, growth float64) {
	perSecond := growth / to.Sub(r.At).Seconds()
	for i := r.index(r.At); i <= r.index(to); i++ {
		begin := r.Start.Add(time.Duration(i) * r.Step)
		from, until := begin, begin.Add(r.Step)
		if r.At.After(from) {
			from = r.At
		}
		if to.Before(until) {
			until = to
		}
		seconds := until.Sub(from).Seconds()
		l.Cells[i][0] += perSecond * seconds
		l.Cells[i][1] += seconds
	}
}

// halve makes one step of two.
func (r *Recorder) halve() {
	r.Step *= 2
	for _, l := range r.lines {
		half := l.Cells[:0]
		for i := 0; i < len(l.Cells); i += 2 {
			c := l.Cells[i]
			if i+1 < len(l.Cells) {
				next := l.Cells[i+1]
				if l.kind() == peak {
					c = cell{max(c[0], next[0]), max(c[1], next[1])}
				} else {
					c = cell{c[0] + next[0], c[1] + next[1]}
				}
			}
			half = append(half, c)
		}
		l.Cells = half
	}
}

// Series returns the present series for display: all of one length, in the order of
// the metrics.
func (r *Recorder) Series() []wire.MetricSeries {
	all := []wire.MetricSeries{}
	for _, l := range r.sorted() {
		if l.Metric != wire.MetricProgress {
			all = append(all, wire.MetricSeries{Metric: l.Metric, GPU: l.GPU, Unit: l.Metric.Unit(),
				Values: r.points(l)})
		}
	}
	return all
}

// Progress returns the job's own values by name, with as many points as Series has.
func (r *Recorder) Progress() []wire.ProgressSeries {
	var all []wire.ProgressSeries
	for _, l := range r.sorted() {
		if l.Metric == wire.MetricProgress {
			all = append(all, wire.ProgressSeries{Name: l.Name, Values: r.points(l)})
		}
	}
	return all
}

// points returns the points of a line up to the last sample, with NaN for gaps.
func (r *Recorder) points(l *line) wire.Values {
	values := make(wire.Values, r.index(r.At)+1)
	for j := range values {
		values[j] = math.NaN()
		if j < len(l.Cells) && l.Cells[j][1] > 0 {
			values[j] = round(l.Metric, l.Cells[j][0]/l.Cells[j][1])
		}
	}
	return values
}

// round drops digits beyond the accuracy of the measurement: they would be most of
// the stored bytes.
func round(m wire.Metric, v float64) float64 {
	if m == wire.MetricProgress {
		return v // its scale is the job's
	}
	if unit := m.Unit(); unit == wire.UnitCores || unit == wire.UnitRatio {
		return math.Round(v*1000) / 1000
	}
	return math.Round(v)
}

var order = []wire.Metric{
	wire.MetricCPU, wire.MetricMemory, wire.MetricGPU, wire.MetricGPUMemory,
	wire.MetricDiskRead, wire.MetricDiskWritten, wire.MetricReceived, wire.MetricSent, wire.MetricProgress,
}

// sorted returns the lines in the order of the metrics, and within a metric by GPU or name.
func (r *Recorder) sorted() []*line {
	lines := make([]*line, 0, len(r.lines))
	for _, l := range r.lines {
		lines = append(lines, l)
	}
	slices.SortFunc(lines, func(a, b *line) int {
		return cmp.Or(slices.Index(order, a.Metric)-slices.Index(order, b.Metric), cmp.Compare(a.GPU, b.GPU),
			cmp.Compare(a.Name, b.Name))
	})
	return lines
}

// Summary sums up the series, nil for a recorder without a measurement.
func (r *Recorder) Summary() *berth.Measured {
	seconds := r.At.Sub(r.Start).Seconds()
	if r.Empty() || seconds <= 0 {
		return nil
	}
	m := &berth.Measured{Seconds: math.Round(seconds*10) / 10}
	var busy cell
	for _, l := range r.lines {
		total := int64(l.Last)
		switch l.Metric {
		case wire.MetricCPU:
			m.CPUMean = round(l.Metric, l.Last/seconds)
		case wire.MetricMemory:
			m.MemoryPeak = int64(l.largest())
		case wire.MetricDiskRead:
			m.DiskRead = total
		case wire.MetricDiskWritten:
			m.DiskWritten = total
		case wire.MetricReceived:
			m.Received = total
		case wire.MetricSent:
			m.Sent = total
		case wire.MetricGPUMemory:
			m.GPUMemoryPeak = max(m.GPUMemoryPeak, int64(l.largest()))
		case wire.MetricGPU:
			for _, c := range l.Cells {
				busy[0], busy[1] = busy[0]+c[0], busy[1]+c[1]
			}
		}
	}
	if busy[1] > 0 {
		share := round(wire.MetricGPU, busy[0]/busy[1])
		m.GPUMean = &share
	}
	return m
}

// largest returns the largest value of a line.
func (l *line) largest() float64 {
	most := 0.0
	for _, c := range l.Cells {
		most = max(most, c[0])
	}
	return most
}
