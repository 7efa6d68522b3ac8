package gpu

import "time"

// Event is an Xid error that the driver reported: the kernel log's number of a
// device's error.
type Event struct {
	At   time.Time
	UUID string // of the device, or of the MIG slice if the driver reports it
	Xid  uint64
	// Fatal: after this Xid work must be kept off the device until it was reset, or
	// the host rebooted. The others are the application's, or notes.
	Fatal bool
}
