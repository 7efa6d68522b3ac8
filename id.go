package berth

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"
)

// JobID identifies a job permanently: a UUIDv7 (RFC 9562 section 5.7) in its usual
// text form, so that ids sort by the time of submission.
type JobID string

// TenantID names a tenant, usually a team. Every job, grant, token and query has one.
type TenantID string

// MachineID names a machine by the name of its registration, a DNS label; see
// ParseMachineID.
type MachineID string

// AllocationID identifies one member's allocation on one machine.
type AllocationID int64

// NewJobID returns a fresh id for a job submitted at now. Within a millisecond, the order
// of ids is random.
func NewJobID(now time.Time) JobID {
	var b [16]byte
	_, _ = rand.Read(b[8:]) // crypto/rand.Read never fails since Go 1.24
	var r [2]byte
	_, _ = rand.Read(r[:])
	ms := uint64(now.UnixMilli())
	binary.BigEndian.PutUint64(b[:8], ms<<16|uint64(binary.BigEndian.Uint16(r[:])))
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	return JobID(formatUUID(b))
}

// ParseJobID returns the id in canonical lower-case form, or an error of code
// invalid when s is not a UUID.
func ParseJobID(s string) (JobID, error) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return "", Errorf(CodeInvalid, "job id %q is not a UUID", s)
	}
	raw, err := hex.DecodeString(s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:])
	if err != nil {
		return "", Errorf(CodeInvalid, "job id %q is not a UUID", s)
	}
	return JobID(formatUUID([16]byte(raw))), nil
}

// formatUUID renders 16 bytes in the usual text form of a UUID.
func formatUUID(b [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// NewSecret returns 32 random bytes in hex, for tokens and process identities.
func NewSecret() string {
	var b [32]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// ParseMachineID returns s as a machine id, or an error of code invalid.
func ParseMachineID(s string) (MachineID, error) {
	if !isName(s) {
		return "", Errorf(CodeInvalid, "machine name %q: allowed are 1 to 63 of a-z, 0-9 and '-', not at either end", s)
	}
	return MachineID(s), nil
}

// ParseTenantID returns s as a tenant id, or an error of code invalid.
func ParseTenantID(s string) (TenantID, error) {
	if !isName(s) {
		return "", Errorf(CodeInvalid, "%.100q is not a tenant: 1 to 63 of a-z, 0-9 and '-', not at either end", s)
	}
	return TenantID(s), nil
}

// isName reports whether s is a DNS label (RFC 1123 section 2.1), the form of
// job, machine and tenant names.
func isName(s string) bool {
	if len(s) < 1 || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// ScheduleID identifies a schedule permanently; its name is free again once the
// schedule is deleted.
type ScheduleID string

// NewScheduleID returns a fresh id for a schedule created at now.
func NewScheduleID(now time.Time) ScheduleID { return ScheduleID(NewJobID(now)) }

// parseScheduleID returns the id in canonical form, or an error of code invalid.
func parseScheduleID(s string) (ScheduleID, error) {
	id, err := ParseJobID(s)
	if err != nil {
		return "", Errorf(CodeInvalid, "schedule id %q is not a UUID", s)
	}
	return ScheduleID(id), nil
}
