package placement

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/placement/queue"
	"berth/spec"
)

// A question about one job estimates the jobs before it and no others, and has the
// answer that a question about all jobs has.
func TestAQuestionAboutOneJobLeavesOutTheJobsBehindIt(t *testing.T) {
	t.Parallel()
	s, now := NewSnapshot(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	request := spec.Request{Members: 1, CPUMilli: 1000, MemoryMiB: 1}
	s.DefineClass("c", request)
	s.UpsertMachine(cluster.Machine{ID: "m", State: berth.MachineReady, Total: berth.Capacity{CPUMilli: 2000, MemoryMiB: 100}})
	const jobs = 1000
	name := func(i int) berth.JobID { return berth.JobID(fmt.Sprintf("j%04d", i)) }
	for i := range jobs {
		s.UpsertJob(queue.Job{ID: name(i), Class: "c", Priority: 500, TimeLimit: time.Hour, SubmittedAt: now.Add(time.Duration(i-jobs) * time.Second)})
	}
	p := Planner{Policy: queue.Policy{Backfill: 1}}
	all := p.Forecast(s, now)
	for i, estimated := range map[int]int{0: 0, 1: 0, 2: 1, 7: 6, jobs - 1: jobs - 2} { // the first two start now
		one := p.forecast(s, now, name(i))
		if len(one.expected) != estimated {
			t.Errorf("for job %d of %d, %d jobs are estimated, want %d", i, jobs, len(one.expected), estimated)
		}
		want, _ := all.Why(name(i))
		if got, ok := one.Why(name(i)); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("job %d: asked alone %+v, with all %+v", i, got, want)
		}
	}
}

// The start of a job lies between strict order and all gaps filled.
func TestAnEstimateLiesBetweenItsBounds(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if got := between(now, now.Add(4*time.Hour), now.Add(time.Hour)); got.Sub(now) != 2*time.Hour {
		t.Errorf("between 4 h and 1 h: %s", got.Sub(now))
	}
	if got := between(now, now.Add(4*time.Hour), now); !got.Equal(now) {
		t.Errorf("between 4 h and now: %s", got.Sub(now))
	}
	if got := between(now, time.Time{}, now); !got.IsZero() {
		t.Errorf("with an unknown bound: %s", got)
	}
}
