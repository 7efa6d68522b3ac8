// Package gpu is the inventory of a machine's accelerators: node.GPUs read from
// the NVIDIA driver (OpenNVML), or declared in a file for machines without one
// (OpenDeclared), which is always visible as such.
//
// A device is unhealthy as soon as the driver shows a reason to keep work off
// it: memory errors that were not corrected, rows or pages that wait for a
// reset, a device that is lost, an Xid after which NVIDIA says to reset. It
// stays so until the driver, started anew, shows none.
//
// It will never change a setting of a device or reset one.
package gpu
