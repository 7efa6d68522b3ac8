package berth

import (
	"errors"
	"fmt"
)

// Code is the kind of an error. One table maps codes to HTTP statuses (api/error.go), and
// another one maps codes to Temporal's retry behaviour (workers).
type Code string

// The codes of an Error.
const (
	CodeInvalid      Code = "invalid"      // the request itself is wrong
	CodeUnauthorized Code = "unauthorized" // no token, or an unknown one
	CodeForbidden    Code = "forbidden"    // a known token without this right
	CodeNotFound     Code = "not_found"
	CodeConflict     Code = "conflict"    // the state has changed, or does not permit the call
	CodeCapacity     Code = "capacity"    // a quota or the capacity does not suffice
	CodeUnavailable  Code = "unavailable" // a later repetition may succeed
	CodeInternal     Code = "internal"    // a bug of Berth
)

// FieldError is the fault of one field of a request, with the allowed values.
type FieldError struct {
	Field   string `json:"field"` // path from the body's root, such as resources.memory
	Detail  string `json:"detail"`
	Allowed string `json:"allowed,omitempty"`
}

// Error is an error for a user or another process; its text may be shown to both. Slug is
// a stable, machine-readable refinement of Code (idempotency_mismatch,
// stale_epoch, unsatisfiable); without a slug, the code itself is stable.
type Error struct {
	Code    Code
	Slug    string
	Message string
	Fields  []FieldError
}

// Error returns the message alone; callers that need the code use CodeOf or IsSlug.
func (e *Error) Error() string { return e.Message }

// StableCode returns the code on which clients branch: Slug, or Code without a slug.
func (e *Error) StableCode() string {
	if e.Slug != "" {
		return e.Slug
	}
	return string(e.Code)
}

// Errorf returns an Error of the given code.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf returns the code of the first Error in err's chain. It returns CodeInternal for a
// chain without an Error, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// IsSlug reports whether the first Error in err's chain has this stable code.
func IsSlug(err error, slug string) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.StableCode() == slug
}

// Slugs with a meaning of their own.
const (
	SlugInvalidSpec         = "invalid_spec"
	SlugStaleEpoch          = "stale_epoch"          // the writer's attempt, machine epoch or term is not current
	SlugStaleAttempt        = "stale_attempt"        // the agent no longer holds this member
	SlugIdempotencyMismatch = "idempotency_mismatch" // same key, other body
	SlugUnsatisfiable       = "unsatisfiable"        // no machine could ever run the job
	SlugQuota               = "quota"                // more than the tenant may have
	SlugStorageQuota        = "storage_quota"        // a storage quota of the tenant, or of one above it, is used up
	SlugNotReady            = "not_ready"            // settle came before every member was sealed
	SlugArchive             = "invalid_archive"      // an archive's content breaks the rules; a repetition fails, too
	SlugMachineRetired      = "machine_retired"      // for an agent: its machine was removed permanently
)

// ErrStaleEpoch returns the error for a writer with a superseded attempt, machine epoch or
// term. The call has written nothing.
func ErrStaleEpoch(format string, args ...any) *Error {
	return &Error{Code: CodeConflict, Slug: SlugStaleEpoch, Message: fmt.Sprintf(format, args...)}
}
