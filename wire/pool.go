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
	Machines    int              `json:"machines" doc:"number of machines, without retired ones"`
	Pending     int              `json:"pending,omitempty" doc:"number of these machines that wait for an approval"`
	Version     int64            `json:"version" doc:"increases with each change"`
	CreatedAt   time.Time        `json:"created_at"`
	UpdatedAt   time.Time        `json:"updated_at"`
}
