package agent_test

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"berth"
	"berth/failure"
	"berth/wire"
)

// F32: a machine that dies during an upload leaves an incomplete step, which does not count.
func TestF32CrashDuringAnUploadLeavesTheOlderStep(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(checkpointed(10), "train", "/checkpoint", "100000", "5ms", "5")
	m.run(id)
	s.until("two checkpoints are stored", func() bool { return len(s.verified(id)) >= 2 })
	on, met := s.answers(http.StatusServiceUnavailable, http.MethodPut, berth.ManifestName)
	s.until("an upload is under way", func() bool { return met.Load() > 0 })
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.runtime.Exit(berth.ContainerName(id, 0, 1), 137)
	m.cfg.HostBoot = "boot-2"
	on.Store(false)
	m.start()
	s.until("the machine has told that it rebooted", func() bool {
		v, err := s.db.Jobs.Load(t.Context(), id)
		if err != nil {
			return false
		}
		r, err := s.db.Attempts.Settle(t.Context(), id, v.Attempt)
		return err == nil && r.Next == berth.Retrying
	})
	newest := s.verified(id)[0]
	m.until("machine is ready", func() bool { return s.machineState("m1") == berth.MachineReady })
	m.run(id)
	s.until("the second attempt is restored", func() bool { return len(s.log(id, 2)) > 0 })
	if got := s.log(id, 2)[0]; got != fmt.Sprintf("restored step %d", newest) {
		t.Errorf("the second attempt begins with %q, want step %d", got, newest)
	}
}

// F32: a store that fails or stalls proves no damage. However often a restore fails, the step stays verified, and is
// restored once the store answers: while the store returns no step, none is passed over.
func TestF32FailedRestoresMarkNoStepBad(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.impatient()
	id := train(m)
	steps := s.verified(id)
	failing, _ := s.answers(http.StatusServiceUnavailable, http.MethodGet, "/objects/")
	for range 3 {
		_, w := m.run(id)
		if x := w.exit(); x.Cause != failure.CauseRestoreFailed {
			t.Fatalf("exit is %+v", x)
		}
		if j := s.settle(id); j.Status != berth.Retrying {
			t.Fatalf("job is %s, %+v", j.Status, j.Reason)
		}
		s.eligible(id)
	}
	if got := s.verified(id); !slices.Equal(got, steps) || s.hasEvent(id, wire.EventCheckpointRejected, "") {
		t.Errorf("checkpoints were %v and are %v", steps, got)
	}
	failing.Store(false)
	m.run(id)
	s.until("the next attempt is restored", func() bool { return len(s.log(id, 5)) > 0 })
	if got := s.log(id, 5)[0]; got != fmt.Sprintf("restored step %d", steps[0]) {
		t.Errorf("it begins with %q; checkpoints were %v", got, steps)
	}
}

// F32: the store does not return one step, and returns the step before. The third attempt passes over the newest step,
// which stays stored, and goes on from the other one.
func TestF32AStepThatTheStoreDoesNotReturnIsPassedOver(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"file-", berth.ManifestName} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			m := s.machine("m1")
			m.impatient()
			id := train(m)
			steps := s.verified(id)
			s.answers(http.StatusServiceUnavailable, http.MethodGet,
				fmt.Sprintf("%s/%s", berth.CheckpointKey("default", id, 1, 0, steps[0]), name))
			for range 2 {
				_, w := m.run(id)
				if x := w.exit(); x.Cause != failure.CauseRestoreFailed {
					t.Fatalf("exit is %+v", x)
				}
				s.settle(id)
				s.eligible(id)
			}
			if s.hasEvent(id, wire.EventCheckpointPassedOver, "") {
				t.Error("it is passed over after one attempt")
			}
			s.trainsFor(id, int(steps[1])+100)
			_, w := m.run(id)
			if x := w.exit(); x.Code != 0 || !x.Complete {
				t.Fatalf("exit is %+v", x)
			}
			if got := s.log(id, 4)[0]; got != fmt.Sprintf("restored step %d", steps[1]) {
				t.Errorf("it begins with %q; checkpoints were %v", got, steps)
			}
			says := fmt.Sprintf("step %d of attempt 1: the object store did not return it", steps[0])
			if !s.hasEvent(id, wire.EventCheckpointPassedOver, says) {
				t.Errorf("events: %+v", s.events(id))
			}
		})
	}
}

