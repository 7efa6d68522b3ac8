package cloud

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"berth"
	"berth/wire"
)

// Identity demands that a new machine proves its identity when it joins with its launch's join token: the machine
// sends a document that the cloud has signed and that names the launch's instance. See docs/adr/0080.
type Identity struct {
	Source wire.IdentitySource `json:"source"`
	// Audience is the text for which a machine of GCE requests its token. Absent for EC2, whose documents name
	// no audience.
	Audience string `json:"audience,omitempty"`
}

// Audience returns the audience of a launch's identity token. It is bound to the cluster, to the launch and to
// the secret of its join token, so a token that was made for another service, another launch or another try
// proves nothing here, and the audience cannot be computed from the tags of the instance.
func Audience(cluster string, machine berth.MachineID, n int, joinSecret string) string {
	secret := sha256.Sum256([]byte(joinSecret))
	sum := sha256.Sum256(fmt.Appendf(nil, "berth machine identity 1\x00%s\x00%s\x00%d\x00%x", cluster, machine, n,
		secret))
	return "berth/" + hex.EncodeToString(sum[:])
}

// Claims are the facts about an instance that its cloud has signed.
type Claims struct {
	Instance string // in the form of Instance.ID
	Region   string
	Zone     string
}

// Demand is the identity that a join must prove.
type Demand struct {
	Launch   Record
	Source   wire.IdentitySource // ""; the launch demands no identity
	Audience string
}

// Identities verifies the identities of the instances of one account. Its methods may be called concurrently.
type Identities interface {
	// Source returns the form of the identities.
	Source() wire.IdentitySource
	// Verify returns the claims of an identity, after it has verified the signature, the account and, where
	// the identity has them, times and audience. The error is an *IdentityError.
	Verify(ctx context.Context, id wire.Identity, d Demand, now time.Time) (Claims, error)
}

// IdentityFault is the kind of a refused identity, also the label of its metric.
type IdentityFault string

// The kinds. If Passing reports true, the fault depends on this server or on the moment. The others are final for the
// machine.
const (
	IdentityMissing   IdentityFault = "missing"   // the join has no identity
	IdentityMalformed IdentityFault = "malformed" // the identity has not the documented form
	IdentityUnsigned  IdentityFault = "signature" // no key of the cloud has signed it
	IdentityExpired   IdentityFault = "expired"   // it is too old, or from the future, by this server's clock
	IdentityAudience  IdentityFault = "audience"  // it was made for something else
	IdentityMismatch  IdentityFault = "mismatch"  // it names another instance, place or account
	IdentityPending   IdentityFault = "pending"   // the launch's instance is not known yet
	IdentityNoKeys    IdentityFault = "no_keys"   // this server cannot verify it now
)

// IdentityFaults lists all kinds.
var IdentityFaults = []IdentityFault{IdentityMissing, IdentityMalformed, IdentityUnsigned, IdentityExpired,
	IdentityAudience, IdentityMismatch, IdentityPending, IdentityNoKeys}

// Passing reports whether a later try may succeed. A machine reads a new token for each try.
func (f IdentityFault) Passing() bool {
	return f == IdentityPending || f == IdentityNoKeys || f == IdentityExpired
}

// IdentityError is the refusal of an identity.
type IdentityError struct {
	Fault IdentityFault
	Text  string
}

// Error returns the text.
func (e *IdentityError) Error() string { return e.Text }

// RefuseIdentity returns an IdentityError with a formatted text.
func RefuseIdentity(f IdentityFault, format string, args ...any) error {
	return &IdentityError{Fault: f, Text: fmt.Sprintf(format, args...)}
}

// Identify compares signed claims with the row of the launch. The instance of a row never changes once it is
// known. Until then no claim can match: Berth asks the cloud again within seconds, and the machine joins after that.
func (r Record) Identify(c Claims) error {
	switch {
	case r.Instance == "":
		return RefuseIdentity(IdentityPending, "the cloud has not confirmed the instance of launch %d of machine %s "+
			"yet; try again", r.N, r.Machine)
	case c.Instance != r.Instance:
		return RefuseIdentity(IdentityMismatch, "the identity names instance %q, and launch %d of machine %s has "+
			"instance %s", c.Instance, r.N, r.Machine, r.Instance)
	case c.Region != r.Region:
		return RefuseIdentity(IdentityMismatch, "the identity names region %q, and launch %d of machine %s is in %s",
			c.Region, r.N, r.Machine, r.Region)
	case r.Zone != "" && c.Zone != r.Zone:
		return RefuseIdentity(IdentityMismatch, "the identity names zone %q, and launch %d of machine %s is in %s",
			c.Zone, r.N, r.Machine, r.Zone)
	}
	return nil
}
