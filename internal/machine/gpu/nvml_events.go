//go:build cgo

package gpu

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"berth/failure"
)

// Numbers of the driver's event interface.
const (
	waitMillis = 500        // one wait for an event; bounds how late the end of a context is noticed
	wholeGPU   = 0xFFFFFFFF // instance number of an event that concerns no slice
	maxPending = 1000       // events taken in one survey
)

// Events delivers the Xid errors of all devices present now, until ctx ends or
// the inventory is closed; then the channel is closed. Health does not depend on a
// reader: Devices checks fatal errors itself.
func (n *NVML) Events(ctx context.Context) (<-chan Event, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isClosed() {
		return nil, errClosed
	}
	set, ret := n.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("watch gpus: %w", ret)
	}
	events := make(chan Event, 16)
	n.calls.Go(func() {
		defer close(events)
		defer set.Free()
		n.watch(ctx, set, events)
	})
	return events, nil
}

// watch registers all devices with a set and passes on its events.
func (n *NVML) watch(ctx context.Context, set nvml.EventSet, events chan<- Event) {
	count, ret := n.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		n.log.Warn("cannot watch GPU events", "error", ret)
		return
	}
	for i := range count {
		if handle, ret := n.lib.DeviceGetHandleByIndex(i); ret == nvml.SUCCESS {
			n.registerWith(set, handle)
		}
	}
	for ctx.Err() == nil && !n.isClosed() {
		data, ret := set.Wait(waitMillis)
		switch ret {
		case nvml.SUCCESS:
			e, ok := n.observe(data)
			if !ok {
				continue
			}
			select {
			case events <- e:
			case <-ctx.Done():
			case <-n.closed:
			}
		case nvml.ERROR_TIMEOUT:
		default: // a lost device answers at once, permanently
			n.log.Warn("GPU events interrupted", "error", ret)
			pause := time.NewTimer(waitMillis * time.Millisecond)
			select {
			case <-pause.C:
			case <-ctx.Done():
			case <-n.closed:
			}
			pause.Stop()
		}
	}
}

// register has the events of a device collected for the next survey.
func (n *NVML) register(uuid string, handle nvml.Device) {
	if n.events == nil || n.registered[uuid] {
		return
	}
	n.registered[uuid] = true
	n.registerWith(n.events, handle)
}

// registerWith asks for a device's XID events. A device without support for events is no error:
// the kernel's log reports its XIDs as well.
func (n *NVML) registerWith(set nvml.EventSet, handle nvml.Device) {
	ret := handle.RegisterEvents(nvml.EventTypeXidCriticalError, set)
	if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		n.log.Warn("cannot register for GPU events", "error", ret)
	}
}

// takePendingEvents reads the events since the last survey.
func (n *NVML) takePendingEvents() {
	for range maxPending {
		if n.events == nil {
			return
		}
		data, ret := n.events.Wait(0)
		if ret != nvml.SUCCESS {
			return
		}
		n.observe(data)
	}
}

// observe translates an event, and marks the device unhealthy if the event is fatal.
func (n *NVML) observe(data nvml.EventData) (Event, bool) {
	if data.EventType != nvml.EventTypeXidCriticalError {
		return Event{}, false
	}
	uuid, ret := data.Device.GetUUID()
	if ret != nvml.SUCCESS {
		n.log.Warn("GPU event without a device", "xid", data.EventData, "error", ret)
		return Event{}, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if data.GpuInstanceId != wholeGPU {
		instance := [2]uint32{data.GpuInstanceId, data.ComputeInstanceId}
		at := slices.IndexFunc(n.known, func(d device) bool { return d.parent == uuid && d.instance == instance })
		if at >= 0 {
			uuid = n.known[at].UUID
		}
	}
	e := Event{At: time.Now(), UUID: uuid, Xid: data.EventData, Fatal: failure.XidAction(data.EventData).Fatal()}
	if e.Fatal {
		n.faults[uuid] = fmt.Sprintf("XID %d", e.Xid)
	}
	n.taken = append(n.taken[max(0, len(n.taken)-maxPending):], e)
	return e, true
}

// TakeXids returns the errors received since the last call, one for each listed device concerned.
// An error of a GPU in MIG mode concerns all of its slices.
func (n *NVML) TakeXids() []Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []Event
	for _, e := range n.taken {
		for _, d := range n.known {
			if d.UUID == e.UUID || d.parent == e.UUID {
				at := e
				at.UUID = d.UUID
				list = append(list, at)
			}
		}
	}
	n.taken = nil
	return list
}

// Located lists the devices at a PCI address such as 0000:3b:00, as far as they
// have been listed before.
func (n *NVML) Located(pci string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []string
	for _, d := range n.known {
		if d.pci == pci {
			list = append(list, d.UUID)
		}
	}
	return list
}
