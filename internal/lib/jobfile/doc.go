// Package jobfile reads job files: YAML or JSON text into a spec.Job, or all faults of
// the text at once, each with its line, its column, the source around the fault, and the
// allowed values.
//
// The text is parsed into a small tree with the place of each value, and the tree is
// decoded into the spec's type by its JSON tags. The type is the only list of fields, so
// a field added to spec.Job is readable at once. The spec's own types and
// spec.Job.Validate decide on values; this package only finds their places.
//
// Text stays text: where the spec wants a string, 20, yes and 1e-3 arrive as the user
// wrote them.
//
// The one rule to know: this package reads neither files nor the environment; callers
// bring the bytes and the name to show in errors.
package jobfile
