package wire

import (
	"fmt"
	"time"

	"berth"
	"berth/spec"
)

// WorkflowMachine is the type of the workflow that drives the launch of a machine.
const WorkflowMachine = "Machine"

// A worker sends a heartbeat every MachineStepBeat while it carries out a step of a machine. The step
// of a worker that died starts again elsewhere after MachineStepTimeout.
const (
	MachineStepBeat    = 4 * time.Second
	MachineStepTimeout = 15 * time.Second
)

// MachineWorkflowID returns the id of the workflow that drives the launches of a machine.
func MachineWorkflowID(id berth.MachineID) string { return "machine/" + string(id) }

// MachineInput is the input of a machine's workflow, and of its step. The row contains the rest.
type MachineInput struct {
	Machine berth.MachineID `json:"machine"`
}

// MachineStepResult is the result of one step of a launch.
type MachineStepResult struct {
	State   string        `json:"state"`
	Reason  string        `json:"reason,omitempty"`
	Wait    spec.Duration `json:"wait,omitempty"` // until the next step
	Settled bool          `json:"settled,omitempty"`
}

// Launch is a request for an instance of a cloud, with the state of the instance until its proven end.
type Launch struct {
	Machine  berth.MachineID `json:"machine"`
	N        int             `json:"n" doc:"number among the launches of the machine, from 1"`
	State    string          `json:"state" doc:"from requested to gone or failed; see docs/operate/cloud.md"`
	Reason   string          `json:"reason,omitempty" doc:"reason for the state"`
	Pool     string          `json:"pool"`
	Provider string          `json:"provider"`
	Region   string          `json:"region"`
	Zone     string          `json:"zone,omitempty"`
	Type     string          `json:"type" doc:"the cloud's name of the machine type"`
	Market   string          `json:"market" doc:"on_demand or spot"`
	Price    float64         `json:"price_per_hour,omitempty" doc:"US dollars an hour at the request; absent: unknown"`

	Tenant   berth.TenantID `json:"tenant,omitempty" doc:"that pays; absent: an admin requested the launch"`
	Reserved float64        `json:"reserved,omitempty" doc:"US dollars that are reserved and not spent yet"`
	Cost     float64        `json:"cost,omitempty" doc:"US dollars so far, by the price; absent: none, or unknown"`

	Instance      string     `json:"instance,omitempty" doc:"the cloud's id"`
	InstanceState string     `json:"instance_state,omitempty" doc:"last read: pending, running, ending or terminated"`
	SeenAt        *time.Time `json:"seen_at,omitempty" doc:"last read of the instance"`
	JoinedAt      *time.Time `json:"joined_at,omitempty"`
	Sends         int        `json:"sends,omitempty" doc:"number of times that the request was sent"`
	SentAt        *time.Time `json:"sent_at,omitempty"`
	StopAt        *time.Time `json:"stop_at,omitempty" doc:"when the end of the machine was requested"`
	StopDeadline  *time.Time `json:"stop_deadline,omitempty"`
	EndedAt       *time.Time `json:"ended_at,omitempty" doc:"first report of the end by the cloud; costs end here"`
	Terminates    int        `json:"terminates,omitempty" doc:"number of calls that requested the termination"`
	ErrorKind     string     `json:"error_kind,omitempty" doc:"kind of the last failed call; unsent: none was made"`
	Error         string     `json:"error,omitempty"`
	CreatedBy     string     `json:"created_by"`
	CreatedAt     time.Time  `json:"created_at"`
	StateAt       time.Time  `json:"state_at"`
}

// LaunchRequest is the body of a request for new machines.
type LaunchRequest struct {
	Pool     string          `json:"pool" doc:"pool of the machines"`
	Provider string          `json:"provider" doc:"name of a provider in the configuration of berthd"`
	Type     string          `json:"type" doc:"the cloud's name of the machine type"`
	Region   string          `json:"region"`
	Zone     string          `json:"zone,omitempty" doc:"unset: the cloud chooses"`
	Market   string          `json:"market,omitempty" doc:"on_demand or spot; default on_demand"`
	Price    float64         `json:"price_per_hour,omitempty" doc:"US dollars, for the record"`
	Count    int             `json:"count,omitempty" doc:"number of machines, default 1, at most 100"`
	Machine  berth.MachineID `json:"machine,omitempty" doc:"name, with a count of 1; unset: from pool and key"`
	Force    bool            `json:"force,omitempty" doc:"launch although the cloud refused a short time ago"`
	Key      string          `json:"key,omitempty" doc:"idempotency key; a repeat returns the same launches"`
}

