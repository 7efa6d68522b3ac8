package wire

import "time"

// Secret is a named secret of a tenant, as users see it. Only machines that run work
// which names the secret receive its value.
type Secret struct {
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}
