// Berth-dev runs all of Berth on one machine in one command: a private PostgreSQL cluster,
// a Temporal server with its UI in this process, the control plane, and one or more agents,
// each a process of its own, on the local Docker engine or on private ones.
//
// State lies in one folder and survives Ctrl-C and kill -9: containers and private engines
// keep running, and the next start finds every job and adopts the running containers.
// `berth-dev down` stops the private engines.
//
// It is for development, tests and demonstrations. Everything listens on loopback.
package main
