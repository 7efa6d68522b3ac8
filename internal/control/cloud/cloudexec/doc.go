// Package cloudexec connects Berth to clouds through programs of the operator.
//
// A Provider runs one process for each call: the process reads one Request as JSON from its standard
// input, and writes one Answer as JSON to its standard output. Serve is the other side, for programs
// in Go. docs/operate/cloud-exec.md describes the protocol for operators.
//
//	the answer                                 result of the call
//	---------------------------------------    ------------------------------------------
//	a valid answer, exit status 0              the answer
//	a valid answer with an error, status 0     the error, with its kind
//	anything else: no or bad JSON, a field     kind Unknown: the call may have had its
//	or state that is not defined, another      effect, or may still have it
//	machine than asked for, another status,
//	a signal, the time limit
//	no process: all are busy, or the program   kind Throttle: the call was not made
//	is missing
//
// The one rule to know: a failed process proves nothing, not even that its call had no effect.
package cloudexec
