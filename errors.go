package berth

import (
	"errors"
	"fmt"
)

// Code is the kind of an error; one table maps codes to HTTP statuses (api/error.go)
// and one to Temporal's retry behaviour (workers).
type Code string

// The codes of an Error.
const (
	CodeInvalid      Code = "invalid"      // the request itself is wrong
	CodeUnauthorized Code = "unauthorized" // no token, or one that is not known
	CodeForbidden    Code = "forbidden"    // a known token without this right
	CodeNotFound     Code = "not_found"
	CodeConflict     Code = "conflict"    // the state has changed, or does not permit the call
	CodeCapacity     Code = "capacity"    // quota or room
	CodeUnavailable  Code = "unavailable" // try again later
	CodeInternal     Code = "internal"    // our bug
)

// FieldError is the fault of one field of a request, with the allowed values.
type FieldError struct {
	Field   string `json:"field"` // path from the body's root, such as resources.memory
	Detail  string `json:"detail"`
	Allowed string `json:"allowed,omitempty"`
}

// Error is an error that a user or another process is meant to read. Slug is a
// stable machine-readable refinement of Code (idempotency_mismatch,
// stale_epoch, unsatisfiable); empty means the code itself.
type Error struct {
	Code    Code
	Slug    string
	Message string
	Fields  []FieldError
}

func (e *Error) Error() string { return e.Message }

// StableCode is the code on which clients branch: Slug, or Code without a slug.
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

// CodeOf returns the code of the first Error in err's chain, CodeInternal if
// there is none, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// IsSlug reports whether err carries this stable code.
func IsSlug(err error, slug string) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.StableCode() == slug
}

// Slugs with a meaning of their own.
const (
	SlugInvalidSpec         = "invalid_spec"
	SlugStaleEpoch          = "stale_epoch"          // the writer's attempt, machine epoch or term is not the current one
	SlugStaleAttempt        = "stale_attempt"        // to an agent with a current session: it no longer holds this work
	SlugIdempotencyMismatch = "idempotency_mismatch" // same key, other body
	SlugUnsatisfiable       = "unsatisfiable"        // no machine could ever hold it
	SlugQuota               = "quota"                // more than the tenant may have
	SlugStorageQuota        = "storage_quota"        // the tenant, or one above it, has no room left to store this
	SlugNotReady            = "not_ready"            // settle came before every member was sealed
	SlugArchive             = "invalid_archive"      // an archive's content breaks the rules; it will the next time
	SlugMachineRetired      = "machine_retired"      // to an agent: its machine was removed, for good
)

// ErrStaleEpoch is answered to a writer that was superseded. It wrote nothing.
func ErrStaleEpoch(format string, args ...any) *Error {
	return &Error{Code: CodeConflict, Slug: SlugStaleEpoch, Message: fmt.Sprintf(format, args...)}
}
