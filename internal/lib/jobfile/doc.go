// Package jobfile reads job files: YAML or JSON text into a berth.JobSpec, or
// every fault of the text at once, each with its line, its column, the source
// around it, what is wrong and what is allowed.
//
// The text is parsed into a small tree that knows where each value stood, and
// the tree is laid over the spec's type by its JSON tags. The type is the only
// list of fields there is, so a field added to berth.JobSpec is readable at
// once. What a value may be is decided by the spec's own types and by
// JobSpec.Validate; this package only finds the place to point at.
//
// Text stays text: where the spec wants a string, 20, yes and 1e-3 arrive as
// the user wrote them.
//
// The one rule to know: nothing here reads files or the environment; callers
// bring the bytes and the name to show in errors.
package jobfile
