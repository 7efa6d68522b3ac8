package berth

import (
	"encoding/hex"
	"strings"
)

// Address names content by itself: sha256: and 64 hexadecimal digits, of a tar
// as it is before its compression.
type Address string

const addressPrefix = "sha256:"

// ParseAddress reads an address in its one spelling.
func ParseAddress(s string) (Address, error) {
	digits, ok := strings.CutPrefix(s, addressPrefix)
	if _, err := hex.DecodeString(digits); !ok || err != nil || len(digits) != 64 || strings.ToLower(digits) != digits {
		return "", Errorf(CodeInvalid, "%.100q is no address: write sha256: and 64 hexadecimal digits", s)
	}
	return Address(s), nil
}

// AddressOf is the address of content with this sha256.
func AddressOf(sum []byte) Address { return Address(addressPrefix + hex.EncodeToString(sum)) }

// Hex is the address without its prefix.
func (a Address) Hex() string { return strings.TrimPrefix(string(a), addressPrefix) }

// Short is enough of the address for people.
func (a Address) Short() string { return string(a[:min(len(a), len(addressPrefix)+12)]) }
