//go:build cgo

package gpu

import (
	"context"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"berth/activities/node"
	"berth/wire"
)

var _ node.GPUMeter = (*NVML)(nil)

// Use asks the driver how busy these devices are. For a MIG slice, the driver reports the use
// of memory only. Only one call of the driver runs at a time: a driver that hangs blocks one
// goroutine, however many callers ask.
func (n *NVML) Use(ctx context.Context, uuids []string) ([]wire.GPUUse, error) {
	var use []wire.GPUUse
	if err := n.ask(ctx, "measure gpus", func() { use = n.measure(uuids) }); err != nil {
		return nil, err
	}
	return use, nil
}

// ask makes a call into the driver and waits for its end, or for the end of ctx: then the call goes
// on in the background, and its results must not be read. Calls of ask run one at a time.
func (n *NVML) ask(ctx context.Context, what string, call func()) error {
	select {
	case n.meter <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%s: the NVIDIA driver does not answer: %w", what, ctx.Err())
	}
	n.mu.Lock()
	if n.isClosed() {
		n.mu.Unlock()
		<-n.meter
		return errClosed
	}
	done := make(chan struct{})
	n.calls.Go(func() {
		call()
		<-n.meter
		close(done)
	})
	n.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: the NVIDIA driver does not answer: %w", what, ctx.Err())
	}
}

// measure returns the present use of the devices, -1 for a value that the driver does not report.
// Devices without any value are left out.
func (n *NVML) measure(uuids []string) []wire.GPUUse {
	var list []wire.GPUUse
	for _, uuid := range uuids {
		handle, ret := n.lib.DeviceGetHandleByUUID(uuid)
		if ret != nvml.SUCCESS {
			continue
		}
		u := wire.GPUUse{UUID: uuid, Utilization: -1, MemoryBytes: -1}
		if rates, ret := handle.GetUtilizationRates(); ret == nvml.SUCCESS {
			memory := float64(rates.Memory) / 100
			u.Utilization, u.MemoryBusy = float64(rates.Gpu)/100, &memory
		}
		u.MemoryBytes = n.memoryInUse(handle)
		u.Watts, u.LimitWatts = watts(handle.GetPowerUsage()), watts(handle.GetEnforcedPowerLimit())
		if u.Utilization >= 0 || u.MemoryBytes >= 0 {
			list = append(list, u)
		}
	}
	return list
}

// watts converts an answer in milliwatts; nil for a device that does not report it, such as a slice.
func watts(milli uint32, ret nvml.Return) *float64 {
	if ret != nvml.SUCCESS {
		return nil
	}
	w := float64(milli) / 1000
	return &w
}

// memoryInUse returns a device's memory in use, in bytes. It leaves out the driver's own memory
// if the library reports the two separately.
func (n *NVML) memoryInUse(handle nvml.Device) int64 {
	if n.has("nvmlDeviceGetMemoryInfo_v2") {
		if info, ret := handle.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			return int64(info.Used)
		}
	}
	if info, ret := handle.GetMemoryInfo(); ret == nvml.SUCCESS {
		return int64(info.Used)
	}
	return -1
}
