package gpu

import "errors"

// ErrNoNVML says that there is no NVIDIA library on this machine: it has no
// NVIDIA GPUs, or no driver for them.
var ErrNoNVML = errors.New("no NVML on this machine")
