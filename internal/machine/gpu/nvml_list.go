//go:build cgo

package gpu

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"berth"
)

// device is one listed entry: a physical device, or a slice of one.
type device struct {
	berth.GPU
	parent   string // UUID of the physical device of a slice, else empty
	instance [2]uint32
	pci      string // address, such as 0000:3b:00
}

// physical returns the UUID of the GPU: a slice's parent, or the device's own.
func (d device) physical() string { return cmp.Or(d.parent, d.UUID) }

// list returns the devices that the driver shows, and the UUIDs of all physical GPUs, including
// the parents of slices.
func (n *NVML) list() (present []device, alive map[string]bool, err error) {
	count, ret := n.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, nil, fmt.Errorf("count gpus: %w", ret)
	}
	alive = make(map[string]bool)
	for i := range count {
		handle, ret := n.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS { // merge lists it as lost if it was ever known
			n.log.Warn("GPU does not answer", "gpu", i, "error", ret)
			continue
		}
		uuid, ret := handle.GetUUID()
		if ret != nvml.SUCCESS {
			n.log.Warn("GPU has no UUID", "gpu", i, "error", ret)
			continue
		}
		alive[uuid] = true
		n.register(uuid, handle)
		found, err := n.describe(uuid, handle)
		if err != nil {
			return nil, nil, err
		}
		present = append(present, found...)
	}
	return present, alive, nil
}

// describe returns a physical device, or the slices of a device that is cut into slices.
func (n *NVML) describe(uuid string, handle nvml.Device) ([]device, error) {
	d := device{GPU: berth.GPU{UUID: uuid, Healthy: true}}
	name, ret := handle.GetName()
	d.Model = ShortModel(name)
	d.accept("name", ret)
	d.MemoryMiB = memory(&d, handle)
	if at, ret := handle.GetPciInfo(); ret == nvml.SUCCESS {
		d.pci = fmt.Sprintf("%04x:%02x:%02x", at.Domain, at.Bus, at.Device)
	}
	if d.Healthy {
		d.Reason = n.illness(handle)
		d.Healthy = d.Reason == ""
	}
	if !n.inMIGMode(handle) {
		return []device{d}, nil
	}
	most, ret := handle.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count slices of gpu %s: %w", uuid, ret)
	}
	var slices []device
	for i := range most {
		slice, ret := handle.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS { // most places for slices are empty
			continue
		}
		s, err := n.describeSlice(d, slice)
		if err != nil {
			return nil, err
		}
		slices = append(slices, s)
	}
	return slices, nil
}

// describeSlice returns a slice, which has the health of the whole device.
func (n *NVML) describeSlice(whole device, handle nvml.Device) (device, error) {
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return device{}, fmt.Errorf("identify slice of gpu %s: %w", whole.UUID, ret)
	}
	s := device{
		GPU:    berth.GPU{UUID: uuid, Healthy: whole.Healthy, Reason: whole.Reason},
		parent: whole.UUID, pci: whole.pci,
	}
	s.MemoryMiB = memory(&s, handle)
	s.Model = whole.Model + "-" + profile(handle, s.MemoryMiB)
	gi, ret1 := handle.GetGpuInstanceId()
	ci, ret2 := handle.GetComputeInstanceId()
	if ret1 == nvml.SUCCESS && ret2 == nvml.SUCCESS {
		s.instance = [2]uint32{uint32(gi), uint32(ci)}
	}
	return s, nil
}

// profile is the kind of a slice, such as 1g.10gb. Drivers append it to the name;
// otherwise the size is enough.
func profile(handle nvml.Device, memoryMiB int64) string {
	if name, ret := handle.GetName(); ret == nvml.SUCCESS {
		if _, after, ok := strings.Cut(name, "MIG "); ok {
			return strings.TrimSpace(after)
		}
	}
	return fmt.Sprintf("mig.%dgb", (memoryMiB+512)>>10)
}

// memory is a device's total memory; 0 for chips that share the host's.
func memory(d *device, handle nvml.Device) int64 {
	info, ret := handle.GetMemoryInfo()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return 0
	}
	d.accept("memory size", ret)
	return int64(info.Total >> 20)
}

// accept takes a basic question that the driver could not answer as illness.
func (d *device) accept(what string, ret nvml.Return) {
	if ret != nvml.SUCCESS && d.Healthy {
		d.Healthy, d.Reason = false, fmt.Sprintf("%s cannot be read: %v", what, ret)
	}
}

// inMIGMode reports whether a device is cut into slices. Libraries older than MIG have no such
// devices.
func (n *NVML) inMIGMode(handle nvml.Device) bool {
	if !n.has("nvmlDeviceGetMigMode") {
		return false
	}
	current, _, ret := handle.GetMigMode()
	return ret == nvml.SUCCESS && current == nvml.DEVICE_MIG_ENABLE
}

// has reports whether the driver's library knows a function. Calling one that
// an old library lacks would end the process.
func (n *NVML) has(symbol string) bool { return n.lib.Extensions().LookupSymbol(symbol) == nil }

// illness is why work must keep off a device, or nothing.
func (n *NVML) illness(handle nvml.Device) string {
	count, ret := handle.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	if gone(ret) {
		return lost(ret)
	}
	if ret == nvml.SUCCESS && count > 0 {
		return fmt.Sprintf("%d uncorrected memory errors since the driver was loaded", count)
	}
	if n.has("nvmlDeviceGetRemappedRows") {
		_, _, pending, failed, ret := handle.GetRemappedRows()
		switch {
		case gone(ret):
			return lost(ret)
		case ret == nvml.SUCCESS && failed:
			return "a bad memory row could not be remapped: the device must be replaced"
		case ret == nvml.SUCCESS && pending:
			return "a memory row waits to be remapped: the device must be reset"
		}
	}
	pending, ret := handle.GetRetiredPagesPendingStatus()
	switch {
	case gone(ret):
		return lost(ret)
	case ret == nvml.SUCCESS && pending == nvml.FEATURE_ENABLED:
		return "memory pages wait to be retired: the device must be reset"
	}
	return ""
}

// gone distinguishes a broken device from an unsupported query, which is common:
// consumer cards have no error correction.
func gone(ret nvml.Return) bool {
	return ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED || ret == nvml.ERROR_GPU_NOT_FOUND
}

// lost returns the reason of a device that the driver no longer reaches.
func lost(ret nvml.Return) string { return fmt.Sprintf("lost: %v", ret) }

// merge gives every device its index. Known devices keep theirs; new ones get
// the smallest free one. A known physical device that is not alive stays in its place
// as lost, and so do its slices. A missing slice of a living device is dropped: the
// device has been cut differently.
func merge(known, present []device, alive map[string]bool) []device {
	used := make(map[int]bool)
	merged := make([]device, 0, len(present))
	for _, old := range known {
		at := slices.IndexFunc(present, func(d device) bool { return d.UUID == old.UUID })
		switch {
		case at >= 0:
			d := present[at]
			d.Index = old.Index
			merged = append(merged, d)
		case !alive[old.physical()]:
			if old.Healthy {
				old.Healthy, old.Reason = false, "lost: the driver does not show it any more"
			}
			merged = append(merged, old)
		default:
			continue
		}
		used[old.Index] = true
	}
	next := 0
	for _, d := range present {
		if slices.ContainsFunc(known, func(old device) bool { return old.UUID == d.UUID }) {
			continue
		}
		for used[next] {
			next++
		}
		d.Index, used[next] = next, true
		merged = append(merged, d)
	}
	slices.SortFunc(merged, func(a, b device) int { return a.Index - b.Index })
	return merged
}
