// Package agent is what runs on every machine: it keeps the machine's session
// with the control plane, owns the containers of the ranks placed there, and
// stores what they leave behind: their ends, logs and checkpoints.
//
// It decides nothing about placement, links no database driver, and holds no
// credential but the machine's own token. It touches only containers that carry
// its cluster's and its machine's labels, so several agents may share one
// engine.
//
// The one rule to know: nothing but an order, a limit of the job itself or a
// verdict of the control plane ends a container. A control plane that cannot be
// reached, a waiter that is canceled and an agent that stops leave containers
// alone; the next agent process adopts them.
//
// Each sync carries the machine's whole set: reservations to claim, and orders.
// A rank is taken up by the set or by the activity that waits for it, whichever
// comes first; its claim alone decides whether it is ours.
//
//	set     <- sync (long poll) <- control plane -> sync (reports) <- ranks
//
//	rank: claim -> pull -> workdir -> restore -> create -> prepared -> (start) -> running
//	           -> exited -> seal (log, checkpoints, outputs) -> sealed -> (forget) -> gone
package agent
