// Package firewall enforces the egress policies of jobs by a table of nftables on the host,
// outside of the containers.
//
// Each job has a bridge network of its own. The table has a chain for each of these bridges,
// with the job's policy. It touches no packet of any other interface, except for packets to the
// port of the machine's own resolver, which it drops. It never opens a way that another table
// closes: in nftables, a drop in any table is final.
//
// The one rule to know: the table is a function of the list of networks. Every change writes
// the whole table in one transaction, and a foreign change is answered with the same write.
// The agent adds a network before it creates the network's containers, and calls Restore with
// the engine's list before anything else, since a table without a network opens this network.
// docs/adr/0054-egress-is-held-on-the-host.md has states, races and invariants.
package firewall
