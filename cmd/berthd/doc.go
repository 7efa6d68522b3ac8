// Program berthd is Berth's control plane: the API, the workers of workflows,
// and the leader that places jobs. Any number of replicas may run; --role picks
// the parts of each.
//
// It needs a PostgreSQL database, which it migrates, a Temporal server and an
// object store. It waits for the database; without Temporal it accepts jobs and
// answers for them, and goes on when that is back.
package main
