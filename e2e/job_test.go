package e2e_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"

	"berth"
	"berth/spec"
	"berth/wire"
)

// The claims share one stack, which takes long to start.
func TestJobs(t *testing.T) {
	t.Parallel()
	s := startTraced(t, quick, "m0", "m1")
	claims := []struct {
		says string
		test func(*testing.T, *stack)
	}{
		{"a job runs, and its history is short", runs},
		{"a job is one trace, from submit to exit", tracesJobs},
		{"a job that waits has a short history too", waits},
		{"search attributes that Temporal knows are not added again", addsNoAttributesTwice},
		{"a Run that is lost on its way holds up nothing", losesRuns},
		{"a failing job is retried and then given up", retries},
		{"a queued job is canceled at once, a held one waits", cancelsQueued},
		{"a running job is stopped and canceled", cancelsRunning},
		{"a cancel from Temporal cancels the job", cancelsFromTemporal},
		{"a terminated workflow stops no container", survivesTermination},
		{"many jobs at once all end, each in one go", runsMany},
		{"a job with GPUs has them to itself and leaves", takesGPUs},
		{"two gangs that each need the whole cluster take turns", sharesGangs},
		{"the end of a head ends its workers, which differ from it", runsGroups},
		{"a secret that a job used lies nowhere", hidesSecrets},
		{"a job that reads a folder goes where it is", readsFolders},
		{"a schedule fires each time once, whatever becomes of its clock", firesOnce},
		{"a schedule whose job lives does what its overlap says", overlaps},
		{"Temporal fires at the times that Berth shows", showsTimes},
		{"a webhook is told how a job ended", tellsWebhooks},
		{"jobs are accepted and run on while Temporal is away", survivesTemporal},
		{"a gang that loses a rank goes on from the last checkpoint of all", repairsGangs},
		{"a batch script of Slurm runs as its translation says", runsBatchScripts},
		{"a gang that hangs is found, and goes on from the last checkpoint of all", findsHungGangs},
	}
	for _, claim := range claims {
		t.Run(claim.says, func(t *testing.T) { claim.test(t, s) })
	}
}

// mostEvents is how long the history of an undisturbed job may be, and quickEvents that of one
// that is placed at once.
const (
	mostEvents  = 19
	quickEvents = 14
)

// tries is how often a job may run before its history must be short: a crowded
// machine delays a grant or a poke now and then, and each delay adds events.
const tries = 20

// undisturbed runs a job that is to have a short history.
func (s *stack) undisturbed(t *testing.T, most int, run func() berth.JobID, want func(wire.Job) []string) (wire.Job,
	*historypb.History) {
	t.Helper()
	for try := 1; ; try++ {
		job := s.ends(t, run(), berth.Succeeded)
		h := s.history(t, job.ID)
		wrong := ""
		if n := len(h.GetEvents()); n > most {
			wrong = fmt.Sprintf("%d events: %v\n", n, kinds(h))
		}
		if want != nil {
			wrong += cmp.Diff(want(job), steps(h))
		}
		if wrong == "" {
			checkBuild(t, h)
			return job, h
		}
		if try == tries {
			t.Errorf("history (-want +got): %s", wrong)
			return job, h
		}
		t.Logf("history of try %d (-want +got): %s", try, wrong)
	}
}

func runs(t *testing.T, s *stack) {
	job, h := s.undisturbed(t, quickEvents, func() berth.JobID {
		return s.submit(t, jobSpec("runs", "do", "echo hello", "sleep 1s")) // it outlives the step that placed it
	}, func(wire.Job) []string {
		return []string{wire.ActivityReserve.Name(), wire.ActivityRun.Name() + " on " + berth.QueueWaiters, wire.ActivitySettle.Name()}
	})
	if job.ExitCode == nil || *job.ExitCode != 0 || len(job.Attempts) != 1 || job.Reason != nil {
		t.Errorf("job is %+v", job)
	}
	t.Logf("%d events; submitted to finished in %s", len(h.GetEvents()), job.FinishedAt.Sub(job.SubmittedAt))
	record(t, "outcome-recorded", h)
	isDescribed(t, s, job)
}

// fill takes all GPUs of both machines for as long as the command runs.
func (s *stack) fill(t *testing.T, command ...string) []berth.JobID {
	t.Helper()
	j := jobSpec("holds-all", command...)
	j.Resources.GPUs = 2000
	holders := []berth.JobID{s.submit(t, j), s.submit(t, j)} // one on each machine
	for _, id := range holders {
		s.becomes(t, id, berth.Running)
	}
	return holders
}

// gpuJob does nothing, with one GPU.
func gpuJob(name string) spec.Job {
	j := jobSpec(name, "exit", "0")
	j.Resources.GPUs = 1000
	return j
}

