package scheduler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
)

// Metrics are the scheduler's metrics, for registration with a registry. The values change
// only in the leading process; the help texts in NewMetrics explain each.
type Metrics struct {
	leader    prometheus.Gauge
	queue     prometheus.Gauge
	machines  prometheus.Gauge
	lag       prometheus.Gauge // seconds
	marked    prometheus.Gauge // machines
	silent    prometheus.Gauge
	frozen    prometheus.Gauge
	cycle     prometheus.Histogram     // seconds
	commit    prometheus.Histogram     // seconds
	waits     *prometheus.HistogramVec // seconds, by kind of request
	placed    prometheus.Counter
	refused   prometheus.Counter
	preempted prometheus.Counter
	expired   prometheus.Counter
	orphaned  prometheus.Counter
	lost      prometheus.Counter
	drift     prometheus.Counter
	repairs   *prometheus.CounterVec // by kind of repair
	forgotten prometheus.Gauge
	closed    prometheus.Counter // machines, as the two below
	returned  prometheus.Counter
	waiting   prometheus.Gauge
}

// NewMetrics returns the collectors, unregistered: tests run several schedulers in one
// process.
func NewMetrics() *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "berth", Subsystem: "scheduler",
			Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "berth", Subsystem: "scheduler",
			Name: name, Help: help})
	}
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "berth", Subsystem: "scheduler",
			Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)})
	}
	m := &Metrics{
		leader:   gauge("leader", "1 while this process leads."),
		queue:    gauge("queue_jobs", "Jobs that wait for placement, as the leader knows them."),
		machines: gauge("machines", "Machines the leader knows."),
		lag: gauge("feed_lag_seconds",
			"Time for which an open transaction has kept the leader from the newest changes."),
		marked: gauge("marked_machines",
			"Machines that get no work: wrong counters, or orders not carried out."),
		silent: gauge("silent_machines", "Silent machines that are not declared lost."),
		frozen: gauge("verdicts_frozen", "1 while so many machines are silent that none is declared lost."),
		cycle:  seconds("cycle_seconds", "Time of one scheduling pass: to read the changed rows and to plan."),
		commit: seconds("commit_seconds", "Time to commit a batch of placements."),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "berth", Subsystem: "scheduler",
			Name: "wait_seconds",
			Help: "Wait of an attempt, from the time at which it could be placed until its placement, " +
				"by its needs: cpu, gpu or gang.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 11)}, []string{"needs"}),
		placed:    counter("placements_total", "Attempts placed."),
		refused:   counter("refusals_total", "Decisions that the database refused at their commit."),
		preempted: counter("preemptions_total", "Jobs preempted for other jobs."),
		expired:   counter("queue_timeouts_total", "Jobs failed because their queue deadline passed."),
		orphaned:  counter("orphaned_jobs_total", "Jobs with members on machines that were declared lost."),
		lost:      counter("lost_machines_total", "Machines declared lost."),
		drift:     counter("drift_rows_total", "Rows in which the leader's copy was wrong at a full reload."),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "berth", Subsystem: "scheduler",
			Name: "repairs_total",
			Help: "Repairs by the reconciler, by kind."}, []string{"kind"}),
		forgotten: gauge("workflows_without_row", "Open workflows of jobs that have no row."),
		closed:    counter("maintenance_closed_total", "Machines drained for their maintenance window."),
		returned:  counter("maintenance_returned_total", "Machines returned to service after maintenance."),
		waiting: gauge("maintenance_waiting_machines",
			"Machines whose maintenance window is over and that are silent or not healthy."),
	}
	m.showZeros()
	return m
}

// showZeros creates the series of known labels, so that they are shown as 0 from the start.
func (m *Metrics) showZeros() {
	for _, needs := range []string{"cpu", "gpu", "gang"} {
		m.waits.WithLabelValues(needs)
	}
	for _, kind := range repairKinds {
		m.repairs.WithLabelValues(kind)
	}
}

// repairKinds are the kinds of repairs that did counts.
var repairKinds = []string{
	"acts_removed", "array_filled", "checkpoint_lost", "chunks_intact", "chunks_lost", "chunks_removed",
	"clock_lost", "clock_removed",
	"clock_set", "earmark", "fire_caught_up",
	"give_up_stuck", "grant_poked", "hold_ended", "hold_orphaned", "judge_dependents",
	"kill_overdue", "kill_stray", "kill_unprepared", "logs_removed",
	"objects_removed", "objects_swept", "outputs_removed", "parent_poked", "parent_tended",
	"queue_timeout", "session_expired", "unclaimed_poked", "unclaimed_settled", "unheard_poked", "unheard_settled",
	"unheard_stopped", "unsettled_poked", "unsettled_settled", "uploads_aborted", "uploads_removed", "waiter_repeated",
	"workflow_poked", "workflow_replaced", "workflow_restarted", "workflow_started", "workflow_terminated",
}

// endLead sets all gauges to 0. The next leader exports them from then on: a value of this process
// that stays would be an alert about the past.
func (m *Metrics) endLead() {
	for _, g := range []prometheus.Gauge{m.leader, m.queue, m.machines, m.lag, m.marked, m.silent, m.frozen,
		m.forgotten, m.waiting} {
		g.Set(0)
	}
}

// waited records the wait of a job from since to its start, which was just committed.
func (m *Metrics) waited(since time.Time, s berth.Start, now time.Time) {
	needs := "cpu"
	switch {
	case len(s.Ranks) > 1:
		needs = "gang"
	case len(s.Ranks) == 1 && len(s.Ranks[0].GPUs) > 0:
		needs = "gpu"
	}
	// The clocks of the database and of this process may differ; a negative wait counts as
	// none.
	m.waits.WithLabelValues(needs).Observe(max(0, now.Sub(since).Seconds()))
}

// all lists the metrics, for Describe and Collect.
func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.leader, m.queue, m.machines, m.lag, m.marked, m.silent, m.frozen, m.cycle,
		m.commit, m.waits, m.placed, m.refused, m.preempted,
		m.expired, m.orphaned, m.lost, m.drift, m.repairs, m.forgotten, m.closed, m.returned,
		m.waiting}
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
