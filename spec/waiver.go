package spec

import (
	"fmt"
	"time"

	"berth"
)

// Limits on a NewWaiver.
const (
	MaxWaiver       = 366 * 24 * time.Hour // from now on
	maxWaiverReason = 300
)

// NewWaiver is the body of a call by which an operator states that the reported version of a component of a machine is
// secure, although it is older than the security floor.
type NewWaiver struct {
	Component string `json:"component" doc:"as the machine reports it, such as runc or seccomp"`
	// Version is the version or setting that the operator has judged. A machine that reports another one by now gets no
	// waiver. "": the reported one, for clients of earlier versions.
	Version string    `json:"version,omitempty" doc:"as the machine reports it: another is a conflict"`
	Until   time.Time `json:"until" doc:"end of the waiver, at most 366 days from now"`
	Reason  string    `json:"reason" doc:"such as the advisory of the distribution that has backported the fix"`
}

// Validate returns all faults of the request at once, or nil. now is the present time.
func (w NewWaiver) Validate(now time.Time) []berth.FieldError {
	v := &validation{}
	v.require(w.Component != "" && len(w.Component) <= 128, "component",
		fmt.Sprintf("%.40q is not a name", w.Component),
		"a component that the machine reports")
	v.require(len(w.Version) <= 128, "version", "is too long", "at most 128 bytes, as the machine reports it")
	v.require(w.Until.After(now) && !w.Until.After(now.Add(MaxWaiver)), "until",
		w.Until.UTC().Format(time.RFC3339)+" is out of range", "a time after now and at most 366 days from now")
	v.require(w.Reason != "" && len(w.Reason) <= maxWaiverReason, "reason", "is empty or too long",
		fmt.Sprintf("1 to %d bytes", maxWaiverReason))
	return v.faults
}
