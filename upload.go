package berth

import (
	"encoding/hex"
	"fmt"
	"path"
	"strings"
	"time"
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

// Upload is an archive that a tenant has stored.
type Upload struct {
	Address   Address   `json:"address"`
	Files     int       `json:"files" doc:"entries, folders and links included"`
	Bytes     int64     `json:"bytes" doc:"of all files together, unpacked"`
	Stored    int64     `json:"stored_bytes,omitempty" doc:"compressed; absent for an older server's upload"`
	CreatedAt time.Time `json:"created_at"`
}

// UploadFolder is the folder of one stored copy of an upload. Each has a random
// part, so that removing an old copy never meets a new one.
func UploadFolder(tenant TenantID, a Address, random string) string {
	return path.Join("tenants", string(tenant), "uploads", a.Hex(), random)
}

// ArchiveName is the object in the folder of an upload.
const ArchiveName = "archive.tar.zst"

// Unsent returns the fields that name folders of the user's own machine. The
// command line replaces them with addresses before it submits; the server knows
// addresses alone.
func (s JobSpec) Unsent() []FieldError {
	v := &validation{}
	if _, err := ParseAddress(s.Workdir); s.Workdir != "" && err != nil {
		v.require(false, "workdir", "is no address of an upload", unsentHint)
	}
	for i, in := range s.Inputs {
		_, err := ParseAddress(in.From)
		v.require(err == nil || in.Kind() != InputFolder, fmt.Sprintf("inputs[%d].from", i), "is no address of an upload", unsentHint)
	}
	return v.faults
}

const unsentHint = "sha256:… of what was sent to POST /v1/uploads before; berth submit packs and sends the folder by itself"

// NamedUpload is an upload and the field that names it.
type NamedUpload struct {
	Field   string
	Address Address
}

// Uploads returns the uploads that the spec names, in its order.
func (s JobSpec) Uploads() []NamedUpload {
	var all []NamedUpload
	if a, err := ParseAddress(s.Workdir); err == nil {
		all = append(all, NamedUpload{"workdir", a})
	}
	for i, in := range s.Inputs {
		if a, err := ParseAddress(in.From); err == nil {
			all = append(all, NamedUpload{fmt.Sprintf("inputs[%d].from", i), a})
		}
	}
	return all
}

// BytesText writes an amount for people.
func BytesText(n int64) string {
	f, unit := float64(n), "bytes"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if f < 1<<10 {
			break
		}
		f, unit = f/(1<<10), u
	}
	if unit == "bytes" {
		if n == 1 {
			unit = "byte"
		}
		return fmt.Sprintf("%d %s", n, unit)
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}
