package node

import (
	"context"

	"berth"
	"berth/wire"
)

// GPUs is the inventory of accelerators of one machine. Two implementations
// exist: NVML (internal/machine/gpu) and a declared file for machines without one.
type GPUs interface {
	// Devices lists the devices in index order with their present health. A
	// machine without GPUs returns none and no error.
	Devices(ctx context.Context) ([]berth.GPU, error)
	// Declared reports whether the inventory is declared rather than read from
	// hardware; it is shown wherever the machine is shown, and such devices are
	// never handed to the engine.
	Declared() bool
	Close() error
}

// GPUMeter is an inventory that knows how busy its devices are.
type GPUMeter interface {
	// Use returns what is known of these devices now; one of which nothing is
	// known, such as a lost one, is left out. A device that is shared is measured
	// as a whole.
	Use(ctx context.Context, uuids []string) ([]wire.GPUUse, error)
}
