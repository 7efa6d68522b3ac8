// Package watching holds deploy/prometheus and deploy/grafana to the metrics that Berth exports,
// and to the runbooks of docs/operate/alerts.md.
//
// The tests run promtool, which is part of Debian's package prometheus; scripts/setup.sh installs
// it. Each alert has a case in which it fires and one in which it is silent (cases_test.go). Each
// case also states that no other alert fires in it.
//
// The one rule to know: a metric, a label or a known value of a label that a rule or a dashboard
// names must be in docs/reference/metrics.md, which a test generates from the code.
package watching
