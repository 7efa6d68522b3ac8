package e2e_test

import (
	"testing"
	"time"

	"berth"
	"berth/activities/node/runtimetest"
	"berth/activities/node/runtimetest/prog"
	"berth/failure"
	"berth/spec"
)

// findsHungGangs trains three models over four containers each. One member of each gang hangs
// before step 25: it is stopped, it spins, or it sleeps as the others do, and then no member can be
// named.
func findsHungGangs(t *testing.T, s *stack) {
	s.joinDocker(t, "h0", "h1")
	const steps, odd, members = 40, 2, 4
	const after, late = 10 * time.Second, 10 * time.Second
	ways := map[string]failure.OddBy{"halt": failure.OddByStopped, "spin": failure.OddByCPU, "sleep": ""}
	jobs := map[string]berth.JobID{}
	for how := range ways {
		j := jobSpec("hangs", "descend", "/checkpoint", "40", "30ms", "10")
		j.Image, j.Members = runtimetest.Image(t, ""), members
		grace := spec.Duration(time.Second)
		j.StopGrace = &grace
		j.Env = map[string]string{"HANG": how, "HANG_MEMBER": "2", "HANG_STEP": "25"}
		j.Placement.Labels, j.Placement.Strategy = map[string]string{"engine": "docker"}, "spread"
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint"}
		j.Stall = &spec.StallPolicy{After: spec.Duration(after)}
		jobs[how] = s.submit(t, j)
	}
	for how, by := range ways {
		job := s.ends(t, jobs[how], berth.Succeeded)
		if len(job.Attempts) != 2 || len(job.Hangs) != 1 || len(job.Hangs[0].Members) != members {
			t.Errorf("%s: attempts are %+v, hangs %+v", how, job.Attempts, job.Hangs)
			continue
		}
		first, second, h := job.Attempts[0], job.Attempts[1], job.Hangs[0]
		t.Logf("%s: %s; went on from step %d", how, first.Outcome.Message, *second.ResumeFrom)
		if first.Outcome.Code != berth.ReasonStalled || first.Outcome.Rule != "stalled" || job.Failures != 0 {
			t.Errorf("%s: outcome is %+v, %d failures", how, first.Outcome, job.Failures)
		}
		// Step 20 is the last checkpoint of all before the hang.
		if second.ResumeFrom == nil || *second.ResumeFrom != 20 {
			t.Errorf("%s: the second attempt is %+v", how, second)
		}
		for _, e := range h.Members {
			t.Logf("%s: member %d on %s: %s", how, e.Rank, e.Machine, e.Text())
			if quiet := time.Duration(e.QuietSeconds * float64(time.Second)); quiet < after || quiet > after+late {
				t.Errorf("%s: member %d was found after %s", how, e.Rank, quiet)
			}
			if len(e.Processes) == 0 || len(e.Lines) == 0 || e.Lines[len(e.Lines)-1] != "step 24" {
				t.Errorf("%s: evidence of member %d is %+v", how, e.Rank, e)
			}
		}
		switch {
		case by == "" && (h.Odd.Rank != nil || h.Odd.Confidence != failure.Unsure):
			t.Errorf("%s: odd member is %+v, want none", how, h.Odd)
		case by != "" && (h.Odd.Rank == nil || *h.Odd.Rank != odd || h.Odd.By != by):
			t.Errorf("%s: odd member is %+v, want %d by %s", how, h.Odd, odd, by)
		}
		for member := range members {
			if got, want := s.lastLine(t, jobs[how], member), prog.DescendResult(steps, members); got != want {
				t.Errorf("%s: member %d ends with %q, want %q", how, member, got, want)
			}
		}
	}
}
