package gpu

import "errors"

// ErrNoNVML is the error of a machine without the NVIDIA library, and so without NVIDIA GPUs or
// without their driver.
var ErrNoNVML = errors.New("no NVML on this machine")
