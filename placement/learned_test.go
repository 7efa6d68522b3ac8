package placement_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// learner returns a Learned that has seen jobs end, and the time after it.
func learner(ended ...placement.Ended) (*placement.Learned, time.Time) {
	l := placement.NewLearned()
	for _, e := range ended {
		l.Ended(e)
	}
	now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	l.Begin(placement.NewSnapshot(), now)
	return l, now
}

func TestJobsSubmittedTogetherAreTakenToLastAlike(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	morning, noon := now.Add(-24*time.Hour), now.Add(-18*time.Hour)
	l, _ := learner(
		placement.Ended{SubmittedAt: morning, GPUs: 8, Ran: 40 * time.Hour},
		placement.Ended{SubmittedAt: noon, GPUs: 8, Ran: time.Minute},
	)
	long := l.Waiting(placement.Job{SubmittedAt: morning.Add(time.Minute)}, 8)
	short := l.Waiting(placement.Job{SubmittedAt: noon.Add(time.Minute)}, 8)
	if short >= long {
		t.Errorf("rank %g beside a job of a minute, %g beside one of 40 hours: want the first ahead", short, long)
	}
}

func TestWhatIsAboutToEndLikeItsKinComesFirst(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var kin []placement.Ended
	for range 5 {
		kin = append(kin, placement.Ended{SubmittedAt: at, GPUs: 8, Ran: 40 * time.Hour})
	}
	l, _ := learner(kin...)
	fresh := l.Waiting(placement.Job{SubmittedAt: at}, 8)
	almost := l.Waiting(placement.Job{SubmittedAt: at, Done: 39 * time.Hour}, 8)
	if almost >= fresh {
		t.Errorf("rank %g after 39 of 40 hours, %g before any: want the first ahead", almost, fresh)
	}
}

func TestOneThatNobodyIsLikeIsTriedFirst(t *testing.T) {
	t.Parallel()
	l, now := learner()
	fresh := l.Waiting(placement.Job{SubmittedAt: now}, 8)
	old := l.Waiting(placement.Job{SubmittedAt: now.Add(-100 * time.Hour), Done: 90 * time.Hour}, 8)
	if fresh >= old {
		t.Errorf("rank %g for a new job, %g for one that has run 90 hours: want the new one ahead", fresh, old)
	}
}

func TestRunningJobsDoNotTakeTurns(t *testing.T) {
	t.Parallel()
	l, now := learner()
	waits := l.Waiting(placement.Job{ID: "a", SubmittedAt: now, Done: time.Hour}, 8)
	runs := l.Running(placement.Running{Job: "b", SubmittedAt: now, StartedAt: now.Add(-time.Hour)}, 8)
	if runs >= waits {
		t.Errorf("rank %g for one that runs, %g for its like that waits: want the running one ahead", runs, waits)
	}
}

func TestTenantsDoNotLearnFromEachOther(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	l, _ := learner(placement.Ended{Tenant: "a", SubmittedAt: now, GPUs: 8, Ran: 100 * time.Hour})
	a := l.Waiting(placement.Job{Tenant: "a", SubmittedAt: now}, 8)
	b := l.Waiting(placement.Job{Tenant: "b", SubmittedAt: now}, 8)
	if b >= a {
		t.Errorf("rank %g of a tenant without history, %g of one with long jobs: want the first ahead", b, a)
	}
}

func TestLearnedForgetsTheOldest(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	l := placement.NewLearned()
	l.Ended(placement.Ended{SubmittedAt: now, GPUs: 8, Ran: 1000 * time.Hour})
	for i := range 4096 {
		l.Ended(placement.Ended{SubmittedAt: now.Add(-time.Duration(i) * time.Hour), GPUs: 8, Ran: time.Minute})
	}
	l.Begin(placement.NewSnapshot(), now)
	same := placement.NewLearned()
	for i := range 4096 {
		same.Ended(placement.Ended{SubmittedAt: now.Add(-time.Duration(i) * time.Hour), GPUs: 8, Ran: time.Minute})
	}
	same.Begin(placement.NewSnapshot(), now)
	j := placement.Job{SubmittedAt: now}
	if got, want := l.Waiting(j, 8), same.Waiting(j, 8); got/want > 1.000001 || got/want < 0.999999 {
		t.Errorf("rank %g, want %g as if the oldest had never been", got, want)
	}
}

