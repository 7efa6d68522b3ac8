package cloud

import (
	"fmt"
	"time"
)

// Scope is the part of a cloud that a breaker closes.
type Scope string

// The scopes.
const (
	ScopeOffering Scope = "offering" // key: provider and offering
	ScopeProvider Scope = "provider" // key: provider, and region for a quota
	ScopePool     Scope = "pool"     // key: provider and pool, whose settings the cloud refuses
	// ScopeJoin has the key of ScopeOffering: machines of the offering have not joined in time, or with less than its
	// offer. Only a machine that joins with all of it closes the breaker.
	ScopeJoin Scope = "join"
)

// Breaker records that a cloud refuses launches, so that no replica asks again before a time.
type Breaker struct {
	Scope  Scope     `json:"scope"`
	Key    string    `json:"key"`
	Until  time.Time `json:"until,omitzero"` // zero: until a launch succeeds there
	Step   int       `json:"step"`           // refusals in a row, each after the window of the last one; 0: none
	Reason string    `json:"reason"`
	At     time.Time `json:"at,omitzero"`
}

// Windows of breakers.
const (
	capacityWindow = 3 * time.Minute // doubles with each step
	capacityMost   = time.Hour
	quotaWindow    = 30 * time.Minute
)

// Bounds on the first sends of the scaler. An offering that has launched nothing for FreeFor is tried by one
// launch at a time, so that a cloud without room refuses one call instead of one for each waiting job. A
// send without an answer holds the others back for TriedFor at most.
const (
	FreeFor  = 10 * time.Minute
	TriedFor = 2 * time.Minute // longer than the limit of a call
)

// Open reports whether the breaker refuses launches at a time.
func (b Breaker) Open(now time.Time) bool {
	return b.Step > 0 && (b.Until.IsZero() || now.Before(b.Until))
}

// Trip returns the breaker after one more refusal. A refusal while it is open, of a launch that was
// sent before, changes nothing.
func (b Breaker) Trip(k Kind, reason string, now time.Time) Breaker {
	if b.Open(now) {
		return b
	}
	b.Step++
	b.Reason, b.At, b.Until = reason, now, time.Time{}
	switch k {
	case Capacity:
		b.Until = now.Add(min(capacityWindow<<min(b.Step-1, 10), capacityMost))
	case Quota:
		b.Until = now.Add(quotaWindow)
	}
	return b
}

// Breakers returns the breakers that can refuse a request, by scope and key alone.
func (r Request) Breakers() []Breaker {
	return []Breaker{
		{Scope: ScopeOffering, Key: r.Provider + "/" + r.Offering.String()},
		{Scope: ScopeProvider, Key: r.Provider + "/" + r.Region},
		{Scope: ScopeProvider, Key: r.Provider},
		{Scope: ScopePool, Key: fmt.Sprintf("%s/%s", r.Provider, r.Pool)},
		r.JoinBreaker(),
	}
}

// JoinBreaker returns the breaker that a machine trips that has less than its offer or does not join, by scope and key
// alone.
func (r Request) JoinBreaker() Breaker {
	return Breaker{Scope: ScopeJoin, Key: r.Provider + "/" + r.Offering.String()}
}

// Trips returns the scope and key that a refusal of the request closes. ok is false for a kind of
// error that says nothing about other launches.
func (r Request) Trips(k Kind) (b Breaker, ok bool) {
	list := r.Breakers()
	switch k {
	case Capacity:
		return list[0], true
	case Quota:
		return list[1], true
	case Auth:
		return list[2], true
	case Spec, Network:
		return list[3], true
	}
	return b, false
}

// Request returns the request that the launch is for.
func (r Record) Request() Request {
	return Request{Pool: r.Pool, Provider: r.Provider, Offering: r.Offering, Price: r.Price,
		Tenant: r.Tenant}
}
