package agent_test

import (
	"fmt"
	"testing"

	"berth"
	"berth/failure"
)

// A suspended job saves, stops and waits on hold at no cost; after its release it continues.
func TestASuspendedJobContinuesAfterItsRelease(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(checkpointed(2), "train", "/checkpoint", "1000000", "5ms")
	req, w := m.run(id)
	s.until("it trains", func() bool { return len(s.log(id, 1)) > 3 })
	suspend := func() error { return s.db.Attempts.Suspend(t.Context(), "", id, "user:ann", false) }
	if err := suspend(); err != nil {
		t.Fatal(err)
	}
	if err := suspend(); err != nil { // a repeated call has no further effect
		t.Fatal(err)
	}
	if x := w.exit(); x.Cause != failure.CauseOrdered || x.Complete {
		t.Errorf("exit is %+v", x)
	}
	j := s.settle(id)
	if j.Status != berth.Retrying || !j.Held || j.Reason.Code != berth.ReasonSuspended ||
		j.Reason.Message != "suspended by user:ann" || j.Failures+j.Losses+j.Preemptions != 0 {
		t.Fatalf("job is %s, held %t, %+v", j.Status, j.Held, j.Reason)
	}
	m.cleared(req)
	steps := s.verified(id)
	if len(steps) == 0 {
		t.Fatal("it has saved nothing")
	}
	if err := s.db.Jobs.Release(t.Context(), "", id, "user:ann"); err != nil {
		t.Fatal(err)
	}
	m.run(id)
	s.until("the second attempt trains", func() bool { return len(s.log(id, 2)) > 0 })
	if first := s.log(id, 2)[0]; first != fmt.Sprintf("restored step %d", steps[0]) {
		t.Errorf("the second attempt begins with %q, the newest checkpoint is %d", first, steps[0])
	}
}

func TestASuspensionThatLosesWorkNeedsConsent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "trap-term", "0")
	req, w := m.run(id)
	m.running(req)
	s.until("the job is running", func() bool { return s.job(id).Status == berth.Running }) // reported after the container runs
	err := s.db.Attempts.Suspend(t.Context(), "", id, "user:ann", false)
	if berth.CodeOf(err) != berth.CodeConflict {
		t.Fatalf("suspend without a checkpoint: %v", err)
	}
	if j := s.job(id); j.Status != berth.Running || j.Held {
		t.Errorf("the refused suspension left the job %s, held %t", j.Status, j.Held)
	}
	if err := s.db.Attempts.Suspend(t.Context(), "", id, "user:ann", true); err != nil {
		t.Fatal(err)
	}
	w.exit()
	if j := s.settle(id); j.Status != berth.Retrying || !j.Held {
		t.Errorf("job is %s, held %t", j.Status, j.Held)
	}
	s.cancel(id) // also from the hold
	if j := s.job(id); j.Status != berth.Canceled {
		t.Errorf("job is %s", j.Status)
	}
}

// A request to save reaches a job without checkpoint.interval once; the job continues.
func TestARequestedCheckpointIsWrittenOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(checkpointed(5), "train", "/checkpoint", "1000000", "5ms")
	req, _ := m.run(id)
	m.running(req)
	s.until("it trains", func() bool { return len(s.log(id, 1)) > 3 })
	save := func() {
		t.Helper()
		if err := s.db.Attempts.RequestSave(t.Context(), "", id, "user:ann"); err != nil {
			t.Fatal(err)
		}
	}
	save()
	s.until("a checkpoint", func() bool { return len(s.job(id).Checkpoints) == 1 })
	m.restart()
	save()
	s.until("the next checkpoint", func() bool { return len(s.job(id).Checkpoints) >= 2 })
	if n := len(s.job(id).Checkpoints); n != 2 || s.job(id).Status != berth.Running {
		t.Errorf("two requests gave %d checkpoints of a job that is %s", n, s.job(id).Status)
	}
}

func TestAJobWithoutASignalCannotBeAskedToSave(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "trap-term", "0")
	req, _ := m.run(id)
	m.running(req)
	if err := s.db.Attempts.RequestSave(t.Context(), "", id, "user:ann"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a job without a signal: %v", err)
	}
}
