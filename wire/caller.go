package wire

import (
	"time"

	"berth"
	"berth/spec"
)

// Caller is the API's document of the token that a call came with.
type Caller struct {
	Name      string         `json:"name" doc:"name of the token; events and jobs name it as user:NAME"`
	Tenant    berth.TenantID `json:"tenant"`
	Role      spec.Role      `json:"role"`
	TokenID   string         `json:"token_id"`
	ExpiresAt *time.Time     `json:"expires_at,omitempty"`
}
