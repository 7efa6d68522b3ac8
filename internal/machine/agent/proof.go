package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
)

// deviceProof proves that GPUs are free: before a member starts, and after it has ended. A device is
// free if no process outside of Berth is on it and, without a container on it, no memory is in use.
// A device that is not free is held: gpuHealth reports it as unhealthy until the proof passes.
//
//	proven ──member ends──> unproven ──proof passes──> proven
//	   └────proof fails──────> held <──proof fails──┘    held ──proof passes──> proven
//
// See docs/adr/0055-one-tenant-per-gpu.md. All methods may be called concurrently.
type deviceProof struct {
	holders node.GPUHolders // nil: the inventory does not know its holders, and each proof passes
	runtime node.Runtime
	health  *gpuHealth
	allow   []string // names of programs that may use any device
	procs   procs
	timing  Timing
	log     *slog.Logger
	changed func() // reports the health

	mu       sync.Mutex
	users    map[string]map[berth.AllocationID]string // names of containers by device; they may run there
	ids      map[berth.AllocationID]string            // of containers; a member without a container has none
	unproven map[string]bool
	wake     chan struct{} // holds a token after a device has become unproven
}

// newDeviceProof returns a proof of the devices of an inventory.
func newDeviceProof(cfg *Config, health *gpuHealth, log *slog.Logger, changed func()) *deviceProof {
	p := &deviceProof{
		runtime: cfg.Runtime, health: health, allow: cfg.GPUAllow, procs: procs{"/proc"}, timing: cfg.Timing, log: log,
		changed: changed, users: map[string]map[berth.AllocationID]string{}, unproven: map[string]bool{},
		ids: map[berth.AllocationID]string{}, wake: make(chan struct{}, 1),
	}
	p.holders, _ = cfg.GPUs.(node.GPUHolders)
	return p
}

// proofLimit bounds one question to the driver.
const proofLimit = 5 * time.Second

// proofPause is the time between two tries while a member waits.
const proofPause = 50 * time.Millisecond

// enter records the container of a member as a user of devices. Its processes are not foreign there.
func (p *deviceProof) enter(uuids []string, id berth.AllocationID, container string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, uuid := range uuids {
		if p.users[uuid] == nil {
			p.users[uuid] = map[berth.AllocationID]string{}
		}
		p.users[uuid][id] = container
	}
}

// contains records the id of a member's container. The processes in a control group of this id are the container's,
// without a question to the engine, which may give no answer for one container.
func (p *deviceProof) contains(id berth.AllocationID, container string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids[id] = container
}

