package api

import (
	"cmp"
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/control/explain"
)

// dependencies is a collector that exports the checks of /readyz, which probes and scrapes share.
type dependencies struct {
	pages *pageHandlers
}

var upDesc = prometheus.NewDesc("berth_dependency_up",
	"1 if a dependency of this process answered its last check, else 0: postgres, temporal, object_store.",
	[]string{"dependency"}, nil)

// dependencyNames are the values of the label for names of checks that differ from them.
var dependencyNames = map[string]string{"database": "postgres", "blob store": "object_store"}

// Describe implements prometheus.Collector.
func (d *dependencies) Describe(ch chan<- *prometheus.Desc) { ch <- upDesc }

// Collect implements prometheus.Collector. It waits for a check of up to readyTimeout.
func (d *dependencies) Collect(ch chan<- prometheus.Metric) {
	for name, answer := range d.pages.readiness.get(context.Background(), d.pages.checkAll).Checks {
		up := 0.0
		if answer == checkPassed {
			up = 1
		}
		ch <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up, cmp.Or(dependencyNames[name], name))
	}
}

// waitingReasons is a collector that counts waiting jobs by the first reason of their
// explanation. A scrape reads the latest board that lists and explanations of this process share, so
// it makes at most one plan, and shows one that took longer than a scrape may take.
type waitingReasons struct {
	explainer *explain.Explainer
}

var waitingDesc = prometheus.NewDesc("berth_waiting_jobs",
	"Jobs that wait for placement, by the first reason; ready: nothing keeps the job from starting.",
	[]string{"reason"}, nil)

var waitingAgeDesc = prometheus.NewDesc("berth_waiting_jobs_age_seconds",
	"Age of the numbers of berth_waiting_jobs.", nil, nil)

// knownReasons are exported as 0 while no job has the reason.
var knownReasons = []string{
	"behind", "engine_silent", "held", "maintenance", "no_machines", "no_room", "not_eligible", "overdue", "parallel",
	"quota_borrow", "quota_budget", "quota_limit", "quota_max_running", "ready", "reserved", "stopping",
	"unsatisfiable",
}

// Describe implements prometheus.Collector.
func (w *waitingReasons) Describe(ch chan<- *prometheus.Desc) {
	ch <- waitingDesc
	ch <- waitingAgeDesc
}

// Collect leaves the metrics out if no board could be made for minutes.
func (w *waitingReasons) Collect(ch chan<- prometheus.Metric) {
	board := w.explainer.Latest(scraping(), scrapeTimeout)
	if board == nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(waitingAgeDesc, prometheus.GaugeValue, board.Age().Seconds())
	counts := map[string]int{}
	for _, reason := range knownReasons {
		counts[reason] = 0
	}
	for _, job := range board.Jobs {
		reason := reasonOf(job)
		if reason.Quota != "" {
			reason.Code += "_" + reason.Quota
		}
		counts[reason.Code]++
	}
	for reason, n := range counts {
		ch <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(n), reason)
	}
}
