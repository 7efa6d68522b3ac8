package explain

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/placement"
)

// maxPromises bounds the promises of a process; further estimates are not followed.
const maxPromises = 10_000

// leastWait is the wait below which estimates count as equal: a wait of five seconds instead
// of one is no broken promise.
const leastWait = time.Minute

// promises compares the first estimated start of each job, as this process has shown it, with
// the start that followed. Only jobs that still waited in one reading and run in a later one
// count; a job that is canceled has broken no promise.
type promises struct {
	open   map[berth.JobID]promise
	ratios *prometheus.HistogramVec
}

// promise is an estimate that users may have seen.
type promise struct {
	at    time.Time // the database's clock at the reading
	start time.Time
	by    string // reserved, limits or run_times
}

// newPromises returns promises with a metric that has all its series from the start.
func newPromises(r prometheus.Registerer) *promises {
	p := &promises{open: map[berth.JobID]promise{}, ratios: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "berth_start_estimate_ratio",
		Help: "Wait of a job over the wait that was estimated when the job was first explained, each at least a " +
			"minute; by the source of the estimate (reserved, limits, run_times).",
		Buckets: []float64{.1, .25, .5, .8, 1.25, 2, 4, 10},
	}, []string{"by"})}
	for _, by := range []string{"reserved", "limits", "run_times"} {
		p.ratios.WithLabelValues(by)
	}
	if r != nil {
		r.MustRegister(p.ratios)
	}
	return p
}

// note takes the estimates of a forecast. A job keeps its first one.
func (p *promises) note(list []placement.Estimate, now time.Time) {
	for _, e := range list {
		if _, known := p.open[e.Job]; known || e.Start.IsZero() || len(p.open) >= maxPromises {
			continue
		}
		by := "limits"
		switch {
		case e.Reserved:
			by = "reserved"
		case e.Guess:
			by = "run_times"
		}
		p.open[e.Job] = promise{now, e.Start, by}
	}
}

// keep observes the promises to jobs that have started by now, and drops those to jobs that wait
// no longer.
func (p *promises) keep(s *placement.Snapshot, now time.Time) {
	for id, x := range p.open {
		if _, waits := s.Job(id); waits {
			continue
		}
		delete(p.open, id)
		if r, runs := s.Running(id); runs {
			actual, promised := max(r.StartedAt.Sub(x.at), leastWait), max(x.start.Sub(x.at), leastWait)
			p.ratios.WithLabelValues(x.by).Observe(actual.Seconds() / promised.Seconds())
		}
	}
}
