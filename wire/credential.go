package wire

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"berth"
)

// HeaderMachineKey carries a KeyProof, in the form of KeyProof.String. A join with it binds the
// machine's credentials to the key; the call /agent/v1/key binds the credential of a machine that
// joined with an earlier version. A server of the previous version ignores the header.
const HeaderMachineKey = "Berth-Machine-Key"

// HeaderRenewal carries a Renewal, in the form of Renewal.String, on the call /agent/v1/renew. The
// call has no body and no token: the signature in the header authenticates it.
const HeaderRenewal = "Berth-Renewal"

// HeaderHostBoot carries the boot id of the host on a renewal. A restored database that does not know
// the machine needs it: without a boot id, the next registration would count as one after a reboot,
// which ends all containers.
const HeaderHostBoot = "Berth-Host-Boot"

// HeaderLastRenewal carries the number of the key's last renewal on an answer with SlugRenewalReplayed.
// The next renewal needs a higher number, also if the clock of the machine was ahead at that time.
const HeaderLastRenewal = "Berth-Last-Renewal"

// Stable codes of answers to agents about their credentials.
const (
	SlugCredentialEnded = "credential_ended" // the key of the machine can renew the token
	SlugUnknownKey      = "unknown_key"      // no machine of the database has the key
	SlugKeyBound        = "key_bound"        // the token is bound to another key
	SlugKeyKnown        = "key_known"        // the key cannot be bound: it is revoked, or was bound before
	SlugMachineExists   = "machine_exists"   // the database knows the name with other credentials
	SlugRenewalReplayed = "renewal_replayed" // the key has made a later renewal
)

// The first lines of signed texts. A signature for one purpose is useless for the other one.
const (
	keyPurpose     = "berth machine key 1"
	renewalPurpose = "berth credential renewal 1"
)

// NewMachineToken returns a new random token of a machine. An agent chooses its next token itself and
// sends only the hash, so the secret never travels before its first use.
func NewMachineToken() string {
	var id [6]byte
	_, _ = rand.Read(id[:])
	return "berth_" + hex.EncodeToString(id[:]) + "_" + berth.NewSecret()
}

// KeyProof is the public key of a machine, with a signature over the machine's name and the hash of
// the token with which the machine sends the proof. A copied proof is useless without that token: a
// join token is good once, and a machine's token is bound to one key.
type KeyProof struct {
	Key       ed25519.PublicKey
	Signature []byte
}

// ProveKey signs a proof for the token that the call of the proof carries.
func ProveKey(private ed25519.PrivateKey, machine berth.MachineID, token string) KeyProof {
	return KeyProof{private.Public().(ed25519.PublicKey), ed25519.Sign(private, keyText(machine, token))}
}

// keyText is the signed text of a KeyProof.
func keyText(machine berth.MachineID, token string) []byte {
	return fmt.Appendf(nil, "%s\n%s\n%x\n", keyPurpose, machine, sha256.Sum256([]byte(token)))
}

// Proves reports whether the owner of the key made the proof for this machine and token.
func (p KeyProof) Proves(machine berth.MachineID, token string) bool {
	return len(p.Key) == ed25519.PublicKeySize && ed25519.Verify(p.Key, keyText(machine, token), p.Signature)
}

// String returns the value of HeaderMachineKey.
func (p KeyProof) String() string { return encode(p.Key) + " " + encode(p.Signature) }

// ParseKeyProof parses the text of KeyProof.String. It checks no signature. The error has
// berth.CodeInvalid.
func ParseKeyProof(s string) (p KeyProof, err error) {
	part := strings.Split(s, " ")
	ok := len(part) == 2
	if ok {
		p.Key, ok = decode(part[0], ed25519.PublicKeySize)
	}
	if ok {
		p.Signature, ok = decode(part[1], ed25519.SignatureSize)
	}
	if !ok {
		return KeyProof{}, berth.Errorf(berth.CodeInvalid,
			"header %s: allowed is KEY SIGNATURE, both in base64url without padding", HeaderMachineKey)
	}
	return p, nil
}

