package db_test

import (
	"testing"

	"berth"
	"berth/spec"
	"berth/wire"
)

// measured registers a step with a value of the metric, from a member of a job.
func (s *stage) measured(a *agent, id berth.JobID, step int64, member int, value *float64) {
	s.t.Helper()
	attempt := s.job(id).Attempt
	alloc := one[int64](s, `SELECT id FROM allocations WHERE job = $1 AND attempt = $2 AND rank = $3`, id, attempt, member)
	_, err := s.db.Objects.RegisterCheckpoint(s.t.Context(), a.machine, wire.CheckpointReport{AgentBoot: a.boot,
		Epoch: a.epoch, Alloc: berth.AllocationID(alloc), Job: id, Attempt: attempt, OfAttempt: attempt, Rank: member,
		Step: step, Manifest: manifestKey(id, attempt, member, step), SHA256: "x", Bytes: 1, MetricValue: value})
	if err != nil {
		s.t.Fatal(err)
	}
}

func TestTheBestStepsAreKeptNextToTheNewest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		best *spec.KeepBest
		want string
	}{
		"none":       {nil, "8"},
		"greatest":   {&spec.KeepBest{Metric: "a", Mode: spec.BestIsMax}, "8 4"}, // of equal values, the newer
		"two":        {&spec.KeepBest{Metric: "a", Mode: spec.BestIsMax, Count: 2}, "8 4 2"},
		"smallest":   {&spec.KeepBest{Metric: "a", Mode: spec.BestIsMin}, "8 6"},
		"all of two": {&spec.KeepBest{Metric: "a", Mode: spec.BestIsMin, Count: 20}, "8 7 6 5 4 3 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			a, _ := s.register("host1", "agent1")
			id := s.submit(func(j *spec.Job) { saves(1)(j); j.Checkpoint.Best = c.best })
			a.mustClaim(id, s.place(id, "m0"))
			for step, v := range []float64{0, 0, 0.9, 0.5, 0.9, 0.1, -3, 0.2, 0.3} {
				switch step {
				case 0:
				case 1:
					s.measured(a, id, 1, 0, nil)
				default:
					s.measured(a, id, int64(step), 0, &v)
				}
			}
			if got := s.verifiedSteps(id); got != c.want {
				t.Errorf("verified are %s, want %s", got, c.want)
			}
		})
	}
}

// The store may only have been slow, so a step that a restore passed over is still the best one.
func TestAPassedOverStepStaysStoredAsTheBest(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	best := spec.KeepBest{Metric: "a", Mode: spec.BestIsMax}
	id := s.submit(func(j *spec.Job) { saves(1)(j); j.Checkpoint.Best = &best })
	a.mustClaim(id, s.place(id, "m0"))
	s.measured(a, id, 4, 0, new(0.9))
	mustExec(t, s.pool, `UPDATE checkpoints SET passed_over = true WHERE job = $1`, id)
	s.measured(a, id, 5, 0, new(0.1))
	s.measured(a, id, 6, 0, new(0.2))
	if got := s.verifiedSteps(id); got != "6 4" {
		t.Errorf("verified are %s", got)
	}
}

// The value of a gang's step is that of its lowest member with a value, whichever is first.
func TestAGangsStepHasTheValueOfItsLowestMember(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(func(j *spec.Job) {
		saves(2)(j)
		j.Members = 2
		j.Checkpoint.Best = &spec.KeepBest{Metric: "a", Mode: spec.BestIsMin}
	})
	s.place(id, "m0", "m0")
	mustExec(t, s.pool, `UPDATE allocations SET state = 'active' WHERE job = $1`, id) // as claims do
	s.measured(a, id, 5, 1, new(11.0))
	s.measured(a, id, 5, 0, new(10.0))
	s.measured(a, id, 6, 1, new(9.0))
	s.measured(a, id, 6, 0, nil)
	list := s.job(id).Checkpoints
	if c := list[1]; c.Metric == nil || *c.Metric != 10 || c.Best != 0 {
		t.Errorf("checkpoint is %+v, want the value 10 of member 0", c)
	}
	if c := list[0]; c.Metric == nil || *c.Metric != 9 || c.Best != 1 {
		t.Errorf("checkpoint is %+v, want the value 9 of member 1, and the best", c)
	}
}
