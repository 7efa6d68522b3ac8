// Package docker is a machine's container engine: it implements node.Runtime on the
// Docker Engine API, from 20.10 on.
//
// It holds the security defaults that no job can change (host.go), and maps the
// engine's error texts to the few errors that callers branch on (classify.go). The
// engine is the source of truth: the package caches nothing that the engine can
// report, so several processes may share one engine, each with its own labels.
//
// It never calls an engine over the network, never mounts a host path that the
// agent did not name, and never removes a container by a prefix of its id.
package docker
