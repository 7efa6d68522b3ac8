package placement_test

import (
	"slices"
	"testing"
	"time"

	"berth"
	"berth/placement"
)

// victimsOf lists the jobs that a plan stops.
func victimsOf(p placement.Plan) []berth.JobID {
	var list []berth.JobID
	for _, o := range p.Preempt {
		list = append(list, o.Job)
	}
	return list
}

// TestALaterJobUsesWhatAVictimReleasesBeside checks that a job stops no other if the victim of an earlier job of the same
// plan releases enough for both.
func TestALaterJobUsesWhatAVictimReleasesBeside(t *testing.T) {
	t.Parallel()
	s := newNominated(placement.Running{}, placement.Running{}, placement.Running{Job: "p", Priority: 100, Preemptible: true})
	gang := placement.Running{Job: "v", Tenant: "x", Version: 1, Attempt: 1, Priority: 100, Preemptible: true, StartedAt: noon.Add(-time.Minute)}
	for i := range 2 {
		m, _ := s.Machine(gpuOf(i).Machine)
		s.UpsertMachine(occupy(m, gpuOf(i)))
		gang.Ranks = append(gang.Ranks, gpuOf(i))
	}
	s.UpsertRunning(gang)
	s.waits("j1", 1, 900)
	s.waits("j2", 1, 800)
	plan, _ := s.plan()
	if got := victimsOf(plan); !slices.Equal(got, []berth.JobID{"v"}) {
		t.Errorf("the plan stops %v, want the gang alone", got)
	}
}

// TestALaterJobLeavesNominatedCapacity checks that a job does not wait for capacity of a stopping job that an earlier job
// of the same plan has got.
func TestALaterJobLeavesNominatedCapacity(t *testing.T) {
	t.Parallel()
	running := []placement.Running{stopping("s", 5*time.Minute)}
	for _, id := range []berth.JobID{"p1", "p2"} {
		running = append(running, placement.Running{Job: id, Priority: 100, Preemptible: true})
	}
	s := newNominated(running...)
	s.waits("j1", 2, 900)
	s.waits("j2", 1, 800)
	plan, _ := s.plan()
	if got := victimsOf(plan); len(got) != 2 {
		t.Errorf("the plan stops %v, want p1 and p2", got)
	}
}
