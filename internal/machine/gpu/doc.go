// Package gpu is the inventory of a machine's accelerators. It implements node.GPUs
// with the NVIDIA driver (OpenNVML), or with a file of declared devices for
// machines without one (OpenDeclared), which is always visible as such.
//
// A device becomes unhealthy when the driver reports a reason to keep work off it:
// uncorrected memory errors, rows or pages that wait for a reset, a lost device, an
// Xid after which NVIDIA recommends a reset. It stays unhealthy until a restarted
// driver reports none.
//
// The package never changes a setting of a device and never resets one.
package gpu