// MaxLaunches bounds the machines of one request.
const MaxLaunches = 100

// WithDefaults returns the request with its defaults.
func (r LaunchRequest) WithDefaults() LaunchRequest {
	if r.Market == "" {
		r.Market = "on_demand"
	}
	if r.Count == 0 {
		r.Count = 1
	}
	if r.Key == "" {
		r.Key = berth.NewSecret()[:16]
	}
	return r
}

// Validate returns all faults at once, or nil.
func (r LaunchRequest) Validate() (faults []berth.FieldError) {
	r = r.WithDefaults()
	require := func(ok bool, field, detail, allowed string) {
		if !ok {
			faults = append(faults, berth.FieldError{Field: field, Detail: detail, Allowed: allowed})
		}
	}
	faults = append(faults, spec.NewJoinToken{Pool: r.Pool}.Validate()...)
	require(r.Pool != "", "pool", "is missing", "the name of a pool")
	for field, text := range map[string]string{"provider": r.Provider, "type": r.Type, "region": r.Region} {
		require(text != "" && plain(text), field, "is missing, or not a name of a cloud",
			"1 to 128 printable ASCII characters without spaces")
	}
	require(plain(r.Zone), "zone", "is not a name of a cloud", "at most 128 printable ASCII characters without spaces")
	require(r.Market == "on_demand" || r.Market == "spot", "market", fmt.Sprintf("%.40q is not a market", r.Market),
		"on_demand, spot")
	require(r.Price >= 0 && r.Price <= 1e6, "price_per_hour", "is out of range", "0 to 1000000")
	require(r.Count >= 1 && r.Count <= MaxLaunches, "count", fmt.Sprintf("%d is out of range", r.Count),
		fmt.Sprintf("1 to %d", MaxLaunches))
	require(r.Machine == "" || r.Count == 1, "machine", "is one name for several machines", "a count of 1")
	if r.Machine != "" {
		_, err := berth.ParseMachineID(string(r.Machine))
		require(err == nil, "machine", "is not a valid name", "1 to 63 of a-z, 0-9 and '-', not at either end")
	}
	require(plain(r.Key), "key", "is not valid", "at most 128 printable ASCII characters without spaces")
	return faults
}

// plain reports whether a text is at most 128 printable ASCII characters without spaces.
func plain(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return len(s) <= 128
}

// TerminateRequest is the body of a request to end a machine of a cloud.
type TerminateRequest struct {
	Reason   string     `json:"reason,omitempty" doc:"shown to the owners of jobs on the machine"`
	Deadline *time.Time `json:"deadline,omitempty" doc:"time at which jobs checkpoint and move; unset: never"`
	// IfIdle refuses the request while work runs on the machine.
	IfIdle bool `json:"if_idle,omitempty" doc:"refuse while work runs on the machine"`
	// ConfirmAbsent states that the cloud has no instance of the launch, which Berth cannot prove.
	ConfirmAbsent bool `json:"confirm_absent,omitempty" doc:"confirm that the cloud has no instance of the launch"`
}

// Validate returns all faults at once, or nil.
func (r TerminateRequest) Validate() (faults []berth.FieldError) {
	if len(r.Reason) > 500 {
		faults = append(faults, berth.FieldError{Field: "reason", Detail: "is too long", Allowed: "at most 500 bytes"})
	}
	if r.IfIdle && r.Deadline != nil {
		faults = append(faults, berth.FieldError{Field: "deadline", Detail: "has no meaning with if_idle",
			Allowed: "a deadline, or if_idle"})
	}
	if r.ConfirmAbsent && (r.Deadline != nil || r.IfIdle) {
		faults = append(faults, berth.FieldError{Field: "confirm_absent",
			Detail: "has no meaning with a deadline or if_idle", Allowed: "confirm_absent alone"})
	}
	return faults
}
