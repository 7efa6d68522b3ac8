// Package cloud defines how Berth creates and terminates machines of a cloud.
//
// A Provider is one account of one cloud. It stores no state: the rows of the table launches hold
// the authoritative state of each machine, and a method of a Provider is a single call to the cloud.
// The contract limits the conclusions that a caller may draw from an answer:
//
//   - Create may be repeated with the same Launch, byte for byte, and never creates a second
//     instance for it. Another offering needs another Launch with the next number, as clouds bind
//     a token to all parameters of its request (Amazon EC2, "Ensuring idempotency").
//   - An error of kind Unknown says nothing about the instance. It may exist, or appear later.
//   - A successful Terminate, or NotFound from Find, does not prove that an instance is gone. Only
//     the state Terminated proves it, read twice at least SettleTime apart.
package cloud

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"berth"
)

// SettleTime is the least time between two reads that together prove the end of an instance.
const SettleTime = time.Minute

// Provider creates, finds and terminates instances. Its methods may be called concurrently, end
// early with the context, and return an *Error for every failure.
type Provider interface {
	// Create requests an instance and returns it, usually in the state Pending.
	Create(ctx context.Context, l Launch) (Instance, error)
	// Find returns the instance of a launch, in any state. Its error is of kind NotFound if the
	// cloud shows none, which may change for some minutes after Create. Where a cloud does not show
	// terminated instances, Find returns Terminated only with another proof of the end.
	Find(ctx context.Context, l Launch) (Instance, error)
	// List returns all instances that carry the cluster's tag in the regions, in any state that the
	// cloud still shows, in no particular order.
	List(ctx context.Context, cluster string, regions []string) ([]Instance, error)
	// Terminate requests the end of an instance and may be repeated. An instance that is ending or
	// terminated is no error; an instance that the cloud does not show is of kind NotFound.
	Terminate(ctx context.Context, i Instance) error
	// Offers returns the offerings of the provider in the regions, with the prices that it knows.
	Offers(ctx context.Context, regions []string) ([]Offer, error)
}

// Market is the kind of contract under which an instance runs.
type Market string

// The markets.
const (
	OnDemand Market = "on_demand" // runs until terminated
	Spot     Market = "spot"      // the cloud may take the instance back at short notice
)

// Offering names a machine type of a cloud in one place, under one market.
type Offering struct {
	Region string `json:"region"`
	Zone   string `json:"zone,omitempty"` // empty: the cloud chooses a zone
	Type   string `json:"type"`           // the cloud's name of the machine type, such as p5.48xlarge
	Market Market `json:"market"`
}

// String returns the offering as region/zone/type/market, for texts and keys.
func (o Offering) String() string {
	return fmt.Sprintf("%s/%s/%s/%s", o.Region, o.Zone, o.Type, o.Market)
}

// Offer is an offering with its shape and price. The price is in US dollars an hour; 0 is unknown.
type Offer struct {
	Offering
	CPUs      int       `json:"cpus"`
	MemoryMiB int64     `json:"memory_mib"`
	GPUs      int       `json:"gpus,omitempty"`
	GPUType   string    `json:"gpu_type,omitempty"` // as in berth.Device, for example H100
	Price     float64   `json:"price_per_hour"`
	Source    string    `json:"source,omitempty"` // where the price comes from
	AsOf      time.Time `json:"as_of"`            // when it was valid
}

// Launch is one request for an instance. A launch that was sent is repeated unchanged or not at all.
type Launch struct {
	Token    string          `json:"token"`   // idempotency token, see Token
	Cluster  string          `json:"cluster"` // unique id of the Berth cluster
	Pool     string          `json:"pool"`
	Machine  berth.MachineID `json:"machine"`
	N        int             `json:"n"` // number of the launch of the machine, from 1
	Offering Offering        `json:"offering"`
	// Bootstrap is the data with which the new machine joins.
	Bootstrap Bootstrap `json:"bootstrap"`
	// Settings are the pool's settings for this provider, for example image and subnet.
	Settings json.RawMessage `json:"settings,omitempty"`
}

