// Package bench measures Berth against its floor, in one run and on one machine: bare workflows
// on the same Temporal server, bare calls of the same container engine, and a leader's commits on
// a durable PostgreSQL. Its results are ratios; rates are worth no more than the machine on which
// they were taken.
//
// It has no code of its own, only one benchmark, which scripts/bench.sh runs: `go test` alone
// does nothing here. Flags choose its parts and their size.
package bench
