package proof_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/docker/docker/api/types/events"
	"golang.org/x/sync/errgroup"

	"berth"
	"berth/api/client"
)

// burstJobs is how many jobs come at once. The engine's work for one network grows with the number of networks, so 200
// jobs take several times as long as 60.
var burstJobs = flag.Int("burst", 60, "jobs that are submitted at once")

// Not parallel: it has the engine to itself, which it keeps so busy that the
// jobs of other tests would wait for minutes.
func TestJobsSubmittedAtOnceEachGetOneContainerAndLeaveNothing(t *testing.T) {
	s, burst := onHost(t), *burstJobs
	began := time.Now()
	ids := make([]berth.JobID, burst)
	var all errgroup.Group
	for i := range ids {
		all.Go(func() error {
			job, _, err := s.api.Submit(t.Context(), s.job("burst", "exit", "0"), berth.NewSecret())
			ids[i] = job.ID
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	for quarter := range 4 { // patience bounds each quarter
		s.awaitBurst((quarter+1)*burst/4, burst)
	}
	t.Logf("%d jobs succeeded %s after the first was submitted", burst, time.Since(began).Round(100*time.Millisecond))
	s.engine.wantEmpty()
	s.wantNothingReserved()
	s.engine.wantOneEach(ids)
	if had, started := s.engine.containers(""), s.engine.count(events.ActionStart, ""); had != burst || started > burst {
		t.Errorf("%d containers, started %d times, want %d that started once", had, started, burst)
	}
}

// awaitBurst waits until some of the burst's jobs have succeeded. It fails the test
// if one ends otherwise.
func (s *stack) awaitBurst(some, burst int) {
	t := s.t
	t.Helper()
	untilEvery(t, 500*time.Millisecond, fmt.Sprintf("%d jobs have succeeded", some), func(ctx context.Context) error {
		page, err := s.api.Jobs(ctx, client.JobsQuery{Name: "burst", Limit: 2 * burst})
		if err != nil {
			return err
		}
		by := map[berth.State]int{}
		for _, job := range page.Items {
			by[job.Status]++
			if job.Status.Terminal() && job.Status != berth.Succeeded {
				t.Fatalf("job %s ended as %s in attempt %d: %+v", job.ID, job.Status, job.Attempt, job.Reason)
			}
			if job.Attempt > 1 { // right only where a crowded machine left a reservation lying
				whole, err := s.api.Job(ctx, job.ID)
				if err != nil {
					return err
				}
				for _, a := range whole.Attempts[:len(whole.Attempts)-1] {
					if a.Outcome == nil || a.Outcome.Code != berth.ReasonUnclaimed {
						t.Fatalf("job %s: attempt %d ended by %+v", job.ID, a.Number, a.Outcome)
					}
				}
			}
		}
		if by[berth.Succeeded] < some || len(page.Items) != burst {
			return fmt.Errorf("of %d jobs %v", len(page.Items), by)
		}
		return nil
	})
}
