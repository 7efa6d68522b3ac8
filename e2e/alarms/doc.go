// Package alarms shows that alerts fire by their real faults. A stack of real processes is scraped by a real
// Prometheus server with the rules of deploy/prometheus, and the faults are injected one by one.
//
// For each alert the benchmark verifies four things: it is silent before the fault, it fires during the fault with
// labels that name the right thing, it is silent after the repair, and the condition that its runbook promises under
// Verification holds then. For some alerts, steps of the runbook's Diagnosis must show the cause while the alert fires
// (see look). No other alert may fire, except alerts of the same fault (alarm.also).
//
// BenchmarkAlarms (make alarms) prints one table and needs root, for small file systems that it fills. go test only
// checks the transformation of the rules, that each alert without a real fault has a reason (see absences), and that
// the runbooks contain the steps of the Diagnosis that the benchmark takes.
//
// The one rule to know: each duration of the rules from a minute to a day is a twelfth in the run (see faster), and so
// is the interval of scrapes. Nothing else of the rules changes.
package alarms
