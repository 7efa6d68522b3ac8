// Package spec holds the files and requests that users write: jobs, pipelines
// and schedules, the bodies of API calls such as quotas and tokens, and the
// quantities in them.
//
// WithDefaults fills in every unset field that has a default. Validate then
// returns all faults at once, each with the field's path and the allowed values.
// Validation reads the value alone: whether a named secret, tenant or upload
// exists is checked by internal/control/admission.
//
// A Request is the part of a job that decides where it may run, and a DataKey
// names content that a job needs on its machine.
package spec
