package spec

import "berth"

// NewAdmission is a pause or a resumption.
type NewAdmission struct {
	Paused *bool  `json:"paused" doc:"required"`
	Reason string `json:"reason,omitempty" doc:"at most 1000 characters, shown to everybody whose jobs wait"`
}

// maxAdmissionReason is the most characters of a reason.
const maxAdmissionReason = 1000

// Validate returns the faults of the request, field by field.
func (n NewAdmission) Validate() []berth.FieldError {
	v := &validation{}
	v.require(n.Paused != nil, "paused", "is missing", "true or false")
	v.require(len([]rune(n.Reason)) <= maxAdmissionReason, "reason", "is too long", "at most 1000 characters")
	return v.faults
}
