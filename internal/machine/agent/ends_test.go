package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
)

// limited is a job with checkpoints that the agent stops at its time limit.
func limited(requeues int) func(*spec.Job) {
	return func(j *spec.Job) {
		checkpointed(5)(j)
		j.TimeLimit = spec.Duration(2 * time.Second)
		j.Retry.OnTimeLimit, j.Retry.MaxRequeues = spec.OnTimeLimitRequeue, requeues
	}
}

// A job that makes progress is requeued at its time limit, at no cost, until max_requeues.
func TestRequeueAtTheTimeLimitContinuesFromTheCheckpoint(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(limited(1), "train", "/checkpoint", "1000000", "5ms")
	_, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseTimeLimit {
		t.Fatalf("exit is %+v", x)
	}
	j := s.settle(id)
	if j.Status != berth.Retrying || j.Reason.Rule != failure.RuleRequeue || j.Failures != 0 ||
		!strings.Contains(j.Reason.Message, "requeue 1 of 1") {
		t.Fatalf("job is %s after %d failures: %+v", j.Status, j.Failures, j.Reason)
	}
	newest := s.verified(id)[0]
	_, w = m.run(id)
	if x := w.exit(); x.Cause != failure.CauseTimeLimit {
		t.Fatalf("the second exit is %+v", x)
	}
	if first := s.log(id, 2)[0]; first != fmt.Sprintf("restored step %d", newest) {
		t.Errorf("the second attempt begins with %q, the newest checkpoint is %d", first, newest)
	}
	j = s.settle(id)
	if j.Status != berth.Failed || j.Reason.Code != berth.ReasonTimeLimit ||
		!strings.Contains(j.Reason.Message, "after 1 of 1 requeues") {
		t.Errorf("job is %s: %+v", j.Status, j.Reason)
	}
}

// A requeue without a new checkpoint would repeat the same work without end.
func TestAJobWithoutANewCheckpointFailsAtItsTimeLimit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(limited(0), "trap-term", "0")
	_, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseTimeLimit {
		t.Fatalf("exit is %+v", x)
	}
	j := s.settle(id)
	if j.Status != berth.Failed || !strings.Contains(j.Reason.Message, "stored no checkpoint") {
		t.Errorf("job is %s: %+v", j.Status, j.Reason)
	}
}

// The signal before the time limit makes the job save while it runs; the job needs no interval.
func TestTheSignalBeforeTheTimeLimitIsSentWhileTheJobRuns(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(func(j *spec.Job) {
		limited(0)(j)
		j.TimeLimit = spec.Duration(4 * time.Second)
	}, "train", "/checkpoint", "1000000", "5ms")
	_, w := m.run(id)
	w.exit()
	log, saved := s.log(id, 1), -1
	for i, line := range log {
		if saved < 0 && strings.HasPrefix(line, "saved step ") {
			saved = i
		}
	}
	if saved < 0 || saved+1 >= len(log) || !strings.HasPrefix(log[saved+1], "step ") {
		t.Errorf("no step follows the first checkpoint: %q", log[max(0, saved):])
	}
}

// Outputs with "when: always" outlive a failure; the next attempt's take their place.
func TestOutputsOfAFailedAttemptAreStoredOnRequest(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(func(j *spec.Job) {
		checkpointed(1)(j)
		j.Retry.MaxAttempts = 2
		j.Outputs = []spec.Output{
			{Name: "trace", Path: "/workspace/trace", When: spec.OutputAlways},
			{Name: "core", Path: "/workspace/core", When: spec.OutputAlways},
			{Name: "model", Path: "/workspace/model"},
		}
	}, "do", "write-file /workspace/trace evidence", "write-file /workspace/model half", "exit 3")
	for attempt := 1; attempt <= 2; attempt++ {
		_, w := m.run(id)
		if x := w.exit(); x.Code != 3 || len(x.Unstored)+len(x.Refused) > 0 {
			t.Fatalf("exit is %+v", x)
		}
		s.settle(id)
		o, dir := s.output(id, "trace")
		text, err := os.ReadFile(filepath.Join(dir, "trace"))
		if err != nil || string(text) != "evidence" || o.Attempt != attempt {
			t.Errorf("attempt %d: %+v holds %q, %v", attempt, o, text, err)
		}
		if list, _, err := s.db.Objects.Outputs(t.Context(), id, db.Paging{}); err != nil || len(list) != 1 {
			t.Errorf("attempt %d: outputs are %+v, %v", attempt, list, err)
		}
	}
	if j := s.job(id); j.Status != berth.Failed || j.Reason.Code != berth.ReasonExitCode {
		t.Errorf("job is %s: %+v", j.Status, j.Reason)
	}
	var doomed int
	if err := s.db.Pool().QueryRow(t.Context(), `SELECT count(*) FROM doomed_objects WHERE prefix = $1`,
		berth.OutputKey("default", id, 1, 0, "trace")).Scan(&doomed); err != nil || doomed != 1 {
		t.Errorf("%d objects of the first attempt are marked for removal, %v", doomed, err)
	}
}
