// Package rig runs Berth as separate processes for load tests: PostgreSQL and Temporal in one
// berth-dev, one berthd or several behind one address, and agents over container engines in
// memory. It also measures CPU and memory by process, the age of machine leases, and the time for
// which jobs are shown as running after their process has ended. Packages scale and siege are its
// users.
//
// A stack runs programs built from this repository, or the programs in a folder, which may be of
// an older commit. Flags that changed between versions are passed only where the program's help
// lists them, so one harness measures both.
//
// Load comes from a helper, a copy of the test binary in a process of its own. Its CPU share is
// fixed by a control group where the host allows that, so the cost of making load does not depend
// on the servers. Latencies come from another helper, the probe, and count from when a call was
// due. A Comparison judges the p99 of a probe under load by its p99 at rest.
//
// With Options.Apart each service has a control group of its own, all of equal weight: every
// berthd, Temporal, PostgreSQL, the agents together, the probe. So do systemd's units. Without
// groups, Linux gives each PostgreSQL backend, which leads a session, as much CPU as all other
// processes of the stack together (docs/adr/0116-load-harness-services-in-groups.md).
//
// The one rule to know: everything listens and dials on loopback, and every process dies with the
// test binary that started it.
package rig