// leave reverts enter and contains. The devices need a proof from then on.
func (p *deviceProof) leave(uuids []string, id berth.AllocationID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ids, id)
	for _, uuid := range uuids {
		if _, ok := p.users[uuid][id]; !ok {
			continue
		}
		delete(p.users[uuid], id)
		p.unproven[uuid] = true
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// after proves devices after a member has ended, and returns once they are free or held.
func (p *deviceProof) after(ctx context.Context, uuids []string, id berth.AllocationID) {
	p.leave(uuids, id)
	if why, err := p.insist(ctx, uuids); err == nil && why != "" {
		p.log.Warn("GPU not free after the end of a job", "alloc", id, "why", why)
	}
}

// insist repeats the proof until it passes or Timing.ProofPatience is over: a process that ends takes
// a moment to give back its memory. It returns why one of the devices is not free, "" if all are. A
// device that is not free is held from then on.
func (p *deviceProof) insist(ctx context.Context, uuids []string) (string, error) {
	if p.holders == nil || len(uuids) == 0 {
		return "", nil
	}
	for patience := time.Now().Add(p.timing.ProofPatience); ; {
		faults := p.look(ctx, uuids)
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if late := !time.Now().Before(patience); len(faults) == 0 || late {
			p.conclude(uuids, faults)
			for _, uuid := range uuids {
				if why := faults[uuid]; why != "" {
					return "GPU " + uuid + ": " + why, nil
				}
			}
			return "", nil
		}
		if err := sleep(ctx, proofPause); err != nil {
			return "", context.Cause(ctx)
		}
	}
}

// conclude records the result of a proof, and reports a change.
func (p *deviceProof) conclude(uuids []string, faults map[string]string) {
	p.mu.Lock()
	changed := false
	for _, uuid := range uuids {
		if faults[uuid] == "" {
			delete(p.unproven, uuid)
		} else {
			p.unproven[uuid] = true
		}
		changed = p.health.hold(uuid, faults[uuid]) || changed
	}
	p.mu.Unlock()
	if changed {
		p.changed()
	}
}

// watch proves the unproven devices again until ctx ends. At first it proves all devices, since an
// earlier process may have left one held. The members of containers found at the start may not have
// claimed their devices again yet, so in this proof no process of these containers is foreign.
func (p *deviceProof) watch(ctx context.Context, found []node.Container) {
	if p.holders == nil {
		return
	}
	all := p.health.uuids()
	if faults := p.look(ctx, all, found...); ctx.Err() == nil {
		p.conclude(all, faults)
	}
	for {
		p.mu.Lock()
		open := slices.Sorted(maps.Keys(p.unproven))
		p.mu.Unlock()
		var again <-chan time.Time // nil: nothing is unproven
		if len(open) > 0 {
			faults := p.look(ctx, open)
			if ctx.Err() != nil {
				return
			}
			p.conclude(open, faults)
			if len(faults) > 0 {
				again = time.After(p.timing.ProofEvery)
			}
		}
		select {
		case <-p.wake:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// look returns why devices are not free now, without an entry for the free ones. Processes of the
// additional containers are not foreign on any device.
func (p *deviceProof) look(ctx context.Context, uuids []string, also ...node.Container) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, proofLimit)
	defer cancel()
	list, err := p.holders.Holders(ctx, uuids)
	faults := map[string]string{}
	if err != nil {
		for _, uuid := range uuids {
			faults[uuid] = "not proven to be free: " + err.Error()
		}
		return faults
	}
	for _, h := range list {
		if why := p.fault(ctx, h, also); why != "" {
			faults[h.UUID] = why
		}
	}
	return faults
}

// fault returns why a device is not free, "" if it is.
func (p *deviceProof) fault(ctx context.Context, h node.GPUHolding, also []node.Container) string {
	if h.Problem != "" {
		return "not proven to be free: its processes cannot be listed: " + h.Problem
	}
	p.mu.Lock()
	users := slices.Collect(maps.Values(p.users[h.UUID]))
	var ids []string
	for id := range p.users[h.UUID] {
		ids = append(ids, p.ids[id])
	}
	p.mu.Unlock()
	for _, c := range also {
		ids = append(ids, c.ID)
	}
	own := func(x node.GPUProcess) bool { return p.procs.inContainer(x.PID, ids) }
	asks := slices.ContainsFunc(h.Processes, func(x node.GPUProcess) bool {
		return !own(x) && !p.procs.allowed(x.PID, p.allow)
	})
	groups := p.groups(ctx, users, also, asks)
	known := int64(0) // memory of the programs that may use the device
	shared := len(users) > 0
	var foreign []string
	for _, x := range h.Processes {
		switch {
		case own(x), p.procs.inGroup(x.PID, groups):
			shared = true
		case p.procs.allowed(x.PID, p.allow):
			known += max(0, x.Bytes)
		default:
			foreign = append(foreign, p.procs.describe(x))
		}
	}
	switch {
	case len(foreign) > 0:
		return "in use outside of Berth by " + strings.Join(foreign[:min(len(foreign), 3)], ", ")
	case !shared && h.MemoryBytes > node.FreeMemory+known:
		return fmt.Sprintf("%s of its memory in use by no listed process", berth.BytesText(h.MemoryBytes))
	}
	return ""
}

// groups returns the control groups of running containers. It asks the engine only if a process is in no control group
// that is named after a container: an engine can name its groups in another way.
func (p *deviceProof) groups(
	ctx context.Context, names []string, also []node.Container, needed bool,
) (list []cgroup) {
	if !needed {
		return nil
	}
	for _, name := range names {
		if c, err := p.runtime.Inspect(ctx, name); err == nil {
			also = append(also, c)
		}
	}
	for _, c := range also {
		if c.PID == 0 {
			continue
		}
		if g := p.procs.group(c.PID); len(g) > 0 {
			list = append(list, g)
		}
	}
	return list
}
