// Package proof proves Berth's promises on the programs as they are shipped:
// real processes that are killed, a real Docker engine, real containers. Each
// test states one promise and runs a stack of its own, of berth-dev or of
// berthd and berth-agent apart.
//
// It has no code but tests, and it looks at Berth from outside only: through
// the HTTP API, Temporal's frontend, and the engine's own record of what was
// created and started. What one process can show is tested in package e2e.
//
// BenchmarkEndurance (make endurance) runs such a stack under a steady load for
// half an hour and compares its last tenth with its first.
//
// The one rule to know: a test touches only containers of its own cluster,
// processes it started and folders it made, so any other stack on the machine
// lives on, and a run that was killed is tidied up by the next one.
package proof
