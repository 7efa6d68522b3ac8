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
	Machines    int              `json:"machines" doc:"number of machines, without retired ones"`
	Version     int64            `json:"version" doc:"increases with each change"`
	CreatedAt   time.Time        `json:"created_at"`
	UpdatedAt   time.Time        `json:"updated_at"`
}
