package spec

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"berth"
)

// SignatureRule demands that images are signed. An image of one of the repositories starts only if it
// has a signature by one of the keys, in one of the forms of Sigstore's cosign.
type SignatureRule struct {
	Repositories []string `json:"repositories,omitempty" doc:"registries and repositories of the images; default: all"`
	Keys         []string `json:"keys" doc:"public keys in PEM: ECDSA P-256, Ed25519, or RSA from 2048 bits"`
}

// Covers reports whether the rule applies to images of the repository with this full name, see
// ImageName. A rule without repositories applies to all images.
func (r SignatureRule) Covers(name string) bool {
	return len(r.Repositories) == 0 || ImageAllowed(r.Repositories, name)
}

const (
	maxSignatureRules = 20   // of a tenant, or of the cluster
	maxSignatureKeys  = 10   // of a rule
	maxSignatureKey   = 4096 // bytes of a key in PEM; enough for RSA with 16,384 bits
	minRSABits        = 2048
)

// CheckSignatureRules returns the faults of a list of rules, under the name of the field. The faults of
// the rules beyond the limit are not listed, so a file cannot cause an answer of any size.
func CheckSignatureRules(field string, rules []SignatureRule) []berth.FieldError {
	v := &validation{}
	v.require(len(rules) <= maxSignatureRules, field, fmt.Sprintf("has %d rules", len(rules)),
		fmt.Sprintf("at most %d", maxSignatureRules))
	for i, r := range rules[:min(len(rules), maxSignatureRules)] {
		at := fmt.Sprintf("%s[%d]", field, i)
		v.faults = append(v.faults, CheckImageEntries(at+".repositories", r.Repositories)...)
		v.require(len(r.Keys) >= 1 && len(r.Keys) <= maxSignatureKeys, at+".keys",
			fmt.Sprintf("has %d keys", len(r.Keys)), fmt.Sprintf("1 to %d", maxSignatureKeys))
		for k, key := range r.Keys[:min(len(r.Keys), maxSignatureKeys)] {
			if _, err := ParseSignatureKey(key); err != nil {
				v.require(false, fmt.Sprintf("%s.keys[%d]", at, k), err.Error(),
					"one public key in PEM (BEGIN PUBLIC KEY): ECDSA P-256, Ed25519, or RSA from 2048 bits")
			}
		}
	}
	return v.faults
}

// SignatureKey is a public key for signatures of images.
type SignatureKey struct {
	Public any    // *ecdsa.PublicKey, ed25519.PublicKey or *rsa.PublicKey
	ID     string // "sha256:" and the first 16 hex digits of the SHA-256 of the key's DER form
}

// ParseSignatureKey reads a public key in PEM, as `cosign generate-key-pair` writes it. The error
// completes the name of a field: it has no subject. Keys of other kinds are refused at once, since no
// signature by them could ever be verified.
func ParseSignatureKey(text string) (SignatureKey, error) {
	if len(text) > maxSignatureKey {
		return SignatureKey{}, fmt.Errorf("has %d bytes, more than %d", len(text), maxSignatureKey)
	}
	block, rest := pem.Decode([]byte(text))
	switch {
	case block == nil:
		return SignatureKey{}, errors.New("is not PEM")
	case strings.TrimSpace(string(rest)) != "":
		return SignatureKey{}, errors.New("has more than one key")
	case block.Type != "PUBLIC KEY":
		return SignatureKey{}, fmt.Errorf("is a %.40q", block.Type)
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return SignatureKey{}, fmt.Errorf("cannot be read: %w", err)
	}
	switch k := public.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return SignatureKey{}, fmt.Errorf("is an ECDSA key on the curve %s", k.Params().Name)
		}
	case ed25519.PublicKey:
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n < minRSABits {
			return SignatureKey{}, fmt.Errorf("is an RSA key of %d bits", n)
		}
	default:
		return SignatureKey{}, fmt.Errorf("is a %T", public)
	}
	sum := sha256.Sum256(block.Bytes)
	return SignatureKey{Public: public, ID: "sha256:" + hex.EncodeToString(sum[:8])}, nil
}
