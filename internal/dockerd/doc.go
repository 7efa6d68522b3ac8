// Package dockerd runs private Docker engines: one per pretended machine, each
// with its own socket, data, containerd, bridge and cgroup, side by side with
// each other and with the host's own engine. The demonstration kills such a
// machine; tests start and kill their own without hurting anybody's.
//
// It touches no container, bridge, rule or mount that it did not make, and no
// firewall chain of the host's engine: a second dockerd that manages iptables
// empties the first one's chains, and one that is told to have no bridge
// deletes the first one's docker0. So an engine here always has a bridge of its
// own, made by this package, and leaves iptables alone.
//
// The one rule to know: an engine outlives the process that started it unless
// Options.Tied says otherwise, and the next Start on its folder takes it over.
package dockerd