// F32: the store returns neither of the two newest steps. The job reaches the third one, in the fifth attempt that tries:
// each step must have failed in two attempts before.
func TestF32TwoStepsThatTheStoreDoesNotReturnArePassedOver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.impatient()
	id := train(m)
	steps := s.verified(id)
	key := func(i int) string { return berth.CheckpointKey("default", id, 1, 0, steps[i]) + "/" }
	refuse := func(r *http.Request) int {
		if r.Method == http.MethodGet && (strings.Contains(r.URL.Path, key(0)) || strings.Contains(r.URL.Path, key(1))) {
			return http.StatusServiceUnavailable
		}
		return 0
	}
	s.gate.refuse.Store(&refuse)
	for range 4 {
		_, w := m.run(id)
		if x := w.exit(); x.Cause != failure.CauseRestoreFailed {
			t.Fatalf("exit is %+v", x)
		}
		s.settle(id)
		s.eligible(id)
	}
	s.trainsFor(id, int(steps[2])+100)
	_, w := m.run(id)
	if x := w.exit(); x.Code != 0 || !x.Complete {
		t.Fatalf("exit is %+v", x)
	}
	if got := s.log(id, 6)[0]; got != fmt.Sprintf("restored step %d", steps[2]) {
		t.Errorf("it begins with %q; checkpoints were %v", got, steps)
	}
	for _, step := range steps[:2] {
		if !s.hasEvent(id, wire.EventCheckpointPassedOver, fmt.Sprintf("step %d of attempt 1", step)) {
			t.Errorf("step %d is not passed over; events: %+v", step, s.events(id))
		}
	}
}

// F32: the store answers again while a member asks for an older step: the newest step is restored after all.
func TestF32AStepThatTheStoreReturnsAgainIsNotPassedOver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.impatient()
	id := train(m)
	steps := s.verified(id)
	newest := berth.CheckpointKey("default", id, 1, 0, steps[0]) + "/"
	var recovered atomic.Bool
	refuse := func(r *http.Request) int {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, berth.CheckpointKey("default", id, 1, 0, steps[1])) {
			recovered.Store(true)
		}
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, newest) && !recovered.Load() {
			return http.StatusServiceUnavailable
		}
		return 0
	}
	s.gate.refuse.Store(&refuse)
	for range 2 {
		_, w := m.run(id)
		w.exit()
		s.settle(id)
		s.eligible(id)
	}
	m.run(id)
	s.until("the attempt is restored", func() bool { return len(s.log(id, 4)) > 0 })
	if got := s.log(id, 4)[0]; got != fmt.Sprintf("restored step %d", steps[0]) {
		t.Errorf("it begins with %q; checkpoints were %v", got, steps)
	}
	if s.hasEvent(id, wire.EventCheckpointPassedOver, "") {
		t.Errorf("events: %+v", s.events(id))
	}
}

// eligible lets the job's backoff pass.
func (s *site) eligible(id berth.JobID) {
	s.t.Helper()
	if _, err := s.db.Pool().Exec(s.t.Context(), `UPDATE jobs SET eligible_at = now() WHERE id = $1`, id); err != nil {
		s.t.Fatal(err)
	}
}

