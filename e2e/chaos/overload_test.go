package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"berth"
	"berth/spec"
	"berth/wire"
)

// The overload: bursts of jobs that each take a good part of a machine, so that
// a place runs only few of them at a time.
const (
	bursts         = 3
	burstJobs      = 60 // single jobs of a burst
	burstArray     = 40 // elements of its array
	burstCPUs      = spec.MilliCPU(16_000)
	burstClients   = 24 // that submit at the same time
	burstAtOnce    = placeAgents * 64_000 / int(burstCPUs)
	burstTimes     = (burstJobs + burstArray) / burstAtOnce // of the capacity of its place
	burstPauseMost = 3 * time.Second
)

// At least ten times the capacity is an overload; anything less is a queue.
var _ = [burstTimes - 10]struct{}{}

// overload submits bursts many times above the capacity of the machines they
// may run on, each to another place, while programs are killed at random. The
// bursts overlap: the next one comes long before the one before has run.
// Every job must end as if nothing had happened.
func (s *stack) overload(random *rand.Rand) {
	began := time.Now()
	done := make(chan struct{})
	var trouble sync.WaitGroup
	seed := random.Uint64()
	trouble.Go(func() { s.killAtRandom(rand.New(rand.NewPCG(seed, 3)), done) })
	var all sync.WaitGroup
	for i := range bursts {
		place := agentPlace(i)
		pause := time.Duration(random.Int64N(int64(burstPauseMost)))
		all.Go(func() { s.burst(place) })
		time.Sleep(pause)
	}
	all.Wait()
	close(done)
	trouble.Wait()
	fmt.Printf("overload: %d bursts of %d jobs, each %d times the capacity of its machines, ended after %s\n", bursts, burstJobs+burstArray, burstTimes, since(began))
	s.check(nil)
}

// burst submits its jobs at once and waits for their end.
func (s *stack) burst(place string) {
	cpus := burstCPUs
	jobSpec := func() spec.Job {
		j := s.spec(place, "exit", "0")
		j.Checkpoint, j.Resources.CPUs = nil, &cpus
		return j
	}
	var all sync.WaitGroup
	all.Go(func() {
		j := jobSpec()
		j.Array = &spec.Array{Size: burstArray}
		id, err := s.submit(j)
		if err == nil {
			err = s.wantBurstArray(id)
		}
		if err != nil {
			s.fail(fmt.Errorf("array of a burst: %w", err))
		}
	})
	next := make(chan struct{}, burstJobs)
	for range burstJobs {
		next <- struct{}{}
	}
	close(next)
	ids := make(chan berth.JobID, burstJobs)
	var submits sync.WaitGroup
	for range burstClients {
		submits.Go(func() {
			for range next {
				id, err := s.submit(jobSpec())
				if err != nil {
					s.fail(fmt.Errorf("submit of a burst: %w", err))
					continue
				}
				ids <- id
			}
		})
	}
	submits.Wait()
	close(ids)
	for id := range ids {
		// A machine may be killed before it has claimed its reservations.
		if err := s.wantEnded(id, tries{least: 1, loses: true}); err != nil {
			s.fail(err)
		}
	}
	all.Wait()
}

// wantBurstArray waits for the success of an array and of all its elements.
func (s *stack) wantBurstArray(id berth.JobID) error {
	var array wire.Job
	err := await(fmt.Sprintf("array %s succeeds", id), func() (err error) {
		array, err = s.api.Job(context.Background(), id)
		switch {
		case err != nil:
			return err
		case array.Status == berth.Succeeded:
			return nil
		case array.Status.Terminal():
			return fatal{fmt.Errorf("it ended as %s: %+v", array.Status, array.Reason)}
		}
		return fmt.Errorf("it is %s, its elements are %+v", array.Status, array.Tally)
	})
	if err == nil && (array.Tally == nil || array.Tally.Total != burstArray || array.Tally.ByStatus[berth.Succeeded] != burstArray) {
		err = errors.New("it succeeded with other elements than it should have")
	}
	if err != nil {
		return fmt.Errorf("%w: %+v", err, array.Tally)
	}
	return nil
}
