package failure

import (
	"slices"
	"strings"
)

// XidVerdict is the required reaction to an XID, the NVIDIA driver's number of a GPU
// error. Later values are more severe; Fatal and Quarantines depend on this order.
type XidVerdict int

// The verdicts.
const (
	XidUnknown XidVerdict = iota // not in the table: recorded, without consequence
	XidNote                      // recorded: the device stays in use
	XidRestart                   // the application must be restarted; the device stays in use
	XidDrain                     // kill the job and drain the device; reset and test it before new work
	XidHost                      // as XidDrain for the whole host: its devices share the failed part
	XidReboot                    // quarantine the machine and reboot the host
)

// String describes the verdict for operators.
func (v XidVerdict) String() string {
	switch v {
	case XidUnknown:
		return "not in the table: note it"
	case XidNote:
		return "note it"
	case XidRestart:
		return "restart the application only"
	case XidDrain:
		return "kill the job, drain the GPU, reset and test it"
	case XidHost:
		return "kill the job, drain the whole machine, reset its GPUs together"
	case XidReboot:
		return "kill the job, quarantine the machine, reboot the host"
	default:
		panic("unknown XID verdict")
	}
}

// Fatal reports whether work must be kept off the device.
func (v XidVerdict) Fatal() bool { return v >= XidDrain }

// Quarantines reports whether work must be kept off the whole machine.
func (v XidVerdict) Quarantines() bool { return v >= XidHost }

// XidRow is a row of Xids.
type XidRow struct {
	Xids    []uint64
	Verdict XidVerdict
	What    string // the driver's meaning
}

// Xids lists the errors of NVIDIA's XID catalogue that require a reaction or deserve a
// note. Where operators of large fleets disagree with the catalogue (Meta ignores 109), the
// table follows NVIDIA.
var Xids = []XidRow{
	{[]uint64{79}, XidReboot, "the GPU has fallen off the bus"},
	{[]uint64{74, 144, 145, 146, 147, 148, 149, 150}, XidHost, "NVLink failed, together with its peers"},
	{[]uint64{48}, XidDrain, "a memory error of two bits, not corrected"},
	{[]uint64{95}, XidDrain, "a memory error that was not contained"},
	{[]uint64{46, 62, 64, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}, XidDrain,
		"the GPU must be reset before it is used again"},
	{[]uint64{13, 31, 94}, XidRestart,
		"the application touched memory that it may not use, or that failed and was contained"},
	{[]uint64{8, 11, 25, 32, 39, 40, 41, 68, 69, 70, 71, 72, 80}, XidRestart,
		"an engine of the GPU stopped on the application's commands"},
	{[]uint64{43, 45}, XidNote, "the application's channel was closed; another XID or the application shows the cause"},
	{[]uint64{63}, XidNote, "a row of memory was replaced: reset when the job has ended"},
	{[]uint64{37, 38, 44, 66, 67, 92, 93, 121, 137}, XidNote, "informational"},
	{[]uint64{154}, XidNote, "the driver names the required recovery in its message, see XidWanted"},
}

// XidAction returns the required reaction to an XID.
func XidAction(xid uint64) XidVerdict {
	for _, row := range Xids {
		if slices.Contains(row.Xids, xid) {
			return row.Verdict
		}
	}
	return XidUnknown
}

// XidWanted returns the required reaction to an XID, with regard to the driver's own
// words: with XID 154 they name the required recovery, such as
// "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)".
func XidWanted(xid uint64, words string) XidVerdict {
	if xid != 154 {
		return XidAction(xid)
	}
	_, to, _ := strings.Cut(strings.ToLower(words), " to ")
	switch {
	case strings.Contains(to, "none"):
		return XidNote
	case strings.Contains(to, "reboot"):
		return XidReboot
	case strings.Contains(to, "p2p"):
		return XidHost
	case strings.Contains(to, "reset"), strings.Contains(to, "drain"):
		return XidDrain
	default:
		return XidNote
	}
}

// XidMeaning returns the driver's meaning of an XID, or "" for an XID that Xids does not
// list.
func XidMeaning(xid uint64) string {
	for _, row := range Xids {
		if slices.Contains(row.Xids, xid) {
			return row.What
		}
	}
	return ""
}
