package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"berth"
	"berth/spec"
)

// Metric names a measurement of a running member.
type Metric string

// The metrics. Rates and shares are means over a step; amounts are the largest
// value in the step.
const (
	MetricCPU         Metric = "cpu"              // cores in use
	MetricMemory      Metric = "memory"           // bytes, without the reclaimable page cache
	MetricDiskRead    Metric = "disk_read"        // bytes a second, of block devices (not the page cache)
	MetricDiskWritten Metric = "disk_written"     // bytes a second
	MetricReceived    Metric = "network_received" // bytes a second; absent on the host's own network
	MetricSent        Metric = "network_sent"     // bytes a second
	MetricGPU         Metric = "gpu"              // share of the time in which the device was busy, 0 to 1
	MetricGPUMemory   Metric = "gpu_memory"       // bytes of the device in use, by all its users
	MetricProgress    Metric = "progress"         // a value that the job itself reports, such as its loss
)

// The units of metrics.
const (
	UnitCores          = "cores"
	UnitBytes          = "bytes"
	UnitBytesPerSecond = "bytes_per_second"
	UnitRatio          = "ratio"
)

// Unit returns the unit of the metric's values, "" for an unknown metric.
func (m Metric) Unit() string {
	switch m {
	case MetricCPU:
		return UnitCores
	case MetricMemory, MetricGPUMemory:
		return UnitBytes
	case MetricDiskRead, MetricDiskWritten, MetricReceived, MetricSent:
		return UnitBytesPerSecond
	case MetricGPU:
		return UnitRatio
	default:
		return ""
	}
}

// Bounds of the stored series of a member, for any run time.
const (
	MaxPoints      = 360     // values of one series
	MaxMetricBytes = 1 << 20 // length of the object with all series of a member

	MaxProgressValues = 16 // progress values of a member
)

// MetricSeries is one metric of one member in one attempt.
type MetricSeries struct {
	Metric Metric `json:"metric" doc:"cpu, memory, disk_read, network_sent, gpu, gpu_memory, ..."`
	GPU    string `json:"gpu,omitempty" doc:"the device's UUID, for metrics of GPUs"`
	Unit   string `json:"unit" doc:"cores, bytes, bytes_per_second or ratio"`
	Values Values `json:"values" doc:"one a step, from started_at on; null: not measured"`

	// Limit is the job's limit in the unit of the values; nil: none. It is set for readers only.
	Limit *float64 `json:"limit,omitempty" doc:"the job's limit, of cpu and memory"`
}

// ProgressSeries is one value that the job reports in its progress file, over time.
type ProgressSeries struct {
	Name   string `json:"name" doc:"name that the job gave it, such as loss"`
	Values Values `json:"values" doc:"one value per time, in the format of the values of series"`
}

// MemberMetrics holds the measurements of one member of a job in one attempt. All
// series have the same length.
type MemberMetrics struct {
	Attempt   int             `json:"attempt"`
	Member    int             `json:"member"`
	Machine   berth.MachineID `json:"machine"`
	StartedAt time.Time       `json:"started_at" doc:"when the first step began"`
	Step      spec.Duration   `json:"step" doc:"the time that each value is of"`
	Series    []MetricSeries  `json:"series"`

	// Progress holds the job's own values, apart from Series: a berthd that does not know them
	// ignores the field, and rejects unknown series.
	Progress []ProgressSeries `json:"progress,omitempty" doc:"values that the job itself reports"`
}

// Since returns the measurements without the steps that ended before a time. It shares the
// values of m.
func (m MemberMetrics) Since(at time.Time) MemberMetrics {
	points := m.points()
	if points == 0 || m.Step <= 0 || !at.After(m.StartedAt) {
		return m
	}
	skip := min(int(at.Sub(m.StartedAt)/m.Step.Std()), points)
	cut := make([]MetricSeries, len(m.Series))
	for i, s := range m.Series {
		s.Values = s.Values[skip:]
		cut[i] = s
	}
	progress := slices.Clone(m.Progress)
	for i := range progress {
		progress[i].Values = progress[i].Values[skip:]
	}
	m.Progress = progress
	m.Series, m.StartedAt = cut, m.StartedAt.Add(time.Duration(skip)*m.Step.Std())
	return m
}

