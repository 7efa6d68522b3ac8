//go:build cgo

package gpu_test

import (
	"errors"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"berth/activities/node"
)

// seat makes the driver list these processes on a device, with memory in use.
func (b *box) seat(i int, used uint64, compute ...nvml.ProcessInfo) {
	d := b.device(i)
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{Total: 40 << 30, Used: used}, nvml.SUCCESS
	}
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return compute, nvml.SUCCESS }
	d.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetMPSComputeRunningProcessesFunc = d.GetGraphicsRunningProcessesFunc
}

func TestHoldersAreTheProcessesOfADevice(t *testing.T) {
	t.Parallel()
	b, n := newBox(t)
	b.LookupSymbolFunc = func(symbol string) error {
		if symbol == "nvmlDeviceGetMPSComputeRunningProcesses" || symbol == "nvmlDeviceGetMemoryInfo_v2" {
			return nil
		}
		return errors.New("an old library")
	}
	b.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		for i := range b.Devices {
			if d := b.device(i); d.UUID == uuid {
				return d, nvml.SUCCESS
			}
		}
		return nil, nvml.ERROR_GPU_IS_LOST
	}
	unknown := ^uint64(0)
	b.seat(0, 0)
	b.seat(1, 5<<30, nvml.ProcessInfo{Pid: 9, UsedGpuMemory: 4 << 30}, nvml.ProcessInfo{Pid: 3, UsedGpuMemory: unknown})
	b.device(1).GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 3, UsedGpuMemory: 1 << 20}}, nvml.SUCCESS
	}
	b.device(1).GetMPSComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 4, UsedGpuMemory: 2 << 20}}, nvml.SUCCESS
	}
	b.seat(2, 1<<20)
	b.device(2).GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return nil, nvml.ERROR_NO_PERMISSION
	}
	b.seat(3, 2<<20)
	b.device(3).GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	id := func(i int) string { return b.device(i).UUID }
	got, err := n.Holders(t.Context(), []string{id(1), id(0), id(2), "GPU-lost", id(3)})
	want := []node.GPUHolding{
		{UUID: id(1), MemoryBytes: 5 << 30, Processes: []node.GPUProcess{{PID: 3, Bytes: 1 << 20}, {PID: 4, Bytes: 2 << 20},
			{PID: 9, Bytes: 4 << 30}}},
		{UUID: id(0)},
		{UUID: id(2), MemoryBytes: 1 << 20, Problem: nvml.ERROR_NO_PERMISSION.Error()},
		{UUID: "GPU-lost", MemoryBytes: -1, Problem: nvml.ERROR_GPU_IS_LOST.Error()},
		{UUID: id(3), MemoryBytes: 2 << 20},
	}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v %s", err, cmp.Diff(want, got))
	}
}
