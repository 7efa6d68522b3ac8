package admission

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/internal/lib/background"
	"berth/placement"
	"berth/placement/cluster"
	"berth/spec"
)

// oneMachine is a cluster of one machine, or of none, and counts its readings.
type oneMachine struct {
	cores atomic.Int64 // 0: there is no machine
	takes atomic.Int64 // time.Duration
	fails atomic.Bool
	reads atomic.Int64
}

func (x *oneMachine) read(context.Context) (*placement.Snapshot, error) {
	x.reads.Add(1)
	s, cores := placement.NewSnapshot(), x.cores.Load()
	time.Sleep(time.Duration(x.takes.Load()))
	if x.fails.Load() {
		return nil, errors.New("the table is locked")
	}
	if cores > 0 {
		s.UpsertMachine(cluster.Machine{ID: "m1", State: berth.MachineReady,
			Total: berth.Capacity{CPUMilli: 1000 * cores, MemoryMiB: 1 << 20, DiskMiB: 1 << 20}})
	}
	return s, nil
}

// fleetOf returns the check of new work on a cluster of one machine.
func fleetOf(t *testing.T, cores int64) (*fleet, *oneMachine) {
	x := &oneMachine{}
	x.cores.Store(cores)
	x.takes.Store(int64(10 * time.Millisecond))
	return &fleet{readings: readings{read: x.read, owner: owned(t)}}, x
}

// owned returns the owner of readings. In a bubble of synctest, the test fails if a goroutine is left at its end.
func owned(t *testing.T) *background.Group {
	g := background.New()
	t.Cleanup(g.Close)
	return g
}

func milli(n int64) spec.Request { return spec.Request{CPUMilli: n, MemoryMiB: 1, Members: 1} }

// lacking asks by readings alone, without the machines of clouds, whether a request fits on no machine.
func lacking(t *testing.T, f *fleet, r spec.Request) bool {
	t.Helper()
	now := time.Now()
	lacks, empty, err := f.ask(t.Context(), r.Class(), r, now)
	if err != nil {
		t.Error(err)
	}
	return lacks != nil && !empty
}

// A tenant may vary a size by a thousandth from job to job.
func TestJobsOfManySizesShareOneReadingOfTheMachines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, x := fleetOf(t, 8)
		var all sync.WaitGroup
		for n := range 50 {
			all.Go(func() {
				time.Sleep(time.Duration(n) * 20 * time.Millisecond)
				if err := f.satisfiable(t.Context(), "a", milli(int64(1000+n))); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := x.reads.Load(); n > 2 {
			t.Errorf("50 jobs of 50 sizes within a second cost %d readings", n)
		}
	})
}

func TestRefusalsCostFewReadings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, x := fleetOf(t, 8)
		began := time.Now()
		var all sync.WaitGroup
		for n := range 100 {
			all.Go(func() {
				time.Sleep(time.Duration(n) * 10 * time.Millisecond)
				if !lacking(t, f, milli(int64(9000+n))) {
					t.Error("a job fits that is larger than the machine")
				}
			})
		}
		all.Wait()
		if most := int64(time.Since(began)/readingPause) + 1; x.reads.Load() > most {
			t.Errorf("100 refusals in %s cost %d readings, want at most %d", time.Since(began), x.reads.Load(), most)
		}
	})
}

// A refusal is final for the user, so it never comes from a reading before the submit.
func TestAJobFitsOnAMachineThatHasJustJoined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, x := fleetOf(t, 8)
		if err := f.satisfiable(t.Context(), "a", milli(1000)); err != nil {
			t.Fatal(err)
		}
		x.cores.Store(64)
		if err := f.satisfiable(t.Context(), "a", milli(9000)); err != nil {
			t.Errorf("a reading from before the machine joined refuses the job: %v", err)
		}
	})
}

// Before the first machine every job is accepted, and after it at once no longer.
func TestTheFirstMachineIsSeenAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, x := fleetOf(t, 0)
		for range 20 {
			began := time.Now()
			if err := f.satisfiable(t.Context(), "a", milli(9000)); err != nil || time.Since(began) > 50*time.Millisecond {
				t.Errorf("without machines: %v after %s", err, time.Since(began))
			}
		}
		x.cores.Store(8)
		if !lacking(t, f, milli(9000)) {
			t.Error("the first machine is not seen")
		}
	})
}

// A submit of a size that fitted a minute ago does not wait for the machines.
func TestAnAnswerIsRenewedBesideItsSubmits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, x := fleetOf(t, 8)
		submit := func() (waited time.Duration) {
			t.Helper()
			began := time.Now()
			if err := f.satisfiable(t.Context(), "a", milli(1000)); err != nil {
				t.Error(err)
			}
			return time.Since(began)
		}
		submit()
		for range 10 {
			time.Sleep(fleetMemory + time.Second)
			if waited := submit(); waited > 0 {
				t.Errorf("a submit waits %s", waited)
			}
			time.Sleep(2 * time.Second) // the renewal ends
		}
		x.fails.Store(true)
		time.Sleep(fleetMemory + time.Second)
		submit() // starts a renewal that fails
		time.Sleep(time.Second)
		if err := f.satisfiable(t.Context(), "a", milli(1000)); err == nil {
			t.Error("an answer is used that could not be renewed")
		}
	})
}