// points returns the common length of the series.
func (m MemberMetrics) points() int {
	switch {
	case len(m.Series) > 0:
		return len(m.Series[0].Values)
	case len(m.Progress) > 0:
		return len(m.Progress[0].Values)
	}
	return 0
}

// ParseMemberMetrics parses measurements that an agent has stored. The content is not
// trusted: data beyond the bounds is an error. Units are set by the metric, not read.
func ParseMemberMetrics(b []byte) (MemberMetrics, error) {
	var m MemberMetrics
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("read metrics: %w", err)
	}
	if m.Step.Std() < time.Millisecond || m.StartedAt.IsZero() || len(m.Series) > 8*(spec.MaxGPUs+1) {
		return m, fmt.Errorf("read metrics: a step of %s from %s, and %d series", m.Step, m.StartedAt, len(m.Series))
	}
	for i := range m.Series {
		s := &m.Series[i]
		if s.Unit = s.Metric.Unit(); s.Unit == "" || len(s.GPU) > 128 || len(s.Values) > MaxPoints ||
			len(s.Values) != m.points() {
			return m, fmt.Errorf("read metrics: series %.40q of %.40q with %d values", s.Metric, s.GPU, len(s.Values))
		}
		s.Limit = nil
	}
	if len(m.Progress) > MaxProgressValues {
		return m, fmt.Errorf("read metrics: %d progress values", len(m.Progress))
	}
	for _, s := range m.Progress {
		if !spec.ValidMetricName(s.Name) || len(s.Values) > MaxPoints || len(s.Values) != m.points() {
			return m, fmt.Errorf("read metrics: progress value %.40q with %d values", s.Name, len(s.Values))
		}
	}
	return m, nil
}

// Values holds the points of a series. A point without a measurement is NaN, and null in
// JSON, which has no NaN.
type Values []float64

func (v Values) MarshalJSON() ([]byte, error) {
	b := append(make([]byte, 0, 6*len(v)+2), '[')
	for i, x := range v {
		if i > 0 {
			b = append(b, ',')
		}
		if math.IsNaN(x) || math.IsInf(x, 0) {
			b = append(b, "null"...)
		} else {
			b = strconv.AppendFloat(b, x, 'f', -1, 64)
		}
	}
	return append(b, ']'), nil
}

func (v *Values) UnmarshalJSON(b []byte) error {
	var points []*float64
	if err := json.Unmarshal(b, &points); err != nil {
		return err
	}
	*v = make(Values, len(points))
	for i, p := range points {
		(*v)[i] = math.NaN()
		if p != nil {
			(*v)[i] = *p
		}
	}
	return nil
}

// GPUUse is the use of a device at a moment.
type GPUUse struct {
	UUID        string
	Utilization float64 // 0 to 1 over the driver's last sample period; negative: not known
	MemoryBytes int64   // in use; negative: not known

	MemoryBusy *float64 // share of the sample period in which memory was read or written, 0 to 1; nil: not known
	Watts      *float64 // power draw; nil: not known
	LimitWatts *float64 // enforced power limit; nil: not known
}

// A device works from this share of memory traffic, or from this share of its power limit. The
// kernel of a collective operation that waits for a peer has a utilization of 1, next to no
// memory traffic, and a power draw far below half the limit.
const (
	WorkMemoryBusy = 0.05
	WorkPower      = 0.5
)

// Works reports whether the device works: a kernel runs, and memory traffic or power draw show
// that it does more than wait. If the driver reports neither of the two, utilization alone
// decides.
func (u GPUUse) Works() bool {
	power := u.Watts != nil && u.LimitWatts != nil && *u.LimitWatts > 0
	switch {
	case u.Utilization <= 0:
		return false
	case u.MemoryBusy == nil && !power:
		return true
	}
	return u.MemoryBusy != nil && *u.MemoryBusy >= WorkMemoryBusy || power && *u.Watts / *u.LimitWatts >= WorkPower
}