func waits(t *testing.T, s *stack) {
	_, h := s.undisturbed(t, mostEvents, func() berth.JobID {
		holders := s.fill(t, "trap-term", "0")
		id := s.submit(t, gpuJob("waits"))
		s.becomes(t, id, berth.Queued)
		until(t, "its first step has given up waiting", func() bool { return len(steps(s.history(t, id))) > 0 })
		for _, holder := range holders {
			s.finish(t, holder)
		}
		for _, holder := range holders {
			s.ends(t, holder, berth.Succeeded)
		}
		return id
	}, nil)
	record(t, "waited-for-its-grant", h)
}

// losesRuns loses every waiter: the containers start by the machine's own sync, and
// the replica that records their ends finds that no workflow acts on them. It does so
// within patience; Temporal misses a heartbeat only after wire.WaiterTimeout.
func losesRuns(t *testing.T, s *stack) {
	s.lossy.Store(true)
	defer s.lossy.Store(false)
	for try := 1; ; try++ {
		began := time.Now()
		id := s.submit(t, jobSpec("lost", "exit", "0"))
		if job := s.ends(t, id, berth.Succeeded); len(job.Attempts) != 1 {
			t.Errorf("job is %+v, attempts %+v", job, job.Attempts)
		}
		got := kinds(s.history(t, id))
		t.Logf("without its Run it ended in %s, with %d events", time.Since(began).Round(time.Millisecond), len(got))
		switch {
		case len(got) <= mostEvents:
			return
		case try == tries:
			t.Fatalf("%d events: %v", len(got), got)
		}
	}
}

func retries(t *testing.T, s *stack) {
	j := jobSpec("retries", "exit", "3")
	j.Retry = spec.RetryPolicy{MaxAttempts: 2, Backoff: spec.Backoff{Initial: spec.Duration(200 * time.Millisecond)}}
	id := s.submit(t, j)
	job := s.ends(t, id, berth.Failed)
	if len(job.Attempts) != 2 || !job.DeadLetter || job.ExitCode == nil || *job.ExitCode != 3 || job.Failures != 2 {
		t.Errorf("job is %+v, attempts %+v", job, job.Attempts)
	}
	record(t, "retried-and-failed", s.history(t, id))
}