// TestLearnedForgetsNoChange: after any jobs have come, run, waited and ended, the ranks are those of
// a Learned that sees all of it for the first time.
func TestLearnedForgetsNoChange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
		s, kept := placement.NewSnapshot(), placement.NewLearned()
		s.DefineClass("one", spec.Request{Members: 1, GPUs: 1, GPUMilli: 1000})
		tenants := []berth.TenantID{"a", "b"}
		var ended []placement.Ended
		var jobs []placement.Job
		for step := range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 7200).Draw(t, "pause")) * time.Second)
			j := placement.Job{ID: berth.JobID(fmt.Sprint(step)), Class: "one", Version: 1,
				Tenant: rapid.SampledFrom(tenants).Draw(t, "tenant"), SubmittedAt: now,
				Done: time.Duration(rapid.IntRange(0, 3).Draw(t, "done")) * time.Hour}
			if n := rapid.IntRange(0, 2).Draw(t, "preempted"); j.Done > 0 {
				j.PreemptedFor = make([]berth.JobID, n)
			}
			jobs = append(jobs, j)
			s.UpsertJob(j)
			i := rapid.IntRange(0, len(jobs)-1).Draw(t, "which")
			switch x := jobs[i]; rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				s.RemoveJob(x.ID)
				s.UpsertRunning(placement.Running{Job: x.ID, Tenant: x.Tenant, Class: "one", Version: 1,
					SubmittedAt: x.SubmittedAt, StartedAt: now, Done: x.Done})
			case 1:
				s.RemoveJob(x.ID)
				s.RemoveRunning(x.ID)
				e := placement.Ended{Tenant: x.Tenant, GPUs: 1, SubmittedAt: x.SubmittedAt, Ran: x.Done + time.Minute}
				ended = append(ended, e)
				kept.Ended(e)
			}
			first := placement.NewLearned()
			for _, e := range ended {
				first.Ended(e)
			}
			kept.Begin(s, now)
			first.Begin(s, now)
			s.EachJob(func(j placement.Job) {
				if got, want := kept.Waiting(j, 4), first.Waiting(j, 4); got != want {
					t.Fatalf("step %d: job %s has rank %g, want %g", step, j.ID, got, want)
				}
			})
			s.EachRunning(func(r placement.Running) {
				if got, want := kept.Running(r, 4), first.Running(r, 4); got != want {
					t.Fatalf("step %d: running job %s has rank %g, want %g", step, r.Job, got, want)
				}
			})
		}
	})
}

// TestRankersSortLikeTheFirstTime: a queue that a Ranker has sorted before gives the plan of a queue
// that it sorts for the first time.
func TestRankersSortLikeTheFirstTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
		kept := placement.NewSnapshot()
		request := spec.Request{Members: 1, GPUs: 1, GPUMilli: 1000}
		kept.DefineClass("one", request)
		var jobs []placement.Job
		ranker := func() placement.Ranker { return &placement.Patient{Patience: time.Minute} }
		if rapid.Bool().Draw(t, "learned") {
			ranker = func() placement.Ranker { return placement.NewLearned() }
		}
		own := placement.Planner{Estimate: true, Policy: placement.Policy{Order: placement.SRSF, Ranker: ranker()}}
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3600).Draw(t, "pause")) * time.Second)
			j := placement.Job{ID: berth.JobID(fmt.Sprint(step)), Class: "one", Version: 1, SubmittedAt: now,
				EligibleAt: now.Add(time.Duration(rapid.IntRange(0, 600).Draw(t, "eligible")) * time.Second),
				Done:       time.Duration(rapid.IntRange(0, 2).Draw(t, "done")) * time.Hour,
				Remaining:  time.Duration(rapid.IntRange(1, 3).Draw(t, "left")) * time.Hour}
			jobs = append(jobs, j)
			kept.UpsertJob(j)
			first := placement.NewSnapshot()
			first.DefineClass("one", request)
			for _, j := range jobs {
				first.UpsertJob(j)
			}
			other := own
			other.Policy.Ranker = ranker()
			if diff := cmp.Diff(other.Plan(first, now).Estimates, own.Plan(kept, now).Estimates); diff != "" {
				t.Fatalf("step %d (-first +kept):\n%s", step, diff)
			}
		}
	})
}

func TestPatientCountsAge(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	p := &placement.Patient{Patience: time.Hour}
	p.Begin(nil, now)
	fresh := p.Waiting(placement.Job{SubmittedAt: now, Remaining: time.Hour}, 1)
	for _, c := range []struct {
		age  time.Duration
		left time.Duration
	}{{time.Hour, 2 * time.Hour}, {9 * time.Hour, 10 * time.Hour}} {
		old := p.Waiting(placement.Job{SubmittedAt: now.Add(-c.age), Remaining: c.left}, 1)
		if old/fresh > 1.000001 || old/fresh < 0.999999 {
			t.Errorf("%s left after %s rank %g, want as a new one of an hour: %g", c.left, c.age, old, fresh)
		}
	}
	if runs := p.Running(placement.Running{SubmittedAt: now, StartedAt: now.Add(-time.Hour), Remaining: 2 * time.Hour}, 1); runs != fresh {
		t.Errorf("rank %g of one with an hour of two to run, want %g", runs, fresh)
	}
}

func TestAdaptiveWeighsGPUsByTheQueue(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	wide, narrow := placement.Job{Remaining: time.Hour}, placement.Job{Remaining: 3 * time.Hour}
	for _, c := range []struct {
		waiting int
		want    bool // the wide short job comes first
	}{{0, true}, {1000, false}} {
		s := placement.NewSnapshot()
		s.DefineClass("one", spec.Request{Members: 1, GPUs: 1, GPUMilli: 1000})
		for i := range c.waiting {
			s.UpsertJob(placement.Job{ID: berth.JobID(fmt.Sprint(i)), Class: "one", Version: 1})
		}
		p := &placement.Adaptive{}
		p.Begin(s, now)
		if got := p.Waiting(wide, 8) < p.Waiting(narrow, 1); got != c.want {
			t.Errorf("with %d waiting jobs a job of 8 GPUs and an hour comes before one of 1 GPU and three: %v, want %v",
				c.waiting, got, c.want)
		}
		running := placement.Running{StartedAt: now.Add(-time.Hour), Remaining: 2 * time.Hour}
		if got := p.Running(running, 8); got != p.Waiting(wide, 8) {
			t.Errorf("rank %g of a running job with an hour left, want %g", got, p.Waiting(wide, 8))
		}
	}
}
