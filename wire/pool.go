package wire

import (
	"time"

	"berth"
)

// Pool is the API's document of a pool: a set of machines with rules. Each machine is in exactly
// one pool.
type Pool struct {
	Name        string           `json:"name"`
	Tenants     []berth.TenantID `json:"tenants,omitempty" doc:"accepted, with all tenants below; unset: all"`
	Description string           `json:"description,omitempty"`
	Approval    bool             `json:"approval,omitempty" doc:"machines get work only after an approval"`
	OneTenant   bool             `json:"one_tenant_per_machine,omitempty" doc:"a machine serves one tenant at a time"`
	Taints      []string         `json:"taints,omitempty" doc:"of each machine of the pool"`
	Machines    int              `json:"machines" doc:"number of machines, without retired ones"`
	Pending     int              `json:"pending,omitempty" doc:"number of these machines that wait for an approval"`
	Version     int64            `json:"version" doc:"increases with each change"`
	CreatedAt   time.Time        `json:"created_at"`
	UpdatedAt   time.Time        `json:"updated_at"`
	// Closed is only in the answer to a call about one pool. The refusals of single offers are shown with the offers.
	Closed []ClosedPart `json:"closed,omitempty" doc:"parts of clouds that take no new machines of the pool now"`
}

// ClosedPart is a part of a cloud that takes no new machines now, since the cloud refused some.
type ClosedPart struct {
	Scope  string     `json:"scope" doc:"offering, join, provider, pool, quota or throttle"`
	Part   string     `json:"part" doc:"the closed part of the cloud, in words"`
	Reason string     `json:"reason"`
	Until  *time.Time `json:"until,omitempty" doc:"unset: until the settings change or a launch succeeds"`
}
