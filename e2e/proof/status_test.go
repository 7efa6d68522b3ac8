package proof_test

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// move is a change of status as a job's watcher sees it.
type move struct {
	To     berth.State
	Actor  string
	Reason berth.ReasonCode
}

// jobLife is one life of a job: the events and the statuses that its watcher sees.
type jobLife struct {
	says string
	spec spec.Job
	act  func(w *watch)
	want []move
}

// Together the lives go through every status but preempting.
func TestEveryStatusIsSeenWithItsActorAndItsCause(t *testing.T) {
	t.Parallel()
	s := onHost(t)
	// As long as this one runs, nothing else has the whole machine.
	holder := s.startShifts(1)
	left := s.jobLives()
	for again := 0; len(left) > 0; again++ {
		watches := make([]*watch, len(left))
		for i, life := range left {
			watches[i] = s.watch(s.submit(life.spec))
		}
		for i, life := range left {
			life.act(watches[i])
		}
		slow := left[:0:0]
		for i, life := range left {
			got := watches[i].end(t)
			switch diff := cmp.Diff(life.want, got); {
			case diff == "":
			case notStarted(got) && again < engineTries:
				t.Logf("%s, but an attempt was not started in time, so another job lives this life: %v", life.says, got)
				slow = append(slow, life)
			default:
				t.Errorf("%s, but what was watched is (-want +got):\n%s", life.says, diff)
			}
		}
		left = slow
	}
	s.endShifts(holder)
	s.wantShiftsDone(holder)
}

// jobLives are the lives. No job ends before its start was seen: of a start and an end that come in one report the
// history has the end.
func (s *stack) jobLives() []jobLife {
	const (
		user, workflow, leader, agent = "user:admin", "workflow", "leader", "agent:m1"
	)
	running := []move{
		{berth.Submitted, user, ""}, {berth.Queued, workflow, ""}, {berth.Scheduled, leader, ""}, {berth.Running, agent, ""},
	}
	again := []move{{berth.Scheduled, leader, ""}, {berth.Running, agent, ""}}
	twice := func(jobSpec spec.Job) spec.Job {
		jobSpec.Retry = spec.RetryPolicy{MaxAttempts: 2, Backoff: spec.Backoff{Initial: spec.Duration(100 * time.Millisecond)}}
		return jobSpec
	}
	return []jobLife{
		{
			says: "a job that exits 0 succeeds",
			spec: s.job("succeeds", "trap-term", "0"),
			act:  func(w *watch) { s.exits(w, 1) },
			want: moves(running, move{berth.Succeeded, workflow, ""}),
		},
		{
			says: "a job that exits 3 fails",
			spec: s.job("fails", "trap-term", "3"),
			act:  func(w *watch) { s.exits(w, 1) },
			want: moves(running, move{berth.Failed, workflow, berth.ReasonExitCode}),
		},
		{
			says: "a job that fails again is retried once and then given up",
			spec: twice(s.job("gives-up", "trap-term", "5")),
			act:  func(w *watch) { s.exits(w, 1); s.exits(w, 2) },
			want: moves(moves(moves(running, move{berth.Retrying, workflow, berth.ReasonExitCode}), again...),
				move{berth.Failed, workflow, berth.ReasonExitCode}),
		},
		{
			says: "a job that a stranger killed once is retried, at no cost to its user, and succeeds",
			spec: twice(s.job("recovers", "trap-term", "0")),
			act:  func(w *watch) { s.send(w, 1, "SIGKILL"); s.send(w, 2, "SIGTERM") },
			want: moves(moves(moves(running, move{berth.Retrying, workflow, berth.ReasonMachineError}), again...),
				move{berth.Succeeded, workflow, ""}),
		},
		{
			says: "a running job that is canceled is stopped first",
			spec: s.job("stops", "trap-term", "143"),
			act: func(w *watch) {
				w.reaches(s.t, berth.Running, 1)
				s.engine.awaitLine(w.id, "ready")
				s.cancel(w.id)
			},
			want: moves(running, move{berth.Canceling, user, berth.ReasonCanceledByUser},
				move{berth.Canceled, workflow, berth.ReasonCanceledByUser}),
		},
		{
			says: "a queued job is canceled at once",
			spec: s.wholeMachine("waits"),
			act: func(w *watch) {
				w.reaches(s.t, berth.Queued, 1)
				s.cancel(w.id)
			},
			want: moves(running[:2], move{berth.Canceled, user, berth.ReasonCanceledByUser}),
		},
	}
}