func cancelsQueued(t *testing.T, s *stack) {
	holders := s.fill(t, "trap-term", "143")
	canceled, held := s.submit(t, gpuJob("canceled")), s.submit(t, gpuJob("held"))
	s.becomes(t, canceled, berth.Queued)
	s.becomes(t, held, berth.Queued)
	if _, err := s.api.Cancel(t.Context(), canceled); err != nil {
		t.Fatal(err)
	}
	if job := s.ends(t, canceled, berth.Canceled); job.Attempt != 0 {
		t.Errorf("job is %+v", job)
	}
	if _, err := s.api.Hold(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	for _, id := range holders {
		if _, err := s.api.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		s.ends(t, id, berth.Canceled)
	}
	s.ends(t, s.submit(t, gpuJob("overtakes")), berth.Succeeded)
	if job := s.job(t, held); job.Status != berth.Queued || !job.Held {
		t.Errorf("the held job is %s", job.Status)
	}
	if _, err := s.api.Release(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	s.ends(t, held, berth.Succeeded)
}

func cancelsRunning(t *testing.T, s *stack) {
	j, grace := jobSpec("running", "trap-term", "143"), spec.Duration(2*patience)
	j.StopGrace = &grace
	id := s.submit(t, j)
	s.becomes(t, id, berth.Running)
	if _, err := s.api.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	job := s.ends(t, id, berth.Canceled)
	if code := job.Attempts[0].ExitCode; code == nil || *code != 143 { // it was asked, not killed once its grace was over
		t.Errorf("its attempt is %+v", job.Attempts[0])
	}
	if n := s.containers(t, id); n != 0 {
		t.Errorf("%d containers run on", n)
	}
	record(t, "canceled-while-running", s.history(t, id))
}

func cancelsFromTemporal(t *testing.T, s *stack) {
	for _, ask := range []func(id berth.JobID) error{
		func(id berth.JobID) error {
			return s.temporal.CancelWorkflow(t.Context(), berth.JobWorkflowID(id), "")
		},
		func(id berth.JobID) error {
			return s.temporal.SignalWorkflow(t.Context(), berth.JobWorkflowID(id), "", berth.SignalCancel, nil)
		},
	} {
		id := s.submit(t, jobSpec("temporal", "trap-term", "143"))
		s.becomes(t, id, berth.Running)
		if err := ask(id); err != nil {
			t.Fatal(err)
		}
		s.ends(t, id, berth.Canceled)
		events, err := s.api.Events(t.Context(), id, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(events.Items, func(e wire.Event) bool { return e.To == berth.Canceling && e.Actor == "temporal" }) {
			t.Errorf("events are %+v", events.Items)
		}
		record(t, "canceled-by-temporal", s.history(t, id))
	}
}

func survivesTermination(t *testing.T, s *stack) {
	id := s.submit(t, jobSpec("survives", "trap-term", "0"))
	s.becomes(t, id, berth.Running)
	before := s.job(t, id)
	if err := s.temporal.TerminateWorkflow(t.Context(), berth.JobWorkflowID(id), "", "test"); err != nil {
		t.Fatal(err)
	}
	if n := s.containers(t, id); n != 1 {
		t.Errorf("%d containers run after it", n)
	}
	until(t, "it has another workflow", func() bool {
		x, err := s.temporal.DescribeWorkflowExecution(t.Context(), berth.JobWorkflowID(id), "")
		return err == nil && x.GetWorkflowExecutionInfo().GetStatus() == enums.WORKFLOW_EXECUTION_STATUS_RUNNING
	})
	s.finish(t, id)
	job := s.ends(t, id, berth.Succeeded)
	if len(job.Attempts) != 1 || !job.StartedAt.Equal(*before.StartedAt) {
		t.Errorf("attempts are %+v", job.Attempts)
	}
	record(t, "rebuilt", s.history(t, id))
}

// runsMany runs many jobs at once, again if their histories are long: a crowded
// machine delays pokes, but not in every try.
func runsMany(t *testing.T, s *stack) {
	const n, bursts = 200, 3
	for try := 1; ; try++ {
		began := time.Now()
		each, wrong := s.burst(t, n)
		t.Logf("%d jobs in %s, %.1f events each", n, time.Since(began).Round(time.Millisecond), each)
		switch {
		case wrong == "" && each <= mostEvents+5:
			return
		case try == bursts:
			t.Fatalf("%.1f events each; %s", each, wrong)
		}
		t.Logf("try %d: %s", try, wrong)
	}
}

// burst runs n jobs at once. It returns the mean length of their histories, and a
// list of the histories that are far too long.
func (s *stack) burst(t *testing.T, n int) (events float64, long string) {
	t.Helper()
	ids := make([]berth.JobID, n)
	for i := range ids {
		ids[i] = s.submit(t, jobSpec("many", "exit", "0"))
	}
	for _, id := range ids {
		job := s.ends(t, id, berth.Succeeded)
		h := s.history(t, id)
		events += float64(len(h.GetEvents()))
		// Another attempt is correct if the test's machine is so busy that a reservation is not
		// claimed within its limit.
		for _, a := range job.Attempts[:len(job.Attempts)-1] {
			if a.Outcome == nil || a.Outcome.Code != berth.ReasonUnclaimed {
				t.Errorf("job %s: attempt %d ended by %+v", id, a.Number, a.Outcome)
			}
		}
		if len(h.GetEvents()) > 2*mostEvents*len(job.Attempts) {
			long += fmt.Sprintf("job %s has %d events: %v\n", id, len(h.GetEvents()), kinds(h))
		}
	}
	return events / float64(n), long
}

func takesGPUs(t *testing.T, s *stack) {
	j := gpuJob("gpus")
	ids := make([]berth.JobID, 12)
	for i := range ids {
		ids[i] = s.submit(t, j)
	}
	for _, id := range ids {
		if job := s.ends(t, id, berth.Succeeded); len(job.Attempts[0].GPUs) != 1 {
			t.Errorf("attempt is %+v", job.Attempts[0])
		}
	}
	page, err := s.api.Machines(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range page.Items {
		if m.Used != (berth.Capacity{}) {
			t.Errorf("machine %s still uses %+v", m.ID, m.Used)
		}
	}
}

func survivesTemporal(t *testing.T, s *stack) {
	running := s.submit(t, jobSpec("running", "trap-term", "0"))
	s.becomes(t, running, berth.Running)
	began := s.job(t, running).StartedAt
	if err := s.server.Stop(); err != nil {
		t.Fatal(err)
	}
	accepted := s.submit(t, jobSpec("accepted", "exit", "0"))
	if job := s.job(t, accepted); job.Status != berth.Submitted {
		t.Errorf("job is %s", job.Status)
	}
	canceled := s.submit(t, jobSpec("canceled", "exit", "0"))
	if job, err := s.api.Cancel(t.Context(), canceled); err != nil || job.Status != berth.Canceled {
		t.Errorf("job is %s, %v", job.Status, err)
	}
	s.finish(t, running)
	until(t, "the container ends", func() bool { return s.containers(t, running) == 0 })
	s.restartTemporal(t)
	s.ends(t, accepted, berth.Succeeded)
	if job := s.ends(t, running, berth.Succeeded); len(job.Attempts) != 1 || !job.StartedAt.Equal(*began) {
		t.Errorf("attempts are %+v", job.Attempts)
	}
}
