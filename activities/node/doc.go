// Package node holds the activity that runs on a machine, and declares what it
// needs of that machine: a container Runtime, an inventory of GPUs, and a
// Supervisor that owns the containers.
//
// The one rule to know: the Run activity only waits. Losing its context (a
// Temporal outage, a worker restart, a terminated workflow) never stops a
// container; stop orders travel through the database and the agent's sync.
//
// It will never open a database connection.
package node
