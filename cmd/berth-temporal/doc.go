// Command berth-temporal is a Temporal server for small sites: one process on one host, with its databases in
// PostgreSQL and the namespace and search attributes that Berth needs. A site that needs more than one host for
// Temporal runs Temporal's own server, or Temporal Cloud; berthd works with each of them.
//
// It carries no state: jobs are rows of Berth's database, so a site can change to another Temporal at any time
// (docs/operate/temporal.md).
package main
