package wire

import "time"

// Secret is the API's document of a secret, without its value. Only machines that run work
// with this secret receive the value.
type Secret struct {
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}
