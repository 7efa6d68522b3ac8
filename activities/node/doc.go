// Package node declares the interfaces of an agent to its machine: the container Runtime
// and an inventory of GPUs.
//
// The package never opens a database connection and never calls Temporal: agents learn of
// work by their sync and report to the API.
package node
