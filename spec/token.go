package spec

import (
	"strings"
	"time"

	"berth"
)

// Role is the set of permissions of a token.
type Role string

// The roles. The agent protocol accepts only tokens with RoleMachine, and no other call
// accepts these tokens.
const (
	RoleAdmin   Role = "admin"
	RoleUser    Role = "user"
	RoleViewer  Role = "viewer"
	RoleMachine Role = "machine"
	RoleMetrics Role = "metrics" // opens GET /metrics and nothing else
)

// NewToken is the body of a call that creates a token. TTL 0 means no expiry.
type NewToken struct {
	Name   string         `json:"name" doc:"named in the history of jobs"`
	Tenant berth.TenantID `json:"tenant,omitempty" doc:"default: the caller's"`
	Role   Role           `json:"role,omitempty" doc:"admin, user (default), viewer or metrics"`
	TTL    Duration       `json:"ttl,omitempty" doc:"unset: until revoked"`
}

// Validate returns all faults of the request at once, or nil.
func (n NewToken) Validate() []berth.FieldError {
	v := &validation{}
	v.require(isName(n.Name), "name", "is not a valid name", "1 to 63 of a-z, 0-9 and '-', not at either end")
	v.require(isName(string(n.Tenant)), "tenant", "is not a valid name",
		"1 to 63 of a-z, 0-9 and '-', not at either end")
	v.oneOf("role", string(n.Role), string(RoleAdmin), string(RoleUser), string(RoleViewer), string(RoleMetrics))
	return v.faults
}

// NewJoinToken is the body of a call that creates a join token, with which machines join
// the cluster. The labels override the labels that a machine reports.
type NewJoinToken struct {
	Pool   string            `json:"pool,omitempty"`
	Labels map[string]string `json:"labels,omitempty" doc:"the machine gets these, whatever it says of itself"`
	TTL    Duration          `json:"ttl,omitempty" doc:"default 10m, at most 24h"`

	// Machines is a pattern of machine names, in which * stands for any characters.
	Machines string `json:"machines,omitempty" doc:"names that may join, such as gpu-*; unset: any name"`
	// Approves lets the machine get work without the approval of an operator, as far as its
	// capacity is within Most.
	Approves bool `json:"approves,omitempty" doc:"the machine needs no approval by an operator"`
	// Most bounds the capacity that the machine may report; nil, or 0 for a resource: no bound.
	Most *MachineBounds `json:"most,omitempty" doc:"greatest capacity; a machine that reports more waits for approval"`
}

// MachineBounds is the greatest capacity with which a machine may join. A resource that is 0 has no
// bound.
type MachineBounds struct {
	CPUs   MilliCPU `json:"cpus,omitempty"`
	Memory MiB      `json:"memory,omitempty"`
	GPUs   int      `json:"gpus,omitempty"`
}

// Validate returns all faults of the request at once, or nil.
func (n NewJoinToken) Validate() []berth.FieldError {
	v := &validation{}
	v.require(n.Pool == "" || isName(n.Pool), "pool", "is not a valid name",
		"1 to 63 of a-z, 0-9 and '-', not at either end")
	// A pattern is valid if it is a valid name once a character replaces each *.
	v.require(n.Machines == "" || isName(strings.ReplaceAll(n.Machines, "*", "x")), "machines",
		"is not a pattern of machine names", "1 to 63 of a-z, 0-9, '-' and '*', with no '-' at either end")
	if n.Most != nil {
		v.require(n.Most.CPUs >= 0, "most.cpus", "is negative", "0 for no bound, or more")
		v.require(n.Most.GPUs >= 0, "most.gpus", "is negative", "0 for no bound, or more")
	}
	v.require(n.TTL.Std() <= 24*time.Hour, "ttl", "is too long", "at most 24h")
	v.require(len(n.Labels) <= MaxLabels, "labels", "too many labels", "at most 64")
	for _, k := range sortedKeys(n.Labels) {
		v.label(k, n.Labels[k])
		v.machineLabel("labels", k)
	}
	return v.faults
}