// Bootstrap is the data with which a new machine joins the cluster. JoinToken is a secret.
type Bootstrap struct {
	URL       string `json:"url"` // of the API, as agents reach it
	JoinToken string `json:"join_token"`
	CA        string `json:"ca,omitempty"` // PEM of the certificate authority, where it is not a public one
	// Agents are the hashes (SHA-256, hex) of the agents that berthd serves, by platform, as linux-amd64. Absent:
	// berthd serves none, or the launch is older than this field.
	Agents map[string]string `json:"agents,omitempty"`
	// Identity demands a proof of the machine when it joins. Absent: possession of the join token suffices.
	Identity *Identity `json:"identity,omitempty"`
}

// AgentPath returns the path below Bootstrap.URL at which berthd serves an agent.
func AgentPath(platform, sha256 string) string {
	return "/downloads/berth-agent/" + platform + "/" + sha256
}

// Token returns the idempotency token of launch n of a machine: 32 hex digits. The incarnation
// of the database is part of it, so a number that a restored database gives out again makes
// another token.
func Token(cluster, incarnation string, machine berth.MachineID, n int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d", cluster, incarnation, machine, n))
	return hex.EncodeToString(sum[:16])
}

// Hash returns the SHA-256 of everything that a provider sends for the launch, in hex. Two launches
// with the same token and different hashes must never both be sent.
func (l Launch) Hash() string {
	body, err := json.Marshal(l)
	if err != nil {
		// Only invalid Settings have no encoding, and these are refused on input.
		panic(fmt.Sprintf("a launch has no encoding: %v", err))
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// State is the state of an instance as its cloud reports it.
type State string

// The states of an instance.
const (
	Pending    State = "pending"    // is being created
	Running    State = "running"    // has booted or is booting
	Ending     State = "ending"     // is shutting down, or is stopped
	Terminated State = "terminated" // is gone, and costs nothing
)

// Instance is a machine as its cloud shows it. The tags Cluster, Pool, Machine, N and Token were
// sent with Create.
type Instance struct {
	ID       string          `json:"id"`
	Token    string          `json:"token"`
	Cluster  string          `json:"cluster"`
	Pool     string          `json:"pool"`
	Machine  berth.MachineID `json:"machine"`
	N        int             `json:"n"`
	State    State           `json:"state"`
	Offering Offering        `json:"offering"`
	Created  time.Time       `json:"created"`
	// Reason is the cloud's own word for the state, for example why a spot instance ended.
	Reason string `json:"reason,omitempty"`
}

// Kind classifies failures of a provider by their meaning for the next call.
type Kind string

// The kinds of failures.
const (
	NotFound Kind = "not_found" // the cloud shows no such instance now
	Capacity Kind = "capacity"  // the cloud has no room for the offering now
	Quota    Kind = "quota"     // a limit of the account is reached
	Network  Kind = "network"   // the network has no address left for the machine now
	Throttle Kind = "throttle"  // too many calls
	Auth     Kind = "auth"      // credentials are missing, wrong, or without permission
	Spec     Kind = "spec"      // the request can never succeed as it is
	Mismatch Kind = "mismatch"  // the token belongs to another request, or to an ended instance
	Unknown  Kind = "unknown"   // the outcome is unknown: a timeout, a broken connection, a server error
)

// Unsent is the kind of a launch of which no send has reached the cloud, see Record.ErrorKind. Providers report such a
// failure as Throttle with Error.Unsent.
const Unsent Kind = "unsent"

// Error is a failure of a provider.
type Error struct {
	Kind Kind
	// Scope names the zone, the type or the quota to which the failure applies, in the cloud's words;
	// empty: the cloud names none. A quota closes the offers that it has refused under this name.
	Scope string
	// RetryAfter is the least wait that the cloud asked for, or 0.
	RetryAfter time.Duration
	// Unsent states that the cloud was not called, or has refused the calling host alone, such as for its clock. The
	// call had no effect, and the failure says nothing about calls of other hosts.
	Unsent bool
	Err    error
}

// Error returns the kind and the cause.
func (e *Error) Error() string {
	kind := e.Kind
	if e.Unsent {
		kind = Unsent
	}
	if e.Scope == "" {
		return fmt.Sprintf("%s: %v", kind, e.Err)
	}
	return fmt.Sprintf("%s (%s): %v", kind, e.Scope, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
