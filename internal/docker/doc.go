// Package docker is the container engine of a machine: node.Runtime on the
// Docker Engine's API, from 20.10 on.
//
// It holds the security defaults that no job can change (host.go), and it turns
// the engine's error texts into the few errors that callers branch on
// (classify.go). The engine is the truth: nothing is cached that the engine can
// tell, so any number of processes may use one engine, each with its own
// labels.
//
// It will never speak to an engine over the network, mount a host path that the
// agent did not name, or remove a container by a prefix of its id.
package docker
