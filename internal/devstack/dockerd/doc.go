// Package dockerd runs private Docker engines, one for each simulated machine, each
// with its own socket, data, containerd, bridge and cgroup, side by side with each
// other and with the host's own engine. The demonstration kills such a machine;
// tests start and kill their own without harm to others.
//
// It touches no container, bridge, rule or mount that it did not create, and no
// firewall chain of the host's engine: a second dockerd that manages iptables
// empties the first one's chains, and one without a bridge deletes the first one's
// docker0. So every engine here has a bridge of its own, created by this package,
// and does not manage iptables.
//
// The one rule to know: an engine outlives the process that started it unless
// Options.Tied is set, and the next Start on its folder takes it over.
package dockerd
