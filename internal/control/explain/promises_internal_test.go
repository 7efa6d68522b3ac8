package explain

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/placement"
	"berth/spec"
)

// The first estimate of a job is compared with its start. A job that ends without a start, and a
// job without an estimate, count for nothing.
func TestPromisesAreComparedWithStarts(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	p := newPromises(r)
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	s := placement.NewSnapshot()
	s.DefineClass("c", spec.Request{})
	waits := func(id berth.JobID) { s.UpsertJob(placement.Job{ID: id, Tenant: "a", Class: "c", SubmittedAt: now}) }
	for _, id := range []berth.JobID{"early", "late", "canceled", "unknown"} {
		waits(id)
	}
	p.note([]placement.Estimate{
		{Job: "early", Start: now.Add(40 * time.Minute), Reserved: true},
		{Job: "late", Start: now.Add(10 * time.Minute), Guess: true},
		{Job: "canceled", Start: now.Add(time.Minute)},
		{Job: "unknown"},
	}, now)
	p.note([]placement.Estimate{{Job: "late", Start: now.Add(time.Hour), Guess: true}}, now.Add(time.Minute)) // the first counts
	p.keep(s, now.Add(2*time.Minute))
	if len(p.open) != 3 {
		t.Fatalf("%d promises while all wait", len(p.open))
	}
	for id, after := range map[berth.JobID]time.Duration{"early": 20 * time.Minute, "late": 30 * time.Minute} {
		s.RemoveJob(id)
		s.UpsertRunning(placement.Running{Job: id, Tenant: "a", Class: "c", StartedAt: now.Add(after)})
	}
	s.RemoveJob("canceled")
	p.keep(s, now.Add(time.Hour))
	if len(p.open) != 0 {
		t.Errorf("%d promises are left", len(p.open))
	}
	got := map[string]float64{}
	families, err := r.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "berth_start_estimate_ratio" {
		t.Fatalf("metrics %v, %v", families, err)
	}
	for _, m := range families[0].GetMetric() {
		if h := m.GetHistogram(); h.GetSampleCount() > 0 {
			got[m.GetLabel()[0].GetValue()] = h.GetSampleSum() / float64(h.GetSampleCount())
		}
	}
	if len(got) != 2 || got["reserved"] != 0.5 || got["run_times"] != 3 || len(families[0].GetMetric()) != 3 {
		t.Errorf("ratios are %v", got)
	}
}
