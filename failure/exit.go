package failure

import (
	"time"

	"berth"
)

// ExitCause is the cause of a member's end by the observation of its agent. It is evidence
// for Classify, not a verdict.
type ExitCause string

// The causes an agent reports.
const (
	CauseExited            ExitCause = "exited"             // the process ended by itself, with Code
	CauseOrdered           ExitCause = "ordered"            // ended after a stop, checkpoint or kill order
	CauseTimeLimit         ExitCause = "time_limit"         // the agent stopped it at its run limit
	CauseDiskLimit         ExitCause = "disk_limit"         // the agent ended it beyond its resources.disk
	CauseDiskReserve       ExitCause = "disk_reserve"       // the agent ended it to keep space free on the machine
	CauseStalled           ExitCause = "stalled"            // the agent stopped it for lack of activity
	CauseImageNotFound     ExitCause = "image_not_found"    // never started
	CauseImageUnavailable  ExitCause = "image_unavailable"  // never started
	CauseImageMismatch     ExitCause = "image_mismatch"     // never started: the content does not match its digest
	CauseImageNotAllowed   ExitCause = "image_not_allowed"  // never started: the tenant may not run the image
	CauseOutputPath        ExitCause = "output_path"        // never started: no folder of an output can be its user's
	CauseUserNotAllowed    ExitCause = "user_not_allowed"   // never started: the tenant may not have the user
	CauseImageUnsigned     ExitCause = "image_unsigned"     // never started: a demanded signature is missing
	CauseBadCommand        ExitCause = "bad_command"        // never started: the executable is not in the image
	CauseImageInvalid      ExitCause = "image_invalid"      // never started: no engine can start the image
	CauseUnmappedUser      ExitCause = "unmapped_user"      // never started: the engine's mapping has no such user
	CauseDevice            ExitCause = "device"             // never started: the engine refused the GPUs
	CauseNetwork           ExitCause = "network"            // never started: the machine had no fit network for it
	CauseEngine            ExitCause = "engine"             // the engine failed, or ended the container by a restart
	CauseBoot              ExitCause = "boot"               // the machine rebooted
	CauseHostOOM           ExitCause = "host_oom"           // the host, and not the job, ran out of memory
	CauseVanished          ExitCause = "vanished"           // the container is gone, and its end was not observed
	CauseFenced            ExitCause = "fenced"             // the deadman ended it: no accepted sync for too long
	CauseGPUInUse          ExitCause = "gpu_in_use"         // never started: one of its GPUs is in use outside of Berth
	CauseCheck             ExitCause = "check"              // never started: the operator's check failed
	CauseGPU               ExitCause = "gpu"                // one of its devices failed
	CauseCheckpointCorrupt ExitCause = "checkpoint_corrupt" // never started: no existing checkpoint verified
	CauseRestoreFailed     ExitCause = "restore_failed"     // never started: the checkpoint store did not answer
	CauseInputUnavailable  ExitCause = "input_unavailable"  // never started: its code or data did not arrive
	CauseInputInvalid      ExitCause = "input_invalid"      // never started: its code or data is invalid or gone
	CauseSecretMissing     ExitCause = "secret_missing"     // never started: one of its secrets is gone
	CauseSecretUnavailable ExitCause = "secret_unavailable" // never started: the server could not open a secret
	CauseNotStarted        ExitCause = "not_started"        // stopped before its container was started
)

// Exit is the agent's record of the end of one member.
type Exit struct {
	Cause     ExitCause `json:"cause"`
	Code      int       `json:"code"`                 // the process's exit code; 128+n for signal n
	OOMKilled bool      `json:"oom_killed,omitempty"` // the kernel killed one of its processes for memory
	Message   string    `json:"message,omitempty"`    // the engine's or the agent's own words
	Sign      LogSign   `json:"sign,omitempty"`       // from the last lines of a failed member's log
	// Xid is the last error that the NVIDIA driver logged for one of its GPUs during the
	// run, if the error left the device usable.
	Xid        uint64          `json:"xid,omitempty"`
	Complete   bool            `json:"complete,omitempty"`   // the job's progress reported step = total
	User       string          `json:"user,omitempty"`       // UID:GID of the container; "": the user of its image
	ImageRoot  bool            `json:"image_root,omitempty"` // the user of the image is root, and User is not
	StartedAt  time.Time       `json:"started_at,omitzero"`
	FinishedAt time.Time       `json:"finished_at,omitzero"`
	Measured   *berth.Measured `json:"measured,omitempty"`
	// Unstored lists outputs that existed, and that could not be stored for a fault of the
	// machine, the network or the store.
	Unstored []string `json:"unstored,omitempty"`
	// Refused lists outputs that no machine can store: too large, or with entries that
	// archives exclude.
	Refused []string `json:"refused,omitempty"`

	// Unresolved is set if the name of an input's server does not exist by the name servers of
	// the machine.
	Unresolved *Unresolved `json:"unresolved,omitempty"`

	// OverQuota explains how the first refused output exceeds a storage quota. It is empty
	// if no output does.
	OverQuota string `json:"over_quota,omitempty"`

	// CheckFailed describes a failure of the operator's check command on the machine, before or
	// after the run. The machine gets no work until an operator opens
	// it. After a run, the failure does not change the result.
	CheckFailed string `json:"check_failed,omitempty"`
}

// Unresolved is the evidence that a host does not exist: the name servers of the member's
// machine answered so. A timeout or a failed lookup is no such evidence.
type Unresolved struct {
	Host string `json:"host"`
	// Confirmed reports that the name servers of the control plane gave the same answer.
	Confirmed bool `json:"confirmed,omitempty"`
}

// Started reports whether the user's process ever ran.
func (e Exit) Started() bool { return !e.StartedAt.IsZero() }

// Done reports whether the member has done its work. An exit with code 0 counts if it was
// not ordered. After an order, trainers save and exit 0 with work left, so then only a
// progress of step = total counts.
func (e Exit) Done() bool {
	return e.Started() && e.Code == 0 && (e.Cause == CauseExited || e.Complete)
}
