package scheduler_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/internal/control/scheduler"
	"berth/internal/lib/overload"
)

// The leader places only as many jobs as the gate permits, and all of them once it is
// open.
func TestTheLeaderPlacesWhatTheGateLetsPass(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 1000, 0)
	gate := overload.NewGate(nil)
	gate.Observe(overload.Pressure{Paused: true})
	metrics := scheduler.NewMetrics()
	r.lead(func(o *scheduler.Options) { o.Gate, o.Metrics = gate, metrics })
	const n = 200
	ids := make([]berth.JobID, n)
	for i := range ids {
		ids[i] = r.queued(nil)
	}
	placed := func() int { return value[int](r, `SELECT count(*) FROM jobs WHERE state = 'scheduled'`) }
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	looks := func() (n uint64) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "berth_scheduler_cycle_seconds" {
				n = f.GetMetric()[0].GetHistogram().GetSampleCount()
			}
		}
		return n
	}
	before := looks()
	r.await("it has looked at all of them", func() bool { r.hint(); return looks() > before+2 })
	if got := placed(); got != 0 {
		t.Errorf("%d jobs were placed while admission was paused", got)
	}
	gate.Observe(overload.Pressure{Unsettled: 500}) // resumed, and ends wait: next to nothing may pass
	var got int
	r.await("some are placed", func() bool { got = placed(); return got > 0 })
	if got > n/2 {
		t.Errorf("%d of %d jobs were placed at once while 500 ended jobs wait", got, n)
	}
	r.await("all are placed", func() bool {
		gate.Observe(overload.Pressure{})
		return placed() == n
	})
}

// The reconciler repairs missing workflows; it must not start new work that the
// gate holds back.
func TestTheReconcilerStartsNoSubmittedJobPastTheGate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := newTemporal()
	submitted, queued := r.submitted(nil), r.queued(cpus(99))
	gate := overload.NewGate(nil)
	gate.Observe(overload.Pressure{Paused: true})
	ages := scheduler.Ages{Submitted: time.Millisecond, NoWorkflow: time.Millisecond}
	r.lead(func(o *scheduler.Options) {
		o.Gate, o.Workflows, o.ReconcileEvery, o.Ages = gate, x, 20*time.Millisecond, ages
	})
	r.await("it has compared twice", func() bool { return len(x.did(&x.described)) >= 1 && r.passes() > 6 })
	if started := x.did(&x.started); !slices.Equal(started, []berth.JobID{queued}) {
		t.Errorf("started %v while admission is paused, want %v alone", started, queued)
	}
	gate.Observe(overload.Pressure{})
	r.await("it is started after the pause", func() bool { return slices.Contains(x.did(&x.started), submitted) })
}

// A Temporal that does not answer must not keep the leader from its other repairs.
func TestTheComparisonWithTemporalIsCutShort(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := newTemporal()
	x.silent = true
	r.queued(cpus(99)) // has no workflow
	// A comparison must get as far as the call, on a slow machine too.
	ages := scheduler.Ages{Submitted: time.Millisecond, NoWorkflow: time.Millisecond, Compare: 200 * time.Millisecond}
	r.lead(func(o *scheduler.Options) { o.Workflows, o.ReconcileEvery, o.Ages = x, 20*time.Millisecond, ages })
	r.await("passes go on", func() bool { return r.passes() > 2*3 && len(x.did(&x.described)) > 1 })
	r.await("it says so", func() bool { return strings.Contains(r.log.String(), "comparison with Temporal cut short") })
}
