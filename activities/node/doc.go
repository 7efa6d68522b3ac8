// Package node declares what an agent needs of its machine: a container Runtime
// and an inventory of GPUs.
//
// It will never open a database connection, nor speak to Temporal: agents learn of
// work by their sync and report to the API.
package node
