package placement_test

import (
	"testing"
	"time"

	"berth/placement"
)

// planWith returns the plan with that many reserved starts.
func planWith(s *nominated, backfill int) placement.Plan {
	p := placement.Policy{Order: placement.Priority, BandWidth: 100, Backfill: backfill, Preempt: true}
	return placement.Planner{Policy: p}.Plan(s.Snapshot, noon)
}

// TestAJobThatNeedsNoVictimsAnyLongerKeepsItsPlaces checks that a job which gets room from its own nominations and a
// stopping job has that room nominated: otherwise a lower job preempts others and takes it.
func TestAJobThatNeedsNoVictimsAnyLongerKeepsItsPlaces(t *testing.T) {
	t.Parallel()
	s := newNominated(placement.Running{}, stopping("u", 5*time.Minute), placement.Running{Job: "p", Priority: 100, Preemptible: true})
	s.waits("g", 2, 500)
	s.nominate("g", 0, "", nil)
	s.waits("j2", 2, 400)
	for _, m := range planWith(s, 0).Nominate {
		if m.For == "j2" {
			t.Errorf("%s of %q is nominated for j2", m.Machine, m.Victim)
		}
	}
}
