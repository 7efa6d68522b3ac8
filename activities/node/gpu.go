package node

import (
	"context"

	"berth"
	"berth/wire"
)

// GPUs is the inventory of accelerators of one machine. Two implementations
// exist: NVML (internal/machine/gpu) and a declared file for machines without one.
type GPUs interface {
	// Devices returns the devices in index order with their present health. A machine
	// without GPUs returns none and no error.
	Devices(ctx context.Context) ([]berth.GPU, error)
	// Declared reports whether the inventory is declared rather than read from hardware.
	// Declared devices are marked wherever the machine is shown, and are never passed to
	// the engine.
	Declared() bool
	Close() error
}

// GPUMeter is an inventory that also measures the utilisation of its devices.
type GPUMeter interface {
	// Use returns the current use of the given devices. A device without data, such as a
	// lost one, is left out. A shared device is measured as a whole.
	Use(ctx context.Context, uuids []string) ([]wire.GPUUse, error)
}

// FreeMemory is the memory, in bytes, that the driver of a device without processes may report as in
// use. An H100 reports 0.
const FreeMemory = 64 << 20

// GPUHolders is an inventory that also lists the processes on its devices.
type GPUHolders interface {
	// Holders returns one entry for each of the given devices, in their order.
	Holders(ctx context.Context, uuids []string) ([]GPUHolding, error)
}

// GPUHolding describes the current holders of a device.
type GPUHolding struct {
	UUID        string
	MemoryBytes int64        // in use, without the driver's own share; negative: not known
	Processes   []GPUProcess // by id; without the processes of containers if the driver hides them
	Problem     string       // why the processes could not be listed; "": they were
}

// GPUProcess is a process with a context on a device.
type GPUProcess struct {
	PID   int   // in the agent's namespace
	Bytes int64 // of device memory; negative: not known
}
