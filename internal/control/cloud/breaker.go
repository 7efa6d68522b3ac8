package cloud

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Scope is the part of a cloud that a breaker closes.
type Scope string

// The scopes.
const (
	ScopeOffering Scope = "offering" // key: provider and offering
	ScopeProvider Scope = "provider" // key: provider, and region for a quota without a name
	// ScopePool has the provider and the pool as its key, whose settings the cloud refuses; or these with region and
	// zone, where the network has no address left, or for whose region the settings have no entry.
	ScopePool Scope = "pool"
	// ScopeJoin has the key of ScopeOffering: machines of the offering have not joined in time, or with less than its
	// offer. Only a machine that joins with all of it closes the breaker.
	ScopeJoin Scope = "join"
	// ScopeQuota has the provider and the name of the quota as its key. Breaker.Covers lists the offers that the quota
	// has refused.
	ScopeQuota Scope = "quota"
	// ScopeThrottle has the provider and the region as its key: calls that create machines there wait.
	ScopeThrottle Scope = "throttle"
)

// Scopes are all scopes.
var Scopes = []Scope{ScopeOffering, ScopeProvider, ScopePool, ScopeJoin, ScopeQuota, ScopeThrottle}

// Breaker records that a cloud refuses launches, so that no replica asks again before a time.
// docs/adr/0103-breakers-close-what-the-cloud-names.md has the table of states.
type Breaker struct {
	Scope  Scope     `json:"scope"`
	Key    string    `json:"key"`
	Until  time.Time `json:"until,omitzero"` // zero: until the settings change, or a launch succeeds
	Step   int       `json:"step"`           // refusals in a row, each after the window of the last one; 0: none
	Reason string    `json:"reason"`
	At     time.Time `json:"at,omitzero"`
	// Covers are the offers of ScopeQuota, as Request.Covered returns them.
	Covers []string `json:"covers,omitempty"`
	// Settings is the hash of the settings that the cloud refused, see Accounts.Mark; "": not known.
	Settings string `json:"settings,omitempty"`
}

// Windows of breakers.
const (
	capacityWindow = 3 * time.Minute // doubles with each step
	capacityMost   = time.Hour
	quotaWindow    = 30 * time.Minute // also of zones of a pool
	unsentWindow   = 5 * time.Minute  // doubles with each step
	unsentMost     = 30 * time.Minute
	throttleWindow = 5 * time.Second // doubles with each step
	throttleMost   = 5 * time.Minute
	demandedMost   = time.Hour // of waits that a cloud demands
)

// ThrottleWait is the longest wait for a throttled cloud for which a launch of the scaler is requested and kept. Its
// job gets another offer if the wait is longer.
const ThrottleWait = time.Minute

// Bounds on the first sends of the scaler. An offering that has launched nothing for FreeFor is tried by one
// launch at a time, so that a cloud without room refuses one call instead of one for each waiting job. A
// send without an answer holds the others back for TriedFor at most. For RampFor after a refusal for want of
// capacity, at most one more send may be without an answer than launches have succeeded since.
const (
	FreeFor  = 10 * time.Minute
	TriedFor = 2 * time.Minute // longer than the limit of a call
	RampFor  = capacityMost + FreeFor
)

// Least and greatest distance of a breaker's reopening from its refusal. The distance doubles with each step. The
// greatest one is also the distance of launches that try refused credentials again.
const (
	ReopenLeast = time.Minute
	ReopenMost  = time.Hour
)

// Open reports whether the breaker refuses launches at a time.
func (b Breaker) Open(now time.Time) bool {
	return b.Step > 0 && (b.Until.IsZero() || now.Before(b.Until))
}

// Waits reports whether launches that the breaker concerns are requested all the same, and wait for its end: a cloud
// that throttles for a short time is no reason for a dearer offer. See ThrottleWait.
func (b Breaker) Waits(now time.Time) bool {
	return b.Scope == ScopeThrottle && b.Until.Sub(now) < ThrottleWait
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
		b.Until = now.Add(doubled(capacityWindow, b.Step, capacityMost))
	case Quota, Network:
		b.Until = now.Add(quotaWindow)
	case Spec:
		switch {
		case b.Scope == ScopeOffering:
			b.Until = now.Add(doubled(capacityWindow, b.Step, capacityMost))
		case b.zoned():
			b.Until = now.Add(quotaWindow)
		}
	case Throttle:
		b.Until = now.Add(doubled(throttleWindow, b.Step, throttleMost))
	case Unsent:
		b.Until = now.Add(doubled(unsentWindow, b.Step, unsentMost))
	}
	return b
}

