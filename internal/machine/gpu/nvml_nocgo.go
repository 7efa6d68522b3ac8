//go:build !cgo

package gpu

import (
	"context"
	"log/slog"

	"berth"
	"berth/activities/node"
)

// NVMLOptions tunes an NVML.
type NVMLOptions struct {
	Logger *slog.Logger
}

// NVML cannot be had in a program built without cgo.
type NVML struct{}

var _ node.GPUs = (*NVML)(nil)

// OpenNVML returns ErrNoNVML: loading the library takes cgo.
func OpenNVML(NVMLOptions) (*NVML, error) { return nil, ErrNoNVML }

// Devices lists none.
func (*NVML) Devices(context.Context) ([]berth.GPU, error) { return nil, ErrNoNVML }

// Declared is false.
func (*NVML) Declared() bool { return false }

// Close does nothing.
func (*NVML) Close() error { return nil }

// Events has nothing to watch.
func (*NVML) Events(context.Context) (<-chan Event, error) { return nil, ErrNoNVML }
