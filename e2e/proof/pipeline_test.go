package proof_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/spec"
)

// A pipeline's control plane is killed whole, at its beginning and in its middle. Each step still
// starts after all that it needs, and once.
func TestAPipelineOutlivesItsControlPlane(t *testing.T) {
	t.Parallel()
	const steps = 60
	s, r := onReplicas(t, 2)
	random := rand.New(rand.NewPCG(1, 0))
	p := spec.Pipeline{Kind: "pipeline", Name: "graph", Jobs: map[string]spec.Job{}}
	name := func(i int) string { return fmt.Sprintf("s%d", i) }
	for i := range steps {
		j := s.job("", "exit", "0")
		for need := range i {
			if random.IntN(i) < 2 { // two of the steps before it
				j.Needs = append(j.Needs, name(need))
			}
		}
		p.Jobs[name(i)] = j
	}
	job, _, err := s.api.SubmitPipeline(t.Context(), p, berth.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	for _, ended := range []int{3, steps / 2} {
		until(t, fmt.Sprintf("%d steps have ended", ended), func(ctx context.Context) error {
			now, err := s.api.Job(ctx, job.ID)
			if err == nil && now.Tally.Ended() < ended {
				err = fmt.Errorf("%d have", now.Tally.Ended())
			}
			return err
		})
		for _, one := range r.all {
			one.now.kill()
		}
		for _, one := range r.all {
			one.start()
		}
	}
	done := s.becomes(job.ID, berth.Succeeded)
	queued, succeeded := map[string]time.Time{}, map[string]time.Time{}
	for _, step := range done.Steps {
		if j := s.becomes(step.Job, berth.Succeeded); j.Attempt != 1 {
			t.Errorf("step %s ran %d times", step.Name, j.Attempt)
		}
		for _, e := range s.history(step.Job) {
			switch e.To {
			case berth.Queued:
				queued[step.Name] = e.At
			case berth.Succeeded:
				succeeded[step.Name] = e.At
			}
		}
	}
	if len(succeeded) != steps {
		t.Errorf("%d of %d steps have succeeded", len(succeeded), steps)
	}
	for step, jobSpec := range p.Jobs {
		i := slices.IndexFunc(jobSpec.Needs, func(need string) bool { return queued[step].Before(succeeded[need]) })
		if i >= 0 {
			t.Errorf("step %s was queued at %s, %s had not succeeded before %s", step, queued[step], jobSpec.Needs[i], succeeded[jobSpec.Needs[i]])
		}
	}
	s.wantNothingReserved()
}
