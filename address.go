package berth

import (
	"encoding/hex"
	"strings"
)

// Address identifies an archive by its content: "sha256:" and the 64 hexadecimal digits of
// the hash of the tar before compression.
type Address string

const addressPrefix = "sha256:"

// ParseAddress parses an address. Only lower-case digits are valid, so that equal content
// has a single spelling. The error has CodeInvalid.
func ParseAddress(s string) (Address, error) {
	digits, ok := strings.CutPrefix(s, addressPrefix)
	if _, err := hex.DecodeString(digits); !ok || err != nil || len(digits) != 64 || strings.ToLower(digits) != digits {
		return "", Errorf(CodeInvalid, "%.100q is no address: write sha256: and 64 hexadecimal digits", s)
	}
	return Address(s), nil
}

// AddressOf returns the address of content with this SHA-256 hash.
func AddressOf(sum []byte) Address { return Address(addressPrefix + hex.EncodeToString(sum)) }

// Hex returns the address without its prefix.
func (a Address) Hex() string { return strings.TrimPrefix(string(a), addressPrefix) }

// Short returns the prefix and 12 digits of the address, for display.
func (a Address) Short() string { return string(a[:min(len(a), len(addressPrefix)+12)]) }
