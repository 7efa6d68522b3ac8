// Package proof proves Berth's promises on the programs as they are shipped: real processes that
// are killed, a real Docker engine, real containers. Each test states one promise and runs a
// stack of its own, of berth-dev or of separate berthd and berth-agent processes.
//
// It has no code but tests, and it looks at Berth from outside only: through the HTTP API,
// Temporal's frontend, and the engine's own record of created and started containers. Claims that
// one process can show are tested in package e2e.
//
// BenchmarkEndurance (make endurance) runs such a stack under a steady load for half an hour and
// compares its last tenth with its first. BenchmarkUpgrade (make upgrade-test) upgrades one from
// the programs of an earlier commit.
//
// The one rule to know: a test touches only containers of its own cluster, processes it started
// and folders it created, so any other stack on the machine lives on, and the next run removes
// the leftovers of a killed one.
package proof
