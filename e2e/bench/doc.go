// Package bench measures Berth against its floor, in one run and on one
// machine: bare workflows on the same Temporal server, bare calls of the same
// container engine, and a leader's commits on a durable PostgreSQL. Ratios are
// what it is for; rates are worth no more than the machine they were taken on.
//
// It has no code of its own, only one benchmark, which scripts/bench.sh runs:
// `go test` alone does nothing here. Flags choose its parts and their size.
package bench
