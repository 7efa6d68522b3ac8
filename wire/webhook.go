package wire

import (
	"time"

	"berth"
)

// WebhookEvent is the body of a webhook call.
type WebhookEvent struct {
	Type      string     `json:"type"`      // job.STATUS, such as job.succeeded
	Timestamp time.Time  `json:"timestamp"` // when the job entered the status
	Data      WebhookJob `json:"data"`
}

// WebhookJob is the job in a webhook's payload: a part of the API's document, at the
// time of the change.
type WebhookJob struct {
	ID          berth.JobID       `json:"id"`
	Kind        berth.Kind        `json:"kind,omitempty"`
	Name        string            `json:"name"`
	Tenant      berth.TenantID    `json:"tenant"`
	Status      berth.State       `json:"status"`
	Reason      *berth.Reason     `json:"reason,omitempty"`
	DeadLetter  bool              `json:"dead_letter,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Attempt     int               `json:"attempt"`
	ExitCode    *int              `json:"exit_code,omitempty"`
	SubmittedAt time.Time         `json:"submitted_at"`
	StartedAt   *time.Time        `json:"started_at,omitempty"`
	FinishedAt  *time.Time        `json:"finished_at,omitempty"`
}
