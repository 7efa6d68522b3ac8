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

// F32: a step whose restore failed twice, although the store answers, is not tried again.
func TestF32TwoFailedRestoresMarkAStepBad(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.impatient()
	id := train(m)
	steps := s.verified(id)
	s.answers(http.StatusServiceUnavailable, http.MethodGet, fmt.Sprintf("%s/file-", berth.CheckpointKey("default", id, 1, 0, steps[0])))
	for range 2 {
		_, w := m.run(id)
		if x := w.exit(); x.Cause != failure.CauseRestoreFailed {
			t.Fatalf("exit is %+v", x)
		}
		if j := s.settle(id); j.Status != berth.Retrying {
			t.Fatalf("job is %s, %+v", j.Status, j.Reason)
		}
		s.eligible(id)
	}
	if got := s.verified(id); slices.Contains(got, steps[0]) || !s.hasEvent(id, wire.EventCheckpointRejected, fmt.Sprintf("step %d ", steps[0])) {
		t.Errorf("checkpoints were %v and are %v", steps, got)
	}
	m.run(id)
	s.until("the next attempt is restored", func() bool { return len(s.log(id, 4)) > 0 })
	if got := s.log(id, 4)[0]; got != fmt.Sprintf("restored step %d", steps[1]) {
		t.Errorf("it begins with %q; checkpoints were %v", got, steps)
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
