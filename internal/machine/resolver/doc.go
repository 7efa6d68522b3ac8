// Package resolver answers the DNS questions of this machine's job containers. It forwards questions to the name
// servers of the host and removes, from their answers, each address that the container may not reach.
//
// The table of package firewall redirects the containers' questions to the server's port, and refuses their packets to
// other name servers. The server identifies a container by its source address, which the table does not let it forge
// for another network, and answers nothing but addresses of job networks.
//
//   - Questions for IPv4 addresses are forwarded. If no address of the answer can be reached, the name does not exist
//     for the container (NXDOMAIN): an internal name looks like a missing one.
//   - Questions for IPv6 addresses and service bindings have empty answers: containers have no IPv6, and service
//     bindings contain addresses.
//   - Policy list: a question for a name that the job does not list is never forwarded. The addresses of a listed name
//     are allowed in the table before the answer is sent.
//
// The server stores nothing and has no cache, so no tenant can observe the questions of another.
// docs/adr/0122-names-of-jobs-are-resolved-on-the-machine.md has states, races and limits.
package resolver