// Renewal asks for the next credential of a machine. The agent chooses the token and sends its hash,
// under a signature: the answer contains no secret, so a copied or repeated renewal is useless to an
// attacker.
type Renewal struct {
	Machine   berth.MachineID
	Key       ed25519.PublicKey
	Number    int64  // rises with each new token of the key; a lower one is refused
	TokenID   string // public part of the new token
	TokenSum  []byte // SHA-256 of the whole new token
	Signature []byte
}

// NewRenewal signs a renewal. The token has the form of NewMachineToken.
func NewRenewal(private ed25519.PrivateKey, machine berth.MachineID, number int64, token string) Renewal {
	sum := sha256.Sum256([]byte(token))
	r := Renewal{Machine: machine, Key: private.Public().(ed25519.PublicKey), Number: number, TokenSum: sum[:]}
	if part := strings.Split(token, "_"); len(part) == 3 {
		r.TokenID = part[1]
	}
	r.Signature = ed25519.Sign(private, r.text())
	return r
}

// text is the signed text of a Renewal.
func (r Renewal) text() []byte {
	return fmt.Appendf(nil, "%s\n%s\n%d\n%s\n%x\n", renewalPurpose, r.Machine, r.Number, r.TokenID, r.TokenSum)
}

// Signed reports whether the owner of the key made the renewal.
func (r Renewal) Signed() bool {
	return len(r.Key) == ed25519.PublicKeySize && ed25519.Verify(r.Key, r.text(), r.Signature)
}

// String returns the value of HeaderRenewal.
func (r Renewal) String() string {
	return fmt.Sprintf("%s %s %d %s %s %s", r.Machine, encode(r.Key), r.Number, r.TokenID, encode(r.TokenSum),
		encode(r.Signature))
}

// ParseRenewal parses the text of Renewal.String. It checks no signature. The error has
// berth.CodeInvalid.
func ParseRenewal(s string) (Renewal, error) {
	bad := func(what string) (Renewal, error) {
		return Renewal{}, berth.Errorf(berth.CodeInvalid, "header %s: %s; allowed is MACHINE KEY NUMBER TOKEN_ID "+
			"TOKEN_SHA256 SIGNATURE, with key, hash and signature in base64url without padding", HeaderRenewal, what)
	}
	part := strings.Split(s, " ")
	if len(s) > 1024 || len(part) != 6 {
		return bad("it has no six parts")
	}
	machine, err := berth.ParseMachineID(part[0])
	if err != nil {
		return bad("wrong machine name")
	}
	r := Renewal{Machine: machine, TokenID: part[3]}
	if r.Number, err = strconv.ParseInt(part[2], 10, 64); err != nil || r.Number < 1 {
		return bad("the number must be 1 to 9223372036854775807")
	}
	if id, err := hex.DecodeString(r.TokenID); err != nil || len(id) != 6 || strings.ToLower(r.TokenID) != r.TokenID {
		return bad("the token's id must be 12 hex digits in lower case")
	}
	var key, sum, signature bool
	r.Key, key = decode(part[1], ed25519.PublicKeySize)
	r.TokenSum, sum = decode(part[4], sha256.Size)
	r.Signature, signature = decode(part[5], ed25519.SignatureSize)
	if !key || !sum || !signature {
		return bad("key, hash or signature has a wrong length or character")
	}
	return r, nil
}

// RenewResponse answers a renewal: from now on the chosen token is a credential of the machine.
type RenewResponse struct {
	TTLSeconds int    `json:"ttl_seconds"` // time until the end of the credential
	Cluster    string `json:"cluster"`     // as in JoinResponse; for an agent that lost the answer to its join
	// Returned is set if the database, restored from a backup, did not know the machine. The machine
	// waits for the approval of an admin.
	Returned bool `json:"returned,omitempty"`
	// Last is the number of the last renewal, of a refusal with SlugRenewalReplayed; sent as HeaderLastRenewal.
	Last int64 `json:"-"`
}

// encode returns bytes in base64url without padding.
func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// decode parses the text of encode; ok is false unless it stands for size bytes.
func decode(s string, size int) (b []byte, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return b, err == nil && len(b) == size
}
