package history

import (
	"time"

	"berth"
)

// Launched is the name of a machine of a cloud with all its launches. Amounts are in micro-dollars.
type Launched struct {
	Machine berth.MachineID `json:"machine"`
	// State is the state of the machine's row, "" without one, and Token the id of the join token with which the
	// machine joined last.
	State    berth.MachineState `json:"machine_state"`
	Token    string             `json:"joined_token"`
	Launches []Launch           `json:"launches"` // by number
}

// Launch is a row of launches, without the request and its secrets.
type Launch struct {
	Machine  berth.MachineID `json:"machine"`
	N        int             `json:"n"`
	State    string          `json:"state"`
	Provider string          `json:"provider"`
	Actor    string          `json:"actor"`

	Incarnation int64  `json:"incarnation"` // of the database at the request; 0: adopted after a restore
	Idempotency string `json:"token"`       // of the request to the cloud
	RequestHash string `json:"request_hash"`
	JoinToken   string `json:"join_token"` // id
	Sends       int    `json:"sends"`
	Refusals    int    `json:"refusals"`

	Instance   string `json:"instance"`
	Terminates int    `json:"terminates"`
	ErrorKind  string `json:"error_kind"`
	Reason     string `json:"reason"`

	CreatedAt  time.Time  `json:"created_at"`
	StateAt    time.Time  `json:"state_at"`
	SentAt     *time.Time `json:"sent_at"`
	LastSentAt *time.Time `json:"last_sent_at"`
	SeenAt     *time.Time `json:"seen_at"`
	JoinedAt   *time.Time `json:"joined_at"`
	StopAt     *time.Time `json:"stop_at"`
	EndedFirst *time.Time `json:"ended_first_at"`
	EndedLast  *time.Time `json:"ended_last_at"`

	Tenant    berth.TenantID `json:"tenant"` // that pays; "": a person requested the launch by hand
	Price     float64        `json:"price"`  // US dollars an hour; 0: unknown
	Reserved  int64          `json:"reserved"`
	Settled   int64          `json:"settled"`
	SettledTo *time.Time     `json:"settled_to"`
}

// Spent is the money of a tenant without the tenants below it: by days, and as its launches come to.
type Spent struct {
	Tenant   berth.TenantID `json:"tenant"` // "": launches by hand
	Days     int64          `json:"days"`
	Launches int64          `json:"launches"` // deleted ones included
}

// SpendLimit is the limit in a burst policy.
type SpendLimit struct {
	Tenant    berth.TenantID `json:"tenant"`
	Since     time.Time      `json:"since"`   // start of the present period
	Admits    float64        `json:"admits"`  // micro-dollars up to which launches are admitted
	UpdatedAt time.Time      `json:"updated"` // start of the latest change of the policy
}

// Breaker is a row of breakers.
type Breaker struct {
	Scope   string     `json:"scope"`
	Key     string     `json:"key"`
	Step    int        `json:"step"`
	Until   *time.Time `json:"until"` // nil: until the settings change or a launch succeeds
	Unset   bool       `json:"unset"` // the scope has refused nothing yet, and Until means nothing
	At      time.Time  `json:"at"`
	Probe   string     `json:"probe"` // launch that tries the scope, as machine/n
	ProbeAt *time.Time `json:"probe_at"`
	Covers  []string   `json:"covers"` // offers that a quota has refused
}
