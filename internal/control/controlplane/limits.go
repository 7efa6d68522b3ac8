package controlplane

import (
	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/lib/overload"
)

// limits exports the limits of this process's calls to Prometheus: one limiter per
// dependency, the budgets of repeats, and the gate of new work.
type limits struct {
	limiters []*overload.Limiter
	repeats  map[string]*overload.Budget // by the name of the dependency
	gate     *overload.Gate
}

var (
	limitDesc = prometheus.NewDesc("berth_dependency_limit", "Calls that may be in flight to a dependency.",
		[]string{"dependency"}, nil)
	inFlightDesc = prometheus.NewDesc("berth_dependency_in_flight", "Calls in flight to a dependency.",
		[]string{"dependency"}, nil)
	latencyDesc = prometheus.NewDesc("berth_dependency_latency_seconds",
		"Recent latency of a dependency, by which its limit and deadlines are set.", []string{"dependency"}, nil)
	queuedDesc = prometheus.NewDesc("berth_dependency_queued", "Calls that wait for the limit, by class.",
		[]string{"dependency", "class"}, nil)
	callsDesc = prometheus.NewDesc("berth_dependency_calls_total", "Calls made under the limit, by class.",
		[]string{"dependency", "class"}, nil)
	rejectedDesc = prometheus.NewDesc("berth_dependency_rejected_total",
		"Calls that were not made: too many waited, or they waited too long.", []string{"dependency", "class"}, nil)

	// Repeats of failed calls.
	budgetDesc = prometheus.NewDesc("berth_retry_budget", "Repeats of failed calls that may be made now.",
		[]string{"dependency"}, nil)
	repeatsDesc = prometheus.NewDesc("berth_retries_total", "Repeats of failed calls that were made.",
		[]string{"dependency"}, nil)
	refusedDesc = prometheus.NewDesc("berth_retries_refused_total",
		"Repeats of failed calls that were put off because the budget was spent.", []string{"dependency"}, nil)

	// The gate of new work; see overload.Gate.
	pausedDesc = prometheus.NewDesc("berth_admission_paused",
		"1 while an operator has paused the start of new work.", nil, nil)
	unsettledDesc = prometheus.NewDesc("berth_admission_unsettled",
		"Jobs whose processes ended over a second ago and that are not settled.", nil, nil)
	rateDesc = prometheus.NewDesc("berth_admission_rate",
		"Starts per second that are allowed while ended jobs wait to be settled; +Inf: no limit.", []string{"at"}, nil)
)

// Describe implements prometheus.Collector.
func (m *limits) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{limitDesc, inFlightDesc, latencyDesc, queuedDesc, callsDesc, rejectedDesc,
		budgetDesc, repeatsDesc, refusedDesc, pausedDesc, unsettledDesc, rateDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It reads each limiter, budget and gate once, so that the
// figures of one scrape belong together.
func (m *limits) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, l := range m.limiters {
		s := l.Stats()
		gauge(limitDesc, float64(s.Limit), l.Name())
		gauge(inFlightDesc, float64(s.InFlight), l.Name())
		gauge(latencyDesc, s.Typical.Seconds(), l.Name())
		for _, c := range overload.Classes() {
			gauge(queuedDesc, float64(s.Queued[c]), l.Name(), c.String())
			counter(callsDesc, s.Calls[c], l.Name(), c.String())
			counter(rejectedDesc, s.Rejected[c], l.Name(), c.String())
		}
	}
	for name, b := range m.repeats {
		s := b.Stats()
		gauge(budgetDesc, s.Tokens, name)
		counter(repeatsDesc, s.Repeats, name)
		counter(refusedDesc, s.Refused, name)
	}
	// Prometheus has no booleans.
	p, paused := m.gate.Pressure(), 0.0
	if p.Paused {
		paused = 1
	}
	gauge(pausedDesc, paused)
	gauge(unsettledDesc, float64(p.Unsettled))
	gauge(rateDesc, m.gate.Starts.Stats().Rate, "start")
	gauge(rateDesc, m.gate.Placements.Stats().Rate, "placement")
}
