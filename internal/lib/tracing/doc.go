// Package tracing exports the life of a job as one OpenTelemetry trace, from submit
// to end, although the processes that create its spans exchange no context.
//
// Trace and span ids are functions of job, attempt and rank, and so is the sampling
// decision. Nothing is passed on or stored. A span that is exported twice, by a
// step that was repeated or a process that was killed, is the same span.
//
// A nil *Tracing is disabled: all of its methods do nothing. An enabled one never
// blocks: it drops spans that the collector does not accept in time.
//
// The one rule to know: spans carry ids, numbers and codes, never environments,
// commands, messages or URLs, which may contain secrets.
package tracing
