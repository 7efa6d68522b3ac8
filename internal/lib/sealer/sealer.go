// Package sealer seals secrets before they are stored: AES-256-GCM under a key
// that the database never sees. A sealed value opens only for the tenant and the
// name that it was sealed for, so that rows cannot be swapped.
//
// The key file has one key a line, 64 hexadecimal digits; # begins a comment. The
// first key seals, and every key opens. To rotate keys, add the new key as the
// second line on every server, then move it to the first, and remove the old key
// once the server reports that no secret is sealed with it.
//
// The one rule to know: a value is in memory alone, on its way in and at a claim.
package sealer

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"berth"
)

// Keys seal and open. They may be used concurrently.
type Keys struct{ list []key }

// key is one key and its id, which sealed values carry.
type key struct {
	id   string
	aead cipher.AEAD
}

const keyBytes = 32

// Load reads a key file.
func Load(path string) (*Keys, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read secret keys: %w", err)
	}
	k := &Keys{}
	for i, line := range bytes.Split(text, []byte("\n")) {
		digits, _, _ := strings.Cut(string(line), "#")
		if digits = strings.TrimSpace(digits); digits == "" {
			continue
		}
		raw, err := hex.DecodeString(digits)
		if err != nil || len(raw) != keyBytes {
			return nil, fmt.Errorf("secret key file %s, line %d: a key is %d hexadecimal digits; make one with: "+
				"openssl rand -hex %d", path, i+1, 2*keyBytes, keyBytes)
		}
		if err := k.add(raw); err != nil {
			return nil, err
		}
	}
	if len(k.list) == 0 {
		return nil, fmt.Errorf("secret key file %s has no key; make one with: openssl rand -hex %d", path, keyBytes)
	}
	return k, nil
}

// Make writes a key file with a new key, readable by its owner only. An existing file stays as it
// is.
func Make(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make secret key: %w", err)
	}
	raw := make([]byte, keyBytes)
	_, _ = rand.Read(raw)
	_, err = fmt.Fprintln(f, hex.EncodeToString(raw))
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// add appends a key, for opening sealed values.
func (k *Keys) add(raw []byte) error {
	block, err := aes.NewCipher(raw)
	if err != nil {
		return err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return err
	}
	// The id is no help in finding the key: it is a hash of 256 random bits.
	sum := sha256.Sum256(append([]byte("berth secret key "), raw...))
	k.list = append(k.list, key{hex.EncodeToString(sum[:6]), aead})
	return nil
}

// Current names the key that seals.
func (k *Keys) Current() string { return k.list[0].id }

// IDs returns the ids of all keys, the sealing key first. An id is a fingerprint: it does not reveal the
// key.
func (k *Keys) IDs() []string {
	ids := make([]string, len(k.list))
	for i, one := range k.list {
		ids[i] = one.id
	}
	return ids
}

// Has reports whether a key with this id, which sealed values carry, is among the keys.
func (k *Keys) Has(id string) bool {
	return slices.ContainsFunc(k.list, func(one key) bool { return one.id == id })
}

// bound encodes the tenant and the name to which a value is bound. No two pairs give
// the same bytes.
func bound(tenant berth.TenantID, name string) []byte {
	return fmt.Appendf(nil, "berth secret 1 %d %s %d %s", len(tenant), tenant, len(name), name)
}

// Seal returns the sealed value, which may be stored, and the key's name.
func (k *Keys) Seal(tenant berth.TenantID, name string, value []byte) (keyID string, sealed []byte) {
	return k.list[0].id, k.list[0].aead.Seal(nil, nil, value, bound(tenant, name))
}

// Open returns the value that Seal has sealed. No error contains a part of the value.
func (k *Keys) Open(tenant berth.TenantID, name, keyID string, sealed []byte) ([]byte, error) {
	for _, one := range k.list {
		if one.id != keyID {
			continue
		}
		value, err := one.aead.Open(nil, nil, sealed, bound(tenant, name))
		if err != nil {
			return nil, fmt.Errorf("secret %s: what is stored was changed, or is another secret's", name)
		}
		return value, nil
	}
	return nil, fmt.Errorf("secret %s is sealed with key %s, which this server does not have", name, keyID)
}