// doubled returns a window that doubles with each step after the first.
func doubled(window time.Duration, step int, most time.Duration) time.Duration {
	return min(window<<min(step-1, 10), most)
}

// Refused returns the breaker after a call that failed with an error. A throttled call keeps the breaker open for as
// long as the cloud demanded, at most an hour, also if the breaker was open before.
func (b Breaker) Refused(e *Error, now time.Time) Breaker {
	b = b.Trip(e.Kind, e.Error(), now)
	if demanded := now.Add(min(e.RetryAfter, demandedMost)); e.Kind == Throttle && demanded.After(b.Until) {
		b.Reason, b.At, b.Until = e.Error(), now, demanded
	}
	return b
}

// Retried reports whether a launch may try refused credentials again, although they are the same: the cause may be a
// clock, or a right that is given in the cloud. Settings of a pool do not get right by waiting.
func (b Breaker) Retried(now time.Time) bool {
	return b.Scope == ScopeProvider && b.Until.IsZero() && now.Sub(b.At) >= ReopenMost
}

// zoned reports whether the breaker closes a zone of a pool, see NetworkBreaker.
func (b Breaker) zoned() bool { return b.Scope == ScopePool && strings.Count(b.Key, "/") > 1 }

// Corrected reports whether other settings than Breaker.Settings make the breaker half open: it has no end, or it
// closes a zone of a pool, whose subnet and image are settings.
func (b Breaker) Corrected(now time.Time) bool {
	return b.Step > 0 && (b.Until.IsZero() || b.zoned() && now.Before(b.Until))
}

// Lasting reports whether the breaker closes all offers of a provider, or of a provider in a pool, for a reason that an
// admin has to correct: credentials, rights or settings that the cloud refuses, or a cloud that no replica can call. So
// does a zone of a pool that is closed a second time, for want of an entry for its region. A half-open breaker is
// included for mostUntried, since nothing shows yet that the reason is gone.
func (b Breaker) Lasting(now time.Time) bool {
	parts := strings.Count(b.Key, "/")
	whole := b.Scope == ScopeProvider && parts == 0 || b.Scope == ScopePool && parts == 1
	// The text of a refusal begins with its kind, see Error.
	without := b.zoned() && b.Step > 1 && strings.HasPrefix(b.Reason, string(Spec)+" ")
	return b.Step > 0 && (b.Until.IsZero() || (whole || without) && now.Sub(b.Until) < mostUntried)
}

// mostUntried is the time for which a half-open breaker that no launch tries is shown as a reason to correct something.
// It is longer than any window of such a breaker and the try after it.
const mostUntried = time.Hour

// What returns the name of the closed part, for people: "all offers of aws in eu-west-1".
func (b Breaker) What() string {
	provider, rest, found := strings.Cut(b.Key, "/")
	switch {
	case b.Scope == ScopeOffering, b.Scope == ScopeJoin:
		return "the offer " + b.Key
	case b.Scope == ScopePool:
		pool, place, zoned := strings.Cut(rest, "/")
		if zoned {
			return fmt.Sprintf("offers of %s in %s for pool %s", provider, strings.TrimSuffix(place, "/"), pool)
		}
		return fmt.Sprintf("all offers of %s in pool %s", provider, pool)
	case b.Scope == ScopeQuota:
		return fmt.Sprintf("offers of %s under the quota %s", provider, rest)
	case b.Scope == ScopeThrottle:
		return fmt.Sprintf("new machines of %s in %s", provider, rest)
	case found:
		return fmt.Sprintf("all offers of %s in %s", provider, rest)
	}
	return "all offers of " + provider
}

// Wider returns What for a breaker that closes more than one offer, and "" for any other breaker.
func (b Breaker) Wider() string {
	if b.Scope == "" || b.Scope == ScopeOffering || b.Scope == ScopeJoin {
		return ""
	}
	return b.What()
}

// Ends returns the end of the refusals, for people: "until 2026-11-30T12:00:00Z".
func (b Breaker) Ends() string {
	if b.Until.IsZero() {
		return "until its settings change or a launch succeeds"
	}
	return "until " + b.Until.UTC().Format(time.RFC3339)
}

