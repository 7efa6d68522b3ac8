// Package scale measures a control plane with hundreds of machines and thousands of jobs, on the
// programs as they are shipped: PostgreSQL and Temporal in one process, berthd in another, and
// one process per agent, each over a container engine in memory.
//
// BenchmarkScale (make bench-scale) joins 300 machines, starts 1,000 and 5,000 long jobs, submits
// single jobs next to them, floods the cluster with short jobs, and submits five times as fast as
// jobs can start. It prints one table with the bounds that apply and fails if a figure is
// outside. Rates are compared with bare workflows of one activity in the same run, because
// absolute rates are worth no more than the machine on which they were taken. A small tenant's
// submits under overload are compared with its submits at rest, before the load and after it, and
// the table has the interval of the ratio. Each service has a control group of its own, as systemd
// gives it; where no group can bound the generator, the overload is not measured.
//
// BenchmarkReplicas (make bench-replicas) freezes, cuts off, drains, restarts and kills the
// replica that holds the waiters of thousands of running jobs, and judges single jobs, ends and
// attempts meanwhile.
//
// The same parts run in a small form in go test. That form judges only results that do not depend
// on speed: no job is lost or runs twice, no machine falls silent, everything settles, and the
// cluster serves again once the load has stopped.
//
// The flag -programs names a folder with programs of another commit, so that one harness on one
// machine compares two versions.
package scale
