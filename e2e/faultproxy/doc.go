// Package faultproxy is a TCP proxy whose link can be slowed, reset, cut one way, or cut between
// a request that was delivered and its reply. Tests put it between a program and a server to show
// the effect of network faults.
//
// A cut holds bytes instead of throwing them away, as TCP does on a lossy path: bytes sent into a
// cut arrive when it heals, however late, even if their sender has hung up since. That makes a
// partitioned program a zombie whose writes come back.
//
// It knows no protocol. To make one particular request lose its reply, a test names bytes that
// occur in the request; see CutReply.
//
// The one rule to know: connections are accepted by the kernel even while the link is cut or
// down, so a client sees a reset, or silence, never a refusal. A reset may reach it before its
// own connect returns.
package faultproxy
