package controlplane

import (
	"github.com/prometheus/client_golang/prometheus"

	"berth/activities/wait"
)

// waiting collects the figures of this process's waiters, for Prometheus.
type waiting struct {
	registry *wait.Registry
}

var waitersDesc = prometheus.NewDesc("berth_waiters",
	"Activities that wait for members in this process: waiting, or ending while their result is on its way to "+
		"Temporal.",
	[]string{"state"}, nil)

// Describe implements prometheus.Collector.
func (w *waiting) Describe(ch chan<- *prometheus.Desc) { ch <- waitersDesc }

// Collect implements prometheus.Collector.
func (w *waiting) Collect(ch chan<- prometheus.Metric) {
	waiting, ending := w.registry.Waiting()
	ch <- prometheus.MustNewConstMetric(waitersDesc, prometheus.GaugeValue, float64(waiting), "waiting")
	ch <- prometheus.MustNewConstMetric(waitersDesc, prometheus.GaugeValue, float64(ending), "ending")
}
