// Package tracing tells what happens to a job as one OpenTelemetry trace, from
// its submission to its end, though processes that know nothing of each other
// make its spans.
//
// They agree because nothing is handed on or stored: the id of a job's trace is
// the job's id, the ids of the spans that others hang theirs under are functions
// of job, attempt and rank, and whether a trace is sampled is a function of its
// id. A span that is told twice, by a step that was repeated or a process that
// was killed, is the same span.
//
// A nil *Tracing is tracing that is off: all of its methods do nothing. One that
// is on never makes anybody wait: spans that the collector does not take in time
// are dropped.
//
// The one rule to know: spans carry ids, numbers and codes, never environments,
// commands, messages or URLs, among which secrets may be.
package tracing
