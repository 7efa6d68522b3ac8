// Program berthd is Berth's control plane: the API, the workers of workflows,
// and the leader that places jobs. Any number of replicas may run; --role selects
// the components of each.
//
// berthd needs a PostgreSQL database, which it migrates, a Temporal server and an
// object store. At its start berthd waits for the database. While Temporal is down,
// berthd accepts jobs and answers calls about jobs; work continues once Temporal is
// back.
package main
