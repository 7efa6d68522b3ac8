package autoscale

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/db"
	"berth/internal/control/cloud"
)

// Metrics are the metrics of machines of clouds, for registration with a registry. The launches and
// breakers change only in the leading process.
type Metrics struct {
	launches  *prometheus.GaugeVec   // by state
	ages      *prometheus.GaugeVec   // seconds, by state
	breakers  *prometheus.GaugeVec   // by scope
	lasting   *prometheus.GaugeVec   // by scope
	decisions *prometheus.CounterVec // by kind
	sent      prometheus.Histogram   // seconds
	missing   prometheus.Gauge       // machines of min_machines that are not in service
}

// NewMetrics returns the collectors, unregistered. All series exist from the start.
func NewMetrics() *Metrics {
	gauge := func(name, help, label string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "berth", Subsystem: "cloud", Name: name,
			Help: help}, []string{label})
	}
	m := &Metrics{
		launches: gauge("launches", "Launches that are not settled, by state, as the leader knows them.", "state"),
		ages: gauge("launch_state_seconds",
			"Longest time for which a launch that is not settled has been in its state; 0 without one.", "state"),
		breakers: gauge("breakers_open", "Scopes of clouds that are not tried now after a refusal, by scope.", "scope"),
		lasting: gauge("breakers_lasting",
			"Scopes of configured clouds that are closed, or tried again by one launch, until an admin corrects "+
				"credentials, rights, settings, or the access to the cloud.",
			"scope"),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "berth", Subsystem: "cloud",
			Name: "decisions_total", Help: "Decisions of the scaler, by kind: launch (machines), refused (requests), " +
				"drain, undrain and stop (machines)."}, []string{"kind"}),
		sent: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "berth", Subsystem: "cloud",
			Name: "launch_delay_seconds", Help: "Time from the request of a launch to its first call of the cloud.",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 12)}),
	}
	m.missing = prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "berth", Subsystem: "cloud",
		Name: "machines_missing",
		Help: "Machines that min_machines of burst policies keeps and that are not in service, also while they boot."})
	for _, s := range states {
		m.launches.WithLabelValues(string(s))
		m.ages.WithLabelValues(string(s))
	}
	for _, s := range cloud.Scopes {
		m.breakers.WithLabelValues(string(s))
		m.lasting.WithLabelValues(string(s))
	}
	for _, k := range []string{"launch", "refused", "drain", "undrain", "stop"} {
		m.decisions.WithLabelValues(k)
	}
	return m
}

// states are the states of launches that are not settled.
var states = []cloud.LaunchState{cloud.LaunchRequested, cloud.LaunchSent, cloud.LaunchUnresolved, cloud.LaunchRunning,
	cloud.LaunchServing, cloud.LaunchDraining, cloud.LaunchTerminating}

// Sent observes the time from the request of a launch to its first call of the cloud.
func (m *Metrics) Sent(d time.Duration) { m.sent.Observe(max(0, d.Seconds())) }

// show sets the gauges.
func (m *Metrics) show(counts map[cloud.LaunchState]db.LaunchCount, breakers []db.ProbedBreaker, now time.Time) {
	for _, s := range states {
		m.launches.WithLabelValues(string(s)).Set(float64(counts[s].N))
		m.ages.WithLabelValues(string(s)).Set(counts[s].Oldest.Seconds())
	}
	open, lasting := map[cloud.Scope]int{}, map[cloud.Scope]int{}
	for _, b := range breakers {
		if b.Open(now) {
			open[b.Scope]++
		}
		if b.Lasting(now) || b.Probing && b.Lasting(b.Until) {
			lasting[b.Scope]++
		}
	}
	for _, s := range cloud.Scopes { // a later version may write other scopes
		m.breakers.WithLabelValues(string(s)).Set(float64(open[s]))
		m.lasting.WithLabelValues(string(s)).Set(float64(lasting[s]))
	}
}

// reset ends the gauges of a process that no longer leads.
func (m *Metrics) reset() {
	m.show(nil, nil, time.Time{})
	m.missing.Set(0)
}

// all lists the metrics, for Describe and Collect.
func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.launches, m.ages, m.breakers, m.lasting, m.decisions, m.sent,
		m.missing}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
}
