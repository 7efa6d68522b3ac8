package spec

import "berth"

// NewAdmission pauses or resumes the start of jobs. Paused has no default.
type NewAdmission struct {
	Paused *bool  `json:"paused" doc:"required"`
	Reason string `json:"reason,omitempty" doc:"at most 1000 characters, shown to everybody whose jobs wait"`
}

// maxAdmissionReason is the largest length of a reason, in characters (not bytes).
const maxAdmissionReason = 1000

// Validate returns all faults of the request at once, or nil.
func (n NewAdmission) Validate() []berth.FieldError {
	v := &validation{}
	v.require(n.Paused != nil, "paused", "is required", "true or false")
	v.require(len([]rune(n.Reason)) <= maxAdmissionReason, "reason", "is too long", "at most 1000 characters")
	return v.faults
}
