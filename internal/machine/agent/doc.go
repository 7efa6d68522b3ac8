// Package agent runs on every machine. It keeps the machine's session with the
// control plane, owns the containers of the ranks placed there, and stores their
// results: exits, logs, checkpoints and outputs.
//
// It decides nothing about placement, links no database driver, and holds no
// credential but the machine's own token. It touches only containers that carry
// its cluster's and its machine's labels, so several agents may share one engine.
//
// The one rule to know: only an order, a limit of the job itself or a verdict of
// the control plane stops a container. An unreachable control plane and an agent
// that stops leave containers alone; the next agent process adopts them.
//
// Each sync carries the machine's whole set: reservations to claim, and orders. The
// set alone starts a rank, and its claim decides whether the rank belongs to this
// machine.
//
//	set     <- sync (long poll) <- control plane -> sync (reports) <- ranks
//
//	rank: claim -> pull -> workdir -> restore -> create -> prepared -> (start) -> running
//	           -> exited -> seal (log, checkpoints, outputs) -> sealed -> (forget) -> gone
package agent
