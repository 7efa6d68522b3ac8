package wire

import (
	"time"

	"berth"
	"berth/spec"
)

// Token is the API's document of a token, for admins. Secret is returned once, at the
// token's creation: the server stores only a hash.
type Token struct {
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Tenant    berth.TenantID  `json:"tenant"`
	Role      spec.Role       `json:"role"`
	Machine   berth.MachineID `json:"machine,omitempty"`
	CreatedAt time.Time       `json:"created_at"`
	ExpiresAt *time.Time      `json:"expires_at,omitempty"`
	RevokedAt *time.Time      `json:"revoked_at,omitempty"`
	Secret    string          `json:"token,omitempty" doc:"shown once, when the token is made"`
}

// TokenEvent is the creation or the revocation of a token.
type TokenEvent struct {
	ID     int64          `json:"id" doc:"in the order of the events"`
	At     time.Time      `json:"at"`
	Token  string         `json:"token_id"`
	Name   string         `json:"name"`
	Tenant berth.TenantID `json:"tenant"`
	Role   spec.Role      `json:"role"`
	Event  string         `json:"event" enum:"created,revoked"`
	Actor  string         `json:"actor" doc:"operator:NAME, user:NAME, reset:USER@HOST or start:HOST"`
}

// JoinToken is the API's document of a join token, with which one machine joins the
// cluster, once. Secret is returned once, at the token's creation. UsedBy and UsedAt are
// nil until then.
type JoinToken struct {
	ID       string            `json:"id"`
	Pool     string            `json:"pool,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Machines string            `json:"machines,omitempty" doc:"pattern of the names that may join; unset: any name"`
	Approves bool              `json:"approves,omitempty" doc:"the machine needs no approval by an operator"`
	// Most bounds the capacity of the machine; nil: nothing does.
	Most      *spec.MachineBounds `json:"most,omitempty" doc:"greatest capacity of the machine; unset: no bound"`
	CreatedBy string              `json:"created_by"`
	CreatedAt time.Time           `json:"created_at"`
	ExpiresAt time.Time           `json:"expires_at"`
	UsedBy    *berth.MachineID    `json:"used_by,omitempty"`
	UsedAt    *time.Time          `json:"used_at,omitempty"`
	Secret    string              `json:"token,omitempty" doc:"shown once, when the token is made"`
}
