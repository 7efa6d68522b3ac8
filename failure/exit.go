package failure

import (
	"time"

	"berth"
)

// ExitCause is the cause of a member's end, as the agent observed it. It is evidence,
// not a verdict: Classify weighs it.
type ExitCause string

// The causes an agent reports.
const (
	CauseExited            ExitCause = "exited"             // the process ended by itself, with Code
	CauseOrdered           ExitCause = "ordered"            // it ended after a stop, checkpoint or kill order was delivered
	CauseTimeLimit         ExitCause = "time_limit"         // the agent stopped it at its run limit
	CauseStalled           ExitCause = "stalled"            // the agent stopped it for want of progress
	CauseImageNotFound     ExitCause = "image_not_found"    // never started
	CauseImageUnavailable  ExitCause = "image_unavailable"  // never started
	CauseImageMismatch     ExitCause = "image_mismatch"     // never started: the content does not match its digest
	CauseBadCommand        ExitCause = "bad_command"        // never started: the executable is not in the image
	CauseDevice            ExitCause = "device"             // never started: the engine refused the GPUs
	CauseEngine            ExitCause = "engine"             // the engine failed, or restarted and took the container along
	CauseBoot              ExitCause = "boot"               // the machine rebooted
	CauseHostOOM           ExitCause = "host_oom"           // the host, and not the job, ran out of memory
	CauseVanished          ExitCause = "vanished"           // the container is gone, and its end was not observed
	CauseFenced            ExitCause = "fenced"             // the machine's deadman ended it: the control plane had not heard the machine for too long
	CauseGPU               ExitCause = "gpu"                // a device of it failed
	CauseCheckpointCorrupt ExitCause = "checkpoint_corrupt" // never started: checkpoints existed and none verified
	CauseRestoreFailed     ExitCause = "restore_failed"     // never started: the checkpoint store did not answer
	CauseInputUnavailable  ExitCause = "input_unavailable"  // never started: its code or data did not come
	CauseInputInvalid      ExitCause = "input_invalid"      // never started: its code or data is invalid, or is gone
	CauseSecretMissing     ExitCause = "secret_missing"     // never started: a secret of it is gone
	CauseSecretUnavailable ExitCause = "secret_unavailable" // never started: the server could not open a secret of it
	CauseNotStarted        ExitCause = "not_started"        // stopped before its container was started
)

// Exit is how one member ended.
type Exit struct {
	Cause      ExitCause       `json:"cause"`
	Code       int             `json:"code"`                 // the process's exit code; 128+n for signal n
	OOMKilled  bool            `json:"oom_killed,omitempty"` // the kernel killed a process of it for memory
	Message    string          `json:"message,omitempty"`    // the engine's or the agent's own words
	Sign       LogSign         `json:"sign,omitempty"`       // from the last lines of a failed member's log
	Xid        uint64          `json:"xid,omitempty"`        // the driver's last word on one of its GPUs while it ran, where that left the device usable
	Complete   bool            `json:"complete,omitempty"`   // the job's progress said step = total
	StartedAt  time.Time       `json:"started_at,omitzero"`
	FinishedAt time.Time       `json:"finished_at,omitzero"`
	Measured   *berth.Measured `json:"measured,omitempty"`
	Unstored   []string        `json:"unstored,omitempty"` // outputs that were there, and that machine, network or store kept from being stored
	Refused    []string        `json:"refused,omitempty"`  // outputs that no machine can store: too large, or with entries that archives exclude

	// OverQuota says why the first refused output exceeds a storage quota. It is empty
	// if none does.
	OverQuota string `json:"over_quota,omitempty"`
}

// Started reports whether the user's process ever ran.
func (e Exit) Started() bool { return !e.StartedAt.IsZero() }

// Done reports whether the member has done its work: it exited 0 by itself or,
// since trainers save and exit 0 on an order, its progress was complete.
func (e Exit) Done() bool {
	return e.Started() && e.Code == 0 && (e.Cause == CauseExited || e.Complete)
}