// F33: the last upload of an attempt takes longer than the next job needs to be
// placed on its GPU and to end. Its own next attempt waits for it, and goes on
// from there. The exit 0 that answers a checkpoint order in the middle of the
// training is no success.
func TestF33FinalUploadSlowerThanTheNextPlacementLosesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(checkpointed(2), "train", "/checkpoint", "100000", "5ms")
	_, w := m.run(id)
	s.until("it trains", func() bool { return len(s.log(id, 1)) > 3 })
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	var held atomic.Int64
	hold := func(r *http.Request) int {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, berth.ManifestName) {
			held.Add(1)
			<-release
		}
		return 0
	}
	s.gate.refuse.Store(&hold)
	for _, sql := range []string{
		`UPDATE jobs SET state = 'preempting', version = version + 1, preempted_for = gen_random_uuid()`,
		`UPDATE allocations SET orders = orders || '{"checkpoint": true, "grace_ms": 120000}'`,
	} {
		if _, err := s.db.Pool().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	s.db.Hub().Publish("machine", "m1")
	s.until("its GPU is free, and its last checkpoint under way", func() bool {
		mach, err := s.db.Machines.Get(t.Context(), "", "m1")
		return err == nil && mach.GPUs[0].UsedMilli == 0 && held.Load() > 0
	})
	next := s.submit(nil, "exit", "0")
	if _, other := m.run(next); other.exit().Code != 0 {
		t.Error("the next job failed")
	}
	if r, err := s.db.Attempts.Settle(t.Context(), id, 1); err != nil || !r.NotReady {
		t.Errorf("settled while its checkpoint is under way: %+v, %v", r, err)
	}
	free()
	if x := w.exit(); x.Cause != failure.CauseOrdered || x.Code != 0 || x.Complete {
		t.Errorf("exit is %+v", x)
	}
	log := s.log(id, 1)
	saved, ok := strings.CutPrefix(log[len(log)-1], "saved ")
	if j := s.settle(id); j.Status != berth.Retrying || j.Reason.Rule != "preempted" || !ok {
		t.Fatalf("job is %s, %+v; its log ends with %q", j.Status, j.Reason, log[len(log)-1])
	}
	m.run(id)
	s.until("the second attempt is restored", func() bool { return len(s.log(id, 2)) > 0 })
	if got := s.log(id, 2)[0]; got != "restored "+saved {
		t.Errorf("it saved %q and begins with %q", saved, got)
	}
}

// F32: the cost of a fallback is shown: the steps since the last good checkpoint, and their GPU
// time.
func TestF32LostWorkIsMeasuredAndShown(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := train(m)
	steps := s.verified(id)
	before := s.job(id).Attempts[0]
	if before.LostSteps == nil || before.LostGPUSeconds == nil || *before.LostGPUSeconds < 0 {
		t.Fatalf("attempt %+v does not say what was lost", before)
	}
	for end, n := range s.db.Attempts.EndCounts() {
		if end.Next != berth.Retrying || n.Attempts != 1 || n.LostGPUSeconds != *before.LostGPUSeconds {
			t.Errorf("counted %+v of %+v; the attempt says %f GPU-seconds", n, end, *before.LostGPUSeconds)
		}
	}
	_, files := s.objects(id, steps[0])
	if err := os.Truncate(files[0], 0); err != nil {
		t.Fatal(err)
	}
	m.run(id)
	s.until("the second attempt is restored", func() bool { return len(s.log(id, 2)) > 0 })
	// The next report names the damaged step, and the log may arrive before it.
	s.until("the damaged step does not count", func() bool { return !slices.Contains(s.verified(id), steps[0]) })
	s.until("the fallback is on record", func() bool {
		from := s.job(id).Attempts[1].ResumeFrom // planned as steps[0], until the machine reports
		return from != nil && *from != steps[0]
	})
	after := s.job(id).Attempts[0]
	if got, want := *after.LostSteps, max(*after.LastStep-steps[1], 0); got != want || got < *before.LostSteps {
		t.Errorf("lost %d steps, and %d after the fallback; want %d", *before.LostSteps, got, want)
	}
	if *after.LostGPUSeconds <= *before.LostGPUSeconds {
		t.Errorf("lost %f GPU-seconds, and %f after the fallback", *before.LostGPUSeconds, *after.LostGPUSeconds)
	}
}
