package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
)

// gpuHealth keeps the health of this machine's GPUs as last listed, and the
// changes that the server has yet to hear. All methods may be called concurrently.
type gpuHealth struct {
	inventory node.GPUs
	log       *slog.Logger

	mu         sync.Mutex
	known      map[string]berth.GPU // by UUID
	held       map[string]string    // by UUID: why a device is not free, see deviceProof
	told       map[string]time.Time // by UUID: when held was set to that reason
	unreported bool
}

// newGPUHealth returns a gpuHealth that knows no device until its first poll.
func newGPUHealth(inventory node.GPUs, log *slog.Logger) *gpuHealth {
	return &gpuHealth{inventory: inventory, log: log, known: map[string]berth.GPU{}, held: map[string]string{},
		told: map[string]time.Time{}}
}

// note takes a list that a registration reports anyway.
func (h *gpuHealth) note(gpus []berth.GPU) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range gpus {
		h.known[g.UUID] = g
	}
}

// uuids returns the devices that are healthy or not, as far as the driver has listed them.
func (h *gpuHealth) uuids() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.known))
}

// fault describes the first of these devices that is unhealthy; "": all are healthy.
func (h *gpuHealth) fault(uuids []string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range uuids {
		if g, ok := h.known[id]; ok && !g.Healthy {
			return "GPU " + id + ": " + g.Reason
		}
	}
	return ""
}

// watch lists the devices at each instant of the beat, and at once when the
// inventory announces a change. It calls changed after each change of health.
func (h *gpuHealth) watch(ctx context.Context, b beat, every time.Duration, changed func()) {
	tick := time.NewTimer(b.next(every))
	defer tick.Stop()
	var changes <-chan struct{} // nil: never
	if g, ok := h.inventory.(interface{ Changes() <-chan struct{} }); ok {
		changes = g.Changes()
	}
	for {
		select {
		case <-tick.C:
			tick.Reset(b.next(every))
		case <-changes:
		case <-ctx.Done():
			return
		}
		gpus, err := h.inventory.Devices(ctx)
		if err != nil {
			h.log.Warn("cannot list GPUs", "err", err)
			continue
		}
		if h.update(gpus) {
			changed()
		}
	}
}

// update takes a new list and reports whether the health of a device has changed.
func (h *gpuHealth) update(gpus []berth.GPU) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := map[string]bool{}
	changed := false
	for _, g := range gpus {
		now[g.UUID] = true
		was, known := h.known[g.UUID]
		if known && (was.Healthy != g.Healthy || was.Reason != g.Reason) {
			changed = true
			h.log.Warn("GPU health changed", "gpu", g.UUID, "healthy", g.Healthy, "reason", g.Reason)
		}
		h.known[g.UUID] = g
	}
	for id, g := range h.known {
		if !now[id] && g.Healthy {
			g.Healthy, g.Reason = false, "the driver does not list it any more"
			h.known[id] = g
			changed = true
			h.log.Error("GPU disappeared", "gpu", id)
		}
	}
	h.unreported = h.unreported || changed
	return changed
}

// takeChanges returns all devices if at least one has changed since the last call, nil otherwise.
func (h *gpuHealth) takeChanges() (all []berth.GPU) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.unreported {
		return nil
	}
	h.unreported = false
	for _, g := range h.known {
		all = append(all, h.shown(g))
	}
	return all
}

// retellEvery is the interval of new reasons for a device that stays in use: the memory of a process
// changes all the time.
const retellEvery = time.Minute

// hold records why a device is not free, "" for a free one, and reports whether that has changed. A
// device that is not free gets no work, but is no fault to the members that use it.
func (h *gpuHealth) hold(uuid, why string) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.held[uuid]
	if was == why || was != "" && why != "" && time.Since(h.told[uuid]) < retellEvery {
		return false
	}
	if why == "" {
		delete(h.held, uuid)
		delete(h.told, uuid)
	} else {
		h.held[uuid], h.told[uuid] = why, time.Now()
	}
	h.log.Warn("GPU use outside of Berth changed", "gpu", uuid, "was", was, "is", why)
	h.unreported = true
	return true
}

// shown returns a device as the server gets it. h.mu is held.
func (h *gpuHealth) shown(g berth.GPU) berth.GPU {
	if why := h.held[g.UUID]; why != "" && g.Healthy {
		g.Healthy, g.Reason = false, why
	}
	return g
}

// report returns devices as a registration reports them.
func (h *gpuHealth) report(gpus []berth.GPU) []berth.GPU {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := slices.Clone(gpus)
	for i, g := range list {
		list[i] = h.shown(g)
	}
	return list
}

// putBack undoes takeChanges: the report did not arrive.
func (h *gpuHealth) putBack() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unreported = true
}