// send sends a signal to the container of a job, once the job has been seen to run so many times.
func (s *stack) send(w *watch, times int, signal string) {
	s.t.Helper()
	w.reaches(s.t, berth.Running, times)
	s.engine.awaitLine(w.id, "ready")
	s.engine.signal(w.id, signal)
}

// exits lets the program of a job exit by itself, once the job has been seen to run so many times. The signal is not
// sent through the engine, since the agent learns of such a signal and takes the exit for a stranger's doing.
func (s *stack) exits(w *watch, times int) {
	s.t.Helper()
	w.reaches(s.t, berth.Running, times)
	s.engine.awaitLine(w.id, "ready")
	if err := syscall.Kill(s.engine.program(w.id), syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
}

// notStarted reports whether an attempt ended before its container was started, as on a machine whose container engine
// takes longer for a call than the agent waits for it.
func notStarted(seen []move) bool {
	for i := 1; i < len(seen); i++ {
		infra := seen[i].Reason == berth.ReasonMachineError || seen[i].Reason == berth.ReasonUnclaimed
		if infra && seen[i].To == berth.Retrying && seen[i-1].To == berth.Scheduled {
			return true
		}
	}
	return false
}

// wholeMachine is a job that waits as long as anything else runs.
func (s *stack) wholeMachine(name string) spec.Job {
	jobSpec := s.job(name, "exit", "0")
	all := spec.MilliCPU(64_000)
	jobSpec.Resources.CPUs = &all
	return jobSpec
}

func (s *stack) cancel(id berth.JobID) {
	s.t.Helper()
	s.accepts("cancel job "+string(id), func(ctx context.Context) error {
		_, err := s.api.Cancel(ctx, id) // a second call has no second effect
		return err
	})
}

func moves(first []move, more ...move) []move { return append(append([]move{}, first...), more...) }

// watch follows a job's history from its first event on.
type watch struct {
	id   berth.JobID
	over chan struct{} // closed at the end of the history

	mu   sync.Mutex
	seen []move
	err  error
}

func (s *stack) watch(id berth.JobID) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{id: id, over: make(chan struct{})}
	go func() {
		defer close(w.over)
		err := s.api.FollowEvents(ctx, id, 0, w.note)
		// The client resumes a stream that has begun.
		for ctx.Err() == nil && client.Unreachable(err) && !w.begun() {
			err = s.api.FollowEvents(ctx, id, 0, w.note)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.err = err
	}()
	s.t.Cleanup(func() { cancel(); <-w.over })
	return w
}

// note is called with each event.
func (w *watch) note(e wire.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Kind == wire.EventState {
		m := move{To: e.To, Actor: e.Actor}
		if e.Reason != nil {
			m.Reason = e.Reason.Code
		}
		w.seen = append(w.seen, m)
	}
	return nil
}

// begun reports whether any event has come.
func (w *watch) begun() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen) > 0
}

var errNotYet = errors.New("not yet")

// reaches waits until the watcher has seen a status so many times.
func (w *watch) reaches(t testing.TB, want berth.State, times int) {
	t.Helper()
	until(t, "the watcher sees "+string(want), func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		n := 0
		for _, m := range w.seen {
			if m.To == want {
				n++
			}
		}
		if n < times {
			return errNotYet
		}
		return nil
	})
}

// end waits for the end of the history and returns all of it.
func (w *watch) end(t *testing.T) []move {
	t.Helper()
	select {
	case <-w.over:
	case <-time.After(patience):
		t.Fatalf("never: the history of job %s ends", w.id)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		t.Fatalf("watch job %s: %v", w.id, w.err)
	}
	return w.seen
}
