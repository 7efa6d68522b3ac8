// Package fakeruntime is a container engine in memory: a node.Runtime for the agent's
// tests, for benchmarks (berth-agent --runtime fake) and for simulations. It passes the
// same suite as the real engine (runtimetest.Suite), runs the test program's commands
// (package prog) as goroutines, and can inject the failures of a real engine.
//
// A Fake stands for the engine, not for a connection: Close leaves containers running, and
// an agent restarted over the same Fake finds them. Shutdown ends all containers.
//
// The package never starts a process, opens a socket or imports package testing.
package fakeruntime
