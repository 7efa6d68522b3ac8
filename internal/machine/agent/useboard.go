package agent

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
	"berth/wire"
)

// useBoard holds the last sample of each running member, and reports the measured use of the
// machine to the server. The samples come from the members' usageSampler, so that the report
// costs no measurement but the one of the GPUs.
//
// A report is sent at most once in each Timing.UseReport, and only if a value has changed
// noticeably, or the server would soon count the last report as too old (wire.UseAge): an idle
// machine costs one call a minute. Reports are for display, so a failed one is not repeated by
// itself; the next one carries the present values. All methods may be called concurrently.
type useBoard struct {
	log  *slog.Logger
	gpus *gpuHealth
	disk *diskWatch

	mu      sync.Mutex
	members map[berth.AllocationID]memberUse
}

// memberUse is the use of one member at its last sample.
type memberUse struct {
	cpuMilli    int64
	memoryBytes int64
}

func newUseBoard(gpus *gpuHealth, disk *diskWatch, log *slog.Logger) *useBoard {
	return &useBoard{log: log, gpus: gpus, disk: disk, members: map[berth.AllocationID]memberUse{}}
}

// set takes the last sample of a member.
func (b *useBoard) set(id berth.AllocationID, use memberUse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members[id] = use
}

// leave removes a member, which is no longer sampled.
func (b *useBoard) leave(id berth.AllocationID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.members, id)
}

// present returns the use of the machine. A device that does not answer in time is left out.
func (b *useBoard) present(ctx context.Context) wire.Use {
	var use wire.Use
	var bytes int64
	b.mu.Lock()
	for _, m := range b.members {
		use.CPUMilli += m.cpuMilli
		bytes += m.memoryBytes
	}
	b.mu.Unlock()
	use.MemoryMiB = bytes >> 20
	use.DiskFree = b.disk.freeShare()
	meter, ok := b.gpus.inventory.(node.GPUMeter)
	uuids := b.gpus.uuids()
	if !ok || len(uuids) == 0 {
		return use
	}
	ctx, cancel := context.WithTimeout(ctx, gpuPatience)
	defer cancel()
	list, err := meter.Use(ctx, uuids)
	if err != nil {
		b.log.Debug("cannot measure GPUs", "err", err)
	}
	for _, g := range list {
		now := wire.GPUNow{UUID: g.UUID}
		if g.Utilization >= 0 {
			busy := min(math.Round(g.Utilization*1000)/1000, 1)
			now.Busy = &busy
		}
		if g.MemoryBytes >= 0 {
			mib := g.MemoryBytes >> 20
			now.MemoryMiB = &mib
		}
		use.GPUs = append(use.GPUs, now)
	}
	slices.SortFunc(use.GPUs, func(a, b wire.GPUNow) int { return strings.Compare(a.UUID, b.UUID) })
	return use
}

// Changes below these amounts, or below a twentieth of the value, are not noticeable.
const (
	leastCPUMilli  = 50
	leastMemoryMiB = 64
	leastBusy      = 0.05
	leastDiskFree  = 0.01
)

// noticeable reports whether a reader of both would see a difference.
func noticeable(a, b wire.Use) bool {
	far := func(a, b, least float64) bool {
		return math.Abs(a-b) >= max(least, max(math.Abs(a), math.Abs(b))/20)
	}
	if far(float64(a.CPUMilli), float64(b.CPUMilli), leastCPUMilli) ||
		far(float64(a.MemoryMiB), float64(b.MemoryMiB), leastMemoryMiB) || len(a.GPUs) != len(b.GPUs) {
		return true
	}
	if (a.DiskFree == nil) != (b.DiskFree == nil) ||
		a.DiskFree != nil && math.Abs(*a.DiskFree-*b.DiskFree) >= leastDiskFree {
		return true
	}
	for i, g := range a.GPUs {
		o := b.GPUs[i]
		switch {
		case g.UUID != o.UUID, (g.Busy == nil) != (o.Busy == nil), (g.MemoryMiB == nil) != (o.MemoryMiB == nil):
			return true
		case g.Busy != nil && far(*g.Busy, *o.Busy, leastBusy):
			return true
		case g.MemoryMiB != nil && far(float64(*g.MemoryMiB), float64(*o.MemoryMiB), leastMemoryMiB):
			return true
		}
	}
	return false
}

// run reports until ctx ends. A server of a version without this call answers that there is
// none; it is asked again after Timing.CacheRefused, since it may be upgraded by then.
func (b *useBoard) run(ctx context.Context, beat beat, timing Timing, c *control) {
	var sent wire.Use
	var at time.Time // of the last report that arrived
	for beat.sleep(ctx, timing.UseReport) == nil {
		use := b.present(ctx)
		if time.Since(at) < wire.UseAge/2-timing.UseReport && !noticeable(use, sent) {
			continue
		}
		err := c.reportUse(ctx, use)
		switch {
		case err == nil:
			sent, at = use, time.Now()
		case ctx.Err() != nil:
			return
		case berth.CodeOf(err) == berth.CodeNotFound:
			b.log.Info("server does not support reports of use, pausing them", "err", err)
			if sleep(ctx, timing.CacheRefused) != nil {
				return
			}
		default:
			b.log.Debug("report of use failed, will retry", "err", err)
		}
	}
}

// reportUse sends the use of the machine under the terms of the present session.
func (c *control) reportUse(ctx context.Context, use wire.Use) error {
	return c.withTerms(ctx, func(epoch int64) error {
		return c.call(ctx, callTimeout, "use", wire.UseReport{AgentBoot: c.boot, Epoch: epoch, Use: use}, nil)
	})
}
