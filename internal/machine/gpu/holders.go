//go:build cgo

package gpu

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"berth/activities/node"
)

var _ node.GPUHolders = (*NVML)(nil)

// Holders asks the driver which processes hold a context or memory on these devices, and how much
// memory is in use. Only one call of the driver runs at a time, as with Use: a driver that hangs
// holds up one goroutine, however many callers ask.
func (n *NVML) Holders(ctx context.Context, uuids []string) ([]node.GPUHolding, error) {
	var list []node.GPUHolding
	if err := n.ask(ctx, "list processes on gpus", func() { list = n.holdings(uuids) }); err != nil {
		return nil, err
	}
	return list, nil
}

// holdings asks the driver about each device. A device that does not answer has a Problem.
func (n *NVML) holdings(uuids []string) []node.GPUHolding {
	list := make([]node.GPUHolding, 0, len(uuids))
	for _, uuid := range uuids {
		h := node.GPUHolding{UUID: uuid, MemoryBytes: -1}
		handle, ret := n.lib.DeviceGetHandleByUUID(uuid)
		if ret == nvml.SUCCESS {
			// The former question counts the driver's own memory, too.
			if n.has("nvmlDeviceGetMemoryInfo_v2") {
				if info, ret := handle.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
					h.MemoryBytes = int64(info.Used)
				}
			}
			h.Processes, ret = processes(handle, n.has("nvmlDeviceGetMPSComputeRunningProcesses"))
		}
		if ret != nvml.SUCCESS {
			h.Problem = ret.Error()
		}
		list = append(list, h)
	}
	return list
}

// processes lists a device's processes by id, each once. The lists of graphics and of MPS clients
// may be unsupported, as on devices without a display; mps is false for a driver that lacks the
// question.
func processes(handle nvml.Device, mps bool) ([]node.GPUProcess, nvml.Return) {
	compute, ret := handle.GetComputeRunningProcesses()
	if ret == nvml.ERROR_NOT_SUPPORTED { // the memory alone shows whether the device is free
		return nil, nvml.SUCCESS
	}
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	all := compute
	if graphics, ret := handle.GetGraphicsRunningProcesses(); ret == nvml.SUCCESS {
		all = append(all, graphics...)
	}
	if mps {
		if clients, ret := handle.GetMPSComputeRunningProcesses(); ret == nvml.SUCCESS {
			all = append(all, clients...)
		}
	}
	var list []node.GPUProcess
	for _, p := range all {
		at, known := slices.BinarySearchFunc(list, int(p.Pid), func(q node.GPUProcess, pid int) int {
			return cmp.Compare(q.PID, pid)
		})
		if known { // a process with CUDA and graphics is in both lists, each with its whole memory
			list[at].Bytes = max(list[at].Bytes, processBytes(p))
			continue
		}
		list = slices.Insert(list, at, node.GPUProcess{PID: int(p.Pid), Bytes: processBytes(p)})
	}
	return list, nvml.SUCCESS
}

// processBytes returns a process's memory on the device, -1 if the driver does not report it.
func processBytes(p nvml.ProcessInfo) int64 {
	if p.UsedGpuMemory > math.MaxInt64 { // all bits set: not available
		return -1
	}
	return int64(p.UsedGpuMemory)
}
