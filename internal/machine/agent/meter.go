package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/lib/timeseries"
	"berth/internal/machine/cgroupstats"
)

// meter samples what a rank uses while it runs and stores that in one object,
// written anew now and then. A rank that has ended before the first time leaves
// no more than the summary in its exit, and one that ended before the first
// sample nothing at all: a cluster may run a million of them a day.
type meter struct {
	r     *member
	stop  context.CancelFunc
	done  chan struct{} // closed when sampling has ended
	gauge cgroupstats.Gauge

	// Of the sampling, then of whoever has ended it.
	rec     *timeseries.Recorder // nil before the first look
	stored  time.Time
	storing chan struct{} // holds one while the object is written

	busy atomic.Int64 // when its GPUs were last seen at work, Unix nanoseconds
}

const (
	maxSampling = 10 * time.Second // the longest time between two samples
	gpuPatience = 5 * time.Second  // with a driver, for one sample
	storeTries  = 3                // of the whole, at the end
)

func newMeter(r *member) *meter {
	return &meter{r: r, done: make(chan struct{}), storing: make(chan struct{}, 1)}
}

// begin starts sampling, until end or the rank's end.
func (m *meter) begin() {
	ctx, stop := context.WithCancel(m.r.ctx)
	m.stop = stop
	m.r.helpers.Go(func() {
		defer close(m.done)
		m.run(ctx)
	})
}

// end ends sampling and sums up, nil if nothing was measured.
func (m *meter) end() *berth.Measured {
	m.stop()
	<-m.done
	if m.rec == nil && (!m.r.adopts || !m.open(m.r.ctx)) {
		return nil
	}
	sum := m.rec.Summary()
	if sum != nil {
		sum.Member = m.r.number
	}
	return sum
}

func (m *meter) run(ctx context.Context) {
	every := m.r.timing().UseStep
	for m.r.sup.beat.sleep(ctx, every) == nil {
		if m.rec == nil && !m.open(ctx) {
			continue
		}
		m.sample(ctx)
		every = min(m.rec.Step, maxSampling)
		if now := time.Now(); m.due(now) {
			m.stored = now
			m.keep()
		}
	}
}

// open finds the container's files and what an earlier process has recorded.
func (m *meter) open(ctx context.Context) bool {
	c, err := m.r.runtime().Inspect(ctx, m.r.name())
	if err != nil {
		return false
	}
	if b, err := os.ReadFile(m.notes()); err == nil {
		m.rec = timeseries.Restore(b, c.StartedAt)
	}
	if c.State != node.ContainerRunning { // it ended while nobody looked
		return m.rec != nil
	}
	m.gauge = cgroupstats.Host{}.Open(c.PID)
	if m.rec == nil {
		m.rec = timeseries.New(c.StartedAt, m.r.timing().UseStep)
	}
	return true
}

func (m *meter) notes() string { return filepath.Join(m.r.scratch.dir, "use.json") }

func (m *meter) sample(ctx context.Context) {
	s := timeseries.Sample{}
	for metric, v := range m.gauge.Read() {
		s[timeseries.Key{Metric: metric}] = v
	}
	if gpus, ok := m.r.sup.cfg.GPUs.(node.GPUMeter); ok && len(m.r.claim.GPUs) > 0 {
		ctx, cancel := context.WithTimeout(ctx, gpuPatience)
		defer cancel()
		use, err := gpus.Use(ctx, m.r.claim.GPUs)
		if err != nil && ctx.Err() == nil {
			m.r.log.Debug("GPUs not measured", "err", err)
		}
		for _, u := range use {
			if u.Utilization > 0 {
				m.busy.Store(time.Now().UnixNano())
			}
			if u.Utilization >= 0 {
				s[timeseries.Key{Metric: berth.MetricGPU, GPU: u.UUID}] = u.Utilization
			}
			if u.MemoryBytes >= 0 {
				s[timeseries.Key{Metric: berth.MetricGPUMemory, GPU: u.UUID}] = float64(u.MemoryBytes)
			}
		}
	}
	m.rec.Add(time.Now(), s)
}

// worthKeeping: what ran only for a moment has its summary.
func (m *meter) worthKeeping() bool {
	return m.rec != nil && !m.rec.Empty() && m.rec.At.Sub(m.rec.Start) >= m.r.timing().UseFirst
}

func (m *meter) due(now time.Time) bool {
	return m.worthKeeping() && now.Sub(m.stored) >= max(m.r.timing().UseEvery, m.rec.Step)
}

// keep notes what was recorded for a later process, and sends it beside the
// sampling: a control plane that is away must not make a gap.
func (m *meter) keep() {
	if b, err := m.rec.Marshal(); err == nil {
		err = writeFile(m.notes(), b)
		if err != nil {
			m.r.log.Warn("use not noted", "err", err)
		}
	}
	select {
	case m.storing <- struct{}{}:
	default:
		return // the last time is still under way; the next will have it all
	}
	b, err := m.document()
	if err != nil {
		<-m.storing
		return
	}
	m.r.helpers.Go(func() {
		defer func() { <-m.storing }()
		if err := m.put(m.r.ctx, b); err != nil && m.r.ctx.Err() == nil {
			m.r.log.Info("use not stored; stored again later", "err", err)
		}
	})
}

// finish stores the whole after the rank's end. It is no reason to hold up the
// seal for long: a rank has done its work without.
func (m *meter) finish(ctx context.Context) {
	if !m.worthKeeping() {
		return
	}
	b, err := m.document()
	if err != nil {
		return
	}
	m.storing <- struct{}{} // an older one must not overwrite it
	defer func() { <-m.storing }()
	wait := m.r.timing().backoff()
	for try := 1; ; try++ {
		err := m.put(ctx, b)
		if err == nil || ctx.Err() != nil {
			return
		}
		if refused(err) || try == storeTries || wait.wait(ctx) != nil {
			m.r.log.Warn("use not stored to its end", "err", err)
			return
		}
	}
}

func (m *meter) document() ([]byte, error) {
	b, err := json.Marshal(berth.MemberMetrics{
		Attempt: m.r.attempt, Member: m.r.number, Machine: m.r.sup.cfg.Machine,
		StartedAt: m.rec.Start.UTC(), Step: berth.Duration(m.rec.Step), Series: m.rec.Series(),
	})
	if err != nil {
		m.r.log.Error("cannot encode resource usage", "err", err)
	}
	return b, err
}

func (m *meter) put(ctx context.Context, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	key := berth.MetricsKey(m.r.claim.Tenant, m.r.job, m.r.attempt, m.r.number)
	return m.r.sup.control.putObject(ctx, key, bytes.NewReader(b), int64(len(b)))
}
