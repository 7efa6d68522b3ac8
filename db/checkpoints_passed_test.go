package db_test

import (
	"slices"
	"testing"

	"berth"
	"berth/spec"
	"berth/wire"
)

// passing is the current attempt of a job that keeps two checkpoints.
type passing struct {
	*stage
	agent   *agent
	id      berth.JobID
	attempt int
}

// newPassing returns the attempt of a new job on the machine m0, whose agent is a.
func newPassing(s *stage, a *agent) *passing {
	s.t.Helper()
	id := s.submit(func(j *spec.Job) {
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 2}
		*j = j.WithDefaults()
	})
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	return &passing{stage: s, agent: a, id: id, attempt: attempt}
}

// report reports a step of the attempt and returns the steps that the report prunes.
func (p *passing) report(step int64, edit func(*wire.CheckpointReport)) (pruned []int64) {
	p.t.Helper()
	r := wire.CheckpointReport{AgentBoot: p.agent.boot, Epoch: p.agent.epoch, Alloc: p.alloc(p.id, p.attempt),
		Job: p.id, Attempt: p.attempt, Step: step, OfAttempt: p.attempt,
		Manifest: manifestKey(p.id, p.attempt, 0, step), SHA256: "x", Bytes: 1}
	edit(&r)
	shards, err := p.db.Objects.RegisterCheckpoint(p.t.Context(), p.agent.machine, r)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, s := range shards {
		pruned = append(pruned, s.Step)
	}
	slices.Sort(pruned)
	return pruned
}

// save registers a step and checks which steps that prunes.
func (p *passing) save(step int64, prunes ...int64) {
	p.t.Helper()
	if got := p.report(step, func(*wire.CheckpointReport) {}); !slices.Equal(got, prunes) {
		p.t.Errorf("step %d prunes %v, want %v", step, got, prunes)
	}
}

// over reports that a restore did not get a step and got another one of the attempt.
func (p *passing) over(step, used int64) {
	p.t.Helper()
	p.report(step, func(r *wire.CheckpointReport) {
		r.Bad, r.Failed = "does not arrive", true
		r.PassedOverFor, r.PassedOverForAttempt = &used, p.attempt
	})
}

// restores checks the order in which a restore takes the steps.
func (p *passing) restores(want ...int64) {
	p.t.Helper()
	var got []int64
	for _, point := range p.agent.mustClaim(p.id, p.attempt).Restore {
		got = append(got, point.Step)
	}
	if !slices.Equal(got, want) {
		p.t.Errorf("restores take %v, want %v", got, want)
	}
}

// TestAPassedOverStepIsTakenLast passes over the newest step. It stays stored and verified, is no longer the first
// choice, does not count against keep, and is pruned once keep higher steps are verified.
func TestAPassedOverStepIsTakenLast(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	p := newPassing(s, a)
	p.save(2)
	p.save(5)
	p.over(5, 2)
	p.over(5, 2)
	p.restores(2, 5)
	events := one[int](s, `SELECT count(*) FROM job_events WHERE job = $1 AND kind = 'checkpoint_passed_over'`,
		p.id)
	if events != 1 {
		t.Errorf("%d events were added", events)
	}
	if list := p.job(p.id).Checkpoints; len(list) != 2 || !list[0].PassedOver || list[1].PassedOver ||
		list[0].State != berth.CheckpointVerified || list[0].Detail != "does not arrive" {
		t.Errorf("checkpoints are %+v", list)
	}
	p.save(3)
	p.restores(3, 2, 5)
	p.save(6, 2)
	p.restores(6, 3, 5)
	p.save(7, 3, 5)
	p.restores(7, 6)
}

// Two members of a gang each fail to get the other one's step. The step that a restore got last is the first choice of
// the next attempt, so a later report always changes the order.
func TestAStepThatARestoreGotIsNoLongerPassedOver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	p := newPassing(s, a)
	p.save(10)
	p.save(15)
	p.over(15, 10)
	p.restores(10, 15)
	p.over(10, 15)
	p.restores(15, 10)
	p.over(15, 10)
	p.restores(10, 15)
}

// A job goes on from a step that was passed over before. The step counts against keep again.
func TestARestoredStepThatWasPassedOverIsKept(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	p := newPassing(s, a)
	p.save(10)
	p.save(15)
	p.over(15, 10)
	p.over(10, 15)
	p.save(16, 10)
	p.restores(16, 15)
}

// The server does not rely on the step that an agent names as the one in place.
func TestAStepIsPassedOverOnlyForAVerifiedStepOfTheJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	p := newPassing(s, a)
	other := s.submit(nil)
	mustExec(t, s.pool, `INSERT INTO checkpoints (job, step, attempt, ranks, state) VALUES ($1, 40, $2, 1, 'verified')`,
		other, p.attempt)
	p.save(3)
	p.save(5)
	p.report(3, func(r *wire.CheckpointReport) { r.Bad = "sha256 differs" })
	p.save(4)
	for name, used := range map[string]struct {
		step    int64
		attempt int
	}{
		"a step of another job":      {40, p.attempt},
		"a damaged step":             {3, p.attempt},
		"a step of no attempt":       {4, 0},
		"a step of another attempt":  {4, p.attempt + 1},
		"the step that is not there": {5, p.attempt},
	} {
		p.report(5, func(r *wire.CheckpointReport) {
			r.Bad, r.Failed = "does not arrive", true
			r.PassedOverFor, r.PassedOverForAttempt = &used.step, used.attempt
		})
		if one[bool](s, `SELECT passed_over FROM checkpoints WHERE job = $1 AND step = 5`, p.id) {
			t.Fatalf("step 5 is passed over for %s", name)
		}
	}
	p.over(5, 4)
	p.restores(4, 5)
}
