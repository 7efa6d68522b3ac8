package wire

import "time"

// Admission states whether new work may start. While it is paused, jobs are accepted
// and wait; running jobs, ends and cancels continue.
type Admission struct {
	Paused bool       `json:"paused" doc:"no new work starts in the whole cluster"`
	Reason string     `json:"reason,omitempty" doc:"reason of the last pause or resumption"`
	Actor  string     `json:"actor,omitempty" doc:"who paused or resumed last"`
	Since  *time.Time `json:"since,omitempty" doc:"time of the last pause or resumption; none if there was none"`

	Quarantined bool `json:"quarantined,omitempty" doc:"the cluster was restored from a backup and waits for adoption"`
}
