package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/spec"
	"berth/wire"
)

// soakJobs are alive at about the same time in a soak.
const soakJobs = 250

// runOn adds a soak and an overload, and then random cells for as long as there is time.
func (s *stack) runOn(until time.Time, random *rand.Rand) {
	s.soak(random)
	if !s.t.Failed() { // jobs left by a breach may never end
		s.overload(random)
	}
	var results []result
	for time.Now().Before(until) && !s.t.Failed() {
		cells := make([]cell, 2*agentPlaces)
		for i := range cells {
			cells[i] = randomCell(random)
		}
		results = append(results, s.runCells(cells)...)
	}
	s.check(results)
}

func randomCell(random *rand.Rand) cell {
	all := append(fixedCells(), furtherCells()...)
	c := all[random.IntN(len(all))]
	switch c.process {
	case string(failpoint.Agent):
		c.down = []time.Duration{0, short, beyond}[random.IntN(3)]
		c.action = []string{"kill", "kill", "freeze"}[random.IntN(3)]
	case string(failpoint.Leader), string(failpoint.Worker):
		c.down = []time.Duration{0, short, beyond}[random.IntN(3)]
		c.action = []string{"kill", "freeze"}[random.IntN(2)]
	}
	return c
}

// soak runs many jobs at once while programs are killed at random and pokes are
// lost and doubled.
func (s *stack) soak(random *rand.Rand) {
	began := time.Now()
	const steps = 2 * trainSteps
	ids := make([]berth.JobID, soakJobs)
	done := make(chan struct{})
	var trouble sync.WaitGroup
	seedKills, seedPokes := random.Uint64(), random.Uint64()
	trouble.Go(func() { s.killAtRandom(rand.New(rand.NewPCG(seedKills, 1)), done) })
	var mu sync.Mutex
	trouble.Go(func() {
		s.spoilPokes(rand.New(rand.NewPCG(seedPokes, 2)), done, func(i int) berth.JobID {
			mu.Lock()
			defer mu.Unlock()
			return ids[i%len(ids)]
		})
	})
	for i := range ids {
		jobSpec := s.training(agentPlace(i%agentPlaces), steps)
		if i%2 == 0 { // the others wait for their machine, however long it is away
			jobSpec.LostAfter = spec.Duration(lost)
		}
		id, err := s.submit(jobSpec)
		if err != nil {
			s.t.Error(err)
			break
		}
		mu.Lock()
		ids[i] = id
		mu.Unlock()
	}
	poisoned := 0
	for i, id := range ids {
		if id == "" {
			break // its submit failed
		}
		given, err := s.wantSoaked(id, steps, i%2 == 0)
		if err != nil {
			s.t.Error(err)
		}
		if given {
			poisoned++
		}
	}
	close(done)
	trouble.Wait()
	fmt.Printf("soak: %d jobs ended after %s, %d of them given up because two machines died under each\n", soakJobs, since(began), poisoned)
	s.check(nil)
}

// wantSoaked waits for a job's end. Its machine may have been lost any number of times, or never
// if the job must not lose its machine. A job under which one machine dies after another counts
// as poison and fails.
func (s *stack) wantSoaked(id berth.JobID, steps int, loses bool) (poison bool, err error) {
	if !loses {
		return false, s.wantTrained(id, steps, once)
	}
	var job wire.Job
	err = await("job "+string(id)+" ends", func() (err error) {
		job, err = s.api.Job(context.Background(), id)
		if err == nil && !job.Status.Terminal() {
			err = fmt.Errorf("it is %s in attempt %d: %+v", job.Status, job.Attempt, job.Reason)
		}
		return err
	})
	if err == nil && job.Status == berth.Failed && job.Reason != nil && job.Reason.Code == berth.ReasonPoison {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, s.wantTrained(id, steps, tries{1, true})
}

// killAtRandom kills one program after another, of the control plane as often as
// agents.
func (s *stack) killAtRandom(random *rand.Rand, done chan struct{}) {
	sides := [][]*program{byName(s.plane), byName(s.agents)}
	kills := map[string]int{}
	for {
		side := sides[random.IntN(len(sides))]
		p := side[random.IntN(len(side))]
		pause, down := time.Duration(random.IntN(1500))*time.Millisecond, time.Duration(random.IntN(2000))*time.Millisecond
		if random.IntN(10) == 0 {
			down = beyond
		}
		select {
		case <-done:
			fmt.Printf("chaos: kills at random: %v\n", kills)
			return
		case <-time.After(pause):
		}
		kills[p.name]++
		if err := p.end(syscall.SIGKILL); err != nil {
			s.t.Error(err)
		}
		time.Sleep(down)
		if err := p.up(); err != nil {
			s.t.Error(err)
			return
		}
	}
}

// spoilPokes drops notifications of leaders and APIs, and sends spurious ones.
func (s *stack) spoilPokes(random *rand.Rand, done chan struct{}, job func(int) berth.JobID) {
	for {
		select {
		case <-done:
			for _, role := range []failpoint.Process{failpoint.Leader, failpoint.API} {
				for _, p := range s.plane[role] {
					p.disarm("dispatch.poke.before")
				}
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
		for _, role := range []failpoint.Process{failpoint.Leader, failpoint.API} {
			for _, p := range s.plane[role] {
				if random.IntN(2) == 0 {
					if err := p.arm("dispatch.poke.before", "error"); err != nil {
						s.t.Error(err)
					}
				}
			}
		}
		if id := job(random.IntN(soakJobs)); id != "" {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_ = s.workflows.SignalWorkflow(ctx, berth.JobWorkflowID(id), "", berth.SignalPoke, nil) // it may have ended
			cancel()
		}
	}
}
