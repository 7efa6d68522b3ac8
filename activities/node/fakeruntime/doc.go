// Package fakeruntime is a container engine in memory: a node.Runtime for the
// agent's tests, for benchmarks (berth-agent --runtime fake) and for
// simulations. It passes the same suite as the real engine
// (runtimetest.Suite), runs the test program's commands (package prog) as
// goroutines, and can be made to fail in the ways an engine fails.
//
// A Fake stands for the engine, not for a connection to it: Close leaves
// containers running, and an agent that is started again over the same Fake
// finds them. Shutdown ends everything.
//
// It will never start a process, open a socket or import package testing.
package fakeruntime
