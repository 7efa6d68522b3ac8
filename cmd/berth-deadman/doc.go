// Command berth-deadman fences at_most_one work on one machine: it ends the
// containers that the agent lists in its lease file once the lease is older
// than the fence time, whatever has become of the agent and of the container
// engine, and goes on until a fresh lease appears. See internal/machine/deadman.
//
// It runs as a service of its own, beside the agent's, or is started by the
// agent, in a session of its own. One runs for each state folder.
package main
