package wire

import (
	"time"

	"berth"
	"berth/spec"
)

// Tenant is a team that owns jobs and has a share of the cluster. The limits of its parent
// bind it, too.
type Tenant struct {
	ID        berth.TenantID `json:"id"`
	Parent    berth.TenantID `json:"parent,omitempty" doc:"the tenant above it, whose limits bind it too"`
	Weight    float64        `json:"weight" doc:"weight of its share among its siblings"`
	CreatedAt time.Time      `json:"created_at"`
	Use       spec.TenantUse `json:"use"`

	// Untrusted also binds the tenants below this one.
	Untrusted bool `json:"untrusted,omitempty" doc:"jobs start only on machines that meet the security floors"`

	// Users is zero until a container needs a user of the tenant.
	Users spec.UserRange `json:"users,omitzero" doc:"users of its containers, from the first one on"`
}
