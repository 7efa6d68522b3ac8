package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/lib/timeseries"
	"berth/internal/machine/cgroupstats"
	"berth/spec"
	"berth/wire"
)

// usageSampler samples the resource use of a running member. It stores the series in one object,
// which it replaces periodically. A member that ends before the first replacement leaves only the
// summary in its exit, and one that ends before the first sample leaves nothing: a cluster may
// run a million of them a day.
type usageSampler struct {
	*core
	control *control
	gpus    node.GPUs
	folder  string // the member's
	adopts  bool
	helpers *sync.WaitGroup
	board   *useBoard

	stop  context.CancelFunc
	done  chan struct{} // closed when sampling has ended
	gauge cgroupstats.Gauge

	// Of the sampling goroutine, then of the caller of end.
	rec     *timeseries.Recorder // nil before the first look
	stored  time.Time
	storing chan struct{} // holds one token while the object is written
	cpu     cpuReading    // at the last sample

	progress atomic.Pointer[map[string]float64] // the job's own values as last read; nil: none

	// When its GPUs were last seen busy, and when they were last seen at work, in Unix nanoseconds.
	// A kernel that waits for a peer is busy and does not work.
	busy, works atomic.Int64
}

const (
	maxSampling = 10 * time.Second // the longest time between two samples
	gpuPatience = 5 * time.Second  // with a driver, for one sample
	storeTries  = 3                // of the whole, at the end
)

// begin starts sampling, until end or the end of the member.
func (u *usageSampler) begin() {
	ctx, stop := context.WithCancel(u.ctx)
	u.stop, u.done, u.storing = stop, make(chan struct{}), make(chan struct{}, 1)
	u.helpers.Go(func() {
		defer close(u.done)
		u.run(ctx)
	})
}

// end ends sampling and returns the summary; nil: nothing was measured.
func (u *usageSampler) end() *berth.Measured {
	u.stop()
	<-u.done
	if u.rec == nil && (!u.adopts || !u.open(u.ctx)) {
		return nil
	}
	sum := u.rec.Summary()
	if sum != nil {
		sum.Member = u.number
	}
	return sum
}

// run samples until ctx ends. The series doubles its step as it grows, and sampling slows down
// with the step, up to maxSampling between two samples.
func (u *usageSampler) run(ctx context.Context) {
	defer u.board.leave(u.alloc)
	every := u.timing.UseStep
	for u.beat.sleep(ctx, every) == nil {
		if u.rec == nil && !u.open(ctx) {
			continue
		}
		u.sample(ctx)
		every = min(u.rec.Step, maxSampling)
		if now := time.Now(); u.due(now) {
			u.stored = now
			u.keep()
		}
	}
}

// open finds the container's control group and the samples of an earlier process.
func (u *usageSampler) open(ctx context.Context) bool {
	c, err := u.runtime.Inspect(ctx, u.name())
	if err != nil {
		return false
	}
	if b, err := os.ReadFile(u.notes()); err == nil {
		u.rec = timeseries.Restore(b, c.StartedAt)
	}
	if c.State != node.ContainerRunning { // it ended while no process watched
		return u.rec != nil
	}
	u.gauge = cgroupstats.Host{}.Open(c.PID)
	if u.rec == nil {
		u.rec = timeseries.New(c.StartedAt, u.timing.UseStep)
	}
	return true
}

// notes returns the path of the file that keeps the series across agent processes.
func (u *usageSampler) notes() string { return filepath.Join(u.folder, "use.json") }

// sample adds one sample. A device that does not answer in time is left out of the sample, so
// that a hanging driver costs only the GPUs' part of the series.
func (u *usageSampler) sample(ctx context.Context) {
	s := timeseries.Sample{}
	read := u.gauge.Read()
	for metric, v := range read {
		s[timeseries.Key{Metric: metric}] = v
	}
	u.show(time.Now(), read)
	if gpus, ok := u.gpus.(node.GPUMeter); ok && len(u.claim.GPUs) > 0 {
		ctx, cancel := context.WithTimeout(ctx, gpuPatience)
		defer cancel()
		use, err := gpus.Use(ctx, u.claim.GPUs)
		if err != nil && ctx.Err() == nil {
			u.log.Debug("cannot measure GPUs", "err", err)
		}
		for _, g := range use {
			if g.Utilization > 0 {
				u.busy.Store(time.Now().UnixNano())
			}
			if g.Works() {
				u.works.Store(time.Now().UnixNano())
			}
			if g.Utilization >= 0 {
				s[timeseries.Key{Metric: wire.MetricGPU, GPU: g.UUID}] = g.Utilization
			}
			if g.MemoryBytes >= 0 {
				s[timeseries.Key{Metric: wire.MetricGPUMemory, GPU: g.UUID}] = float64(g.MemoryBytes)
			}
		}
	}
	if values := u.progress.Load(); values != nil {
		for name, v := range *values {
			s[timeseries.Key{Metric: wire.MetricProgress, Name: name}] = v
		}
	}
	u.rec.Add(time.Now(), s)
}

