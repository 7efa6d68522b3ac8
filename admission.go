package berth

import "time"

// Admission states whether new work may start. While it is paused, jobs are accepted
// and wait; running jobs, ends and cancels continue.
type Admission struct {
	Paused bool       `json:"paused" doc:"no new work starts in the whole cluster"`
	Reason string     `json:"reason,omitempty" doc:"of the last pause or resumption"`
	Actor  string     `json:"actor,omitempty" doc:"who paused or resumed last"`
	Since  *time.Time `json:"since,omitempty" doc:"time of the last pause or resumption; none if there was none"`
}

// NewAdmission is a pause or a resumption.
type NewAdmission struct {
	Paused *bool  `json:"paused" doc:"required"`
	Reason string `json:"reason,omitempty" doc:"at most 1000 characters, shown to everybody whose jobs wait"`
}

// maxAdmissionReason is the most characters of a reason.
const maxAdmissionReason = 1000

// Validate returns the faults of the request, field by field.
func (n NewAdmission) Validate() []FieldError {
	v := &validation{}
	v.require(n.Paused != nil, "paused", "is missing", "true or false")
	v.require(len([]rune(n.Reason)) <= maxAdmissionReason, "reason", "is too long", "at most 1000 characters")
	return v.faults
}
