// Package siege attacks a control plane as an outsider, a tenant and a job may, and measures the
// effect on a good caller and two agents, on the programs as they are shipped.
//
// The attacks come from the project's list of hostile callers: calls without a token, wrong
// machine tokens, silent bodies, unfinished joins, long tails, many followers, uploads of a byte
// a second, idle connections, unread lists, and a flood of submits. They run twice: from the
// address of the good caller, as behind one proxy, and from the address of the agents, as from
// inside a job against its own machine. The attacker is a process of its own with a fixed share
// of the CPU. The good caller is another one, which also measures its own lag.
//
// In the benchmark each service has a control group of its own, as systemd gives it. The good
// caller's p99 is compared with its p99 at rest, and the table has the interval of the ratio and
// the p99 of each kind of call. An attack whose attacker no control group bounds counts as missed.
//
// BenchmarkSiege (make siege) prints one table of attack, expectation and finding, and fails if
// an expectation is not met. go test runs a small form that judges only results that do not
// depend on speed: a good token is never refused, no agent misses a renewal, berthd's memory is
// bounded, and service returns.
//
// The one rule to know: all calls go to loopback, and every loop is bounded in count and time.
package siege