// cpuReading is a reading of the counter of CPU time.
type cpuReading struct {
	at      time.Time
	seconds float64
}

// show puts the use since the last sample on the machine's board. The first sample of a process
// has none to compare with, and shows no CPU.
func (u *usageSampler) show(now time.Time, read cgroupstats.Reading) {
	use := memberUse{memoryBytes: int64(read[wire.MetricMemory])}
	last := u.cpu
	u.cpu = cpuReading{now, read[wire.MetricCPU]}
	if passed := now.Sub(last.at).Seconds(); !last.at.IsZero() && passed > 0 && u.cpu.seconds >= last.seconds {
		use.cpuMilli = int64((u.cpu.seconds - last.seconds) / passed * 1000)
	}
	u.board.set(u.alloc, use)
}

// longEnough reports whether the series is long enough to be stored. For a short run the
// summary is enough.
func (u *usageSampler) longEnough() bool {
	return u.rec != nil && !u.rec.Empty() && u.rec.At.Sub(u.rec.Start) >= u.timing.UseFirst
}

// due reports whether the stored series is older than UseEvery, or than the step if that is
// longer: a new object would hold no new point.
func (u *usageSampler) due(now time.Time) bool {
	return u.longEnough() && now.Sub(u.stored) >= max(u.timing.UseEvery, u.rec.Step)
}

// keep writes the series to a file for a later process, and uploads it in a goroutine of its own:
// an unreachable control plane must not make a gap.
func (u *usageSampler) keep() {
	if b, err := u.rec.Marshal(); err == nil {
		err = writeFile(u.notes(), b)
		if err != nil {
			u.log.Warn("cannot record resource usage", "err", err)
		}
	}
	select {
	case u.storing <- struct{}{}:
	default:
		return // an upload is still under way; the next one will hold all samples
	}
	b, err := u.document()
	if err != nil {
		<-u.storing
		return
	}
	u.helpers.Go(func() {
		defer func() { <-u.storing }()
		if err := u.put(u.ctx, b); err != nil && u.ctx.Err() == nil {
			u.log.Info("cannot store resource usage, will retry", "err", err)
		}
	})
}

// finish stores the whole series after the member's end. It must not delay the seal for
// long: the member has done its work without it.
func (u *usageSampler) finish(ctx context.Context) {
	if !u.longEnough() {
		return
	}
	b, err := u.document()
	if err != nil {
		return
	}
	u.storing <- struct{}{} // an older one must not overwrite it
	defer func() { <-u.storing }()
	wait := u.timing.backoff()
	for try := 1; ; try++ {
		err := u.put(ctx, b)
		if err == nil || ctx.Err() != nil {
			return
		}
		if refused(err) || try == storeTries || wait.wait(ctx) != nil {
			u.log.Warn("end of resource usage not stored", "err", err)
			return
		}
	}
}

// document encodes the series as the stored object.
func (u *usageSampler) document() ([]byte, error) {
	// An earlier process may have taken other names than this one.
	progress := u.rec.Progress()
	progress = progress[:min(len(progress), wire.MaxProgressValues)]
	b, err := json.Marshal(wire.MemberMetrics{
		Attempt: u.attempt, Member: u.number, Machine: u.machine,
		StartedAt: u.rec.Start.UTC(), Step: spec.Duration(u.rec.Step), Series: u.rec.Series(), Progress: progress,
	})
	if err != nil {
		u.log.Error("cannot encode resource usage", "err", err)
	}
	return b, err
}

// put uploads the series under the attempt's one key, which replaces the earlier upload.
func (u *usageSampler) put(ctx context.Context, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	key := berth.MetricsKey(u.claim.Tenant, u.job, u.attempt, u.number)
	return u.control.putObject(ctx, key, bytes.NewReader(b), int64(len(b)))
}