// Breakers returns the breakers that can refuse a request, by scope and key alone, without the quotas: see Concerned.
func (r Request) Breakers() []Breaker {
	return []Breaker{
		{Scope: ScopeOffering, Key: r.Provider + "/" + r.Offering.String()},
		{Scope: ScopeProvider, Key: r.Provider + "/" + r.Region},
		r.ProviderBreaker(),
		r.PoolBreaker(),
		r.JoinBreaker(),
		r.ThrottleBreaker(),
		r.NetworkBreaker(),
	}
}

// Covered returns the offer of the request in the form of Breaker.Covers: without the zone, since quotas hold for
// regions.
func (r Request) Covered() string {
	return fmt.Sprintf("%s/%s/%s/%s", r.Provider, r.Region, r.Type, r.Market)
}

// Concerned returns a function that reports whether a breaker can refuse the request.
func (r Request) Concerned() func(Breaker) bool {
	named, covered := r.Breakers(), r.Covered()
	return func(b Breaker) bool {
		if b.Scope == ScopeQuota {
			return slices.Contains(b.Covers, covered)
		}
		return slices.ContainsFunc(named, func(n Breaker) bool { return n.Scope == b.Scope && n.Key == b.Key })
	}
}

// JoinBreaker returns the breaker that a machine trips that has less than its offer or does not join, by scope and key
// alone.
func (r Request) JoinBreaker() Breaker {
	return Breaker{Scope: ScopeJoin, Key: r.Provider + "/" + r.Offering.String()}
}

// ProviderBreaker returns the breaker that refused credentials trip, and launches for which no replica could call the
// cloud, by scope and key alone.
func (r Request) ProviderBreaker() Breaker { return Breaker{Scope: ScopeProvider, Key: r.Provider} }

// PoolBreaker returns the breaker that refused settings of the pool trip, by scope and key alone.
func (r Request) PoolBreaker() Breaker {
	return Breaker{Scope: ScopePool, Key: r.Provider + "/" + r.Pool}
}

// NetworkBreaker returns the breaker that a network without a free address trips, and settings without an entry for the
// region, by scope and key alone. The subnet is a setting of the pool for the zone or the region.
func (r Request) NetworkBreaker() Breaker {
	return Breaker{Scope: ScopePool, Key: fmt.Sprintf("%s/%s/%s/%s", r.Provider, r.Pool, r.Region, r.Zone)}
}

// ThrottleBreaker returns the breaker that a throttled call of Create trips, by scope and key alone.
func (r Request) ThrottleBreaker() Breaker {
	return Breaker{Scope: ScopeThrottle, Key: r.Provider + "/" + r.Region}
}

// quotaBreaker returns the breaker of a quota with a name, or of the region.
func (r Request) quotaBreaker(name string) Breaker {
	if name = strings.TrimSpace(name); name == "" || name == r.Region {
		return Breaker{Scope: ScopeProvider, Key: r.Provider + "/" + r.Region}
	}
	if len(name) > mostQuotaName {
		name = strings.ToValidUTF8(name[:mostQuotaName], "")
	}
	return Breaker{Scope: ScopeQuota, Key: r.Provider + "/" + name, Covers: []string{r.Covered()}}
}

// mostQuotaName is the greatest length of the name of a quota in a key, in bytes.
const mostQuotaName = 200

// Trips returns the scope and key that a refusal of the request closes, and the offer under a quota. Of kind Spec, the
// region as the scope closes a zone of the pool, and the type as the scope the offering. ok is false for an
// error that says nothing about other launches.
func (r Request) Trips(e *Error) (b Breaker, ok bool) {
	list := r.Breakers()
	switch {
	case e.Unsent:
		return b, false
	case e.Kind == Capacity, e.Kind == Spec && r.Type != "" && e.Scope == r.Type:
		return list[0], true
	case e.Kind == Quota:
		return r.quotaBreaker(e.Scope), true
	case e.Kind == Throttle:
		return r.ThrottleBreaker(), true
	case e.Kind == Auth:
		return r.ProviderBreaker(), true
	case e.Kind == Network, e.Kind == Spec && e.Scope == r.Region:
		return r.NetworkBreaker(), true
	case e.Kind == Spec:
		return r.PoolBreaker(), true
	}
	return b, false
}

// Request returns the request that the launch is for.
func (r Record) Request() Request {
	return Request{Pool: r.Pool, Provider: r.Provider, Offering: r.Offering, Price: r.Price,
		Tenant: r.Tenant}
}
