// Command berth-deadman is the fencing watchdog of at_most_one work on one machine.
// It ends the containers that the agent lists in its lease file once the lease is
// older than the fence time, even if the agent or the container engine has died or
// hangs, and continues until a fresh lease appears. See internal/machine/deadman.
//
// berth-deadman runs as a service of its own, next to the agent's service, or is
// started by the agent, in a session of its own. One runs for each state folder.
package main
