package wire

import (
	"time"

	"berth"
	"berth/spec"
)

// ChannelStatus is a destination of notifications with the state of its delivery.
type ChannelStatus struct {
	Name      string         `json:"name"`
	Tenant    berth.TenantID `json:"tenant"`
	Inherited bool           `json:"inherited,omitempty" doc:"belongs to a tenant above; no destination shown"`
	spec.Channel
	UpdatedAt    time.Time  `json:"updated_at"`
	UpdatedBy    string     `json:"updated_by,omitempty"`
	Waiting      int        `json:"waiting" doc:"notifications that are not delivered yet; 10001: more than 10000"`
	Tests        int        `json:"tests,omitempty" doc:"notifications of tests among them"`
	DeliveredAt  *time.Time `json:"delivered_at,omitempty" doc:"time of the last delivery"`
	FailingSince *time.Time `json:"failing_since,omitempty" doc:"time of the first failure since the last delivery"`
	FailedAt     *time.Time `json:"failed_at,omitempty" doc:"time of the last failure"`
	Error        string     `json:"error,omitempty" doc:"why the last try failed"`
}

// Notification is the content of one notification: the body of a call of a webhook, and the source of the texts
// of chats and mails.
type Notification struct {
	Type      string           `json:"type"` // job.STATUS, or one of spec.ChannelEvents, or channel.test
	Timestamp time.Time        `json:"timestamp"`
	Data      NotificationData `json:"data"`
}

// NotificationData has the fields of a job's webhook call, of a machine, or of a limit of spend.
type NotificationData struct {
	WebhookJob
	Machine  berth.MachineID `json:"machine,omitempty"`
	Pool     string          `json:"pool,omitempty"`
	GPU      *int            `json:"gpu,omitempty"` // index on the machine
	Detail   string          `json:"detail,omitempty"`
	Drain    string          `json:"drain_reason,omitempty"` // of a job on a draining machine
	Deadline *time.Time      `json:"drain_deadline,omitempty"`
	Level    string          `json:"level,omitempty"` // of a limit of spend
	Used     float64         `json:"used,omitempty"`  // US dollars
	Limit    float64         `json:"limit,omitempty"` // US dollars
	By       string          `json:"by,omitempty"`    // sender of a test
	Channel  string          `json:"channel,omitempty"`
}
