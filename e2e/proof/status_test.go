package proof_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/spec"
	"berth/wire"
)

// move is a change of status as a job's watcher sees it.
type move struct {
	To     berth.State
	Actor  string
	Reason berth.ReasonCode
}

// Each row is one life of a job; together they go through every status but
// preempting.
func TestEveryStatusIsSeenWithItsActorAndItsCause(t *testing.T) {
	t.Parallel()
	s := onHost(t)
	const (
		user, workflow, leader, agent = "user:admin", "workflow", "leader", "agent:m1"
	)
	running := []move{
		{berth.Submitted, user, ""}, {berth.Queued, workflow, ""}, {berth.Scheduled, leader, ""}, {berth.Running, agent, ""},
	}
	twice := func(jobSpec spec.Job) spec.Job {
		jobSpec.Retry = spec.RetryPolicy{MaxAttempts: 2, Backoff: spec.Backoff{Initial: spec.Duration(100 * time.Millisecond)}}
		return jobSpec
	}
	lives := []struct {
		says string
		spec spec.Job
		act  func(w *watch)
		want []move
	}{
		{
			says: "a job that exits 0 succeeds",
			spec: s.job("succeeds", "exit", "0"),
			want: moves(running, move{berth.Succeeded, workflow, ""}),
		},
		{
			says: "a job that exits 3 fails",
			spec: s.job("fails", "exit", "3"),
			want: moves(running, move{berth.Failed, workflow, berth.ReasonExitCode}),
		},
		{
			says: "a job that fails again is retried once and then given up",
			spec: twice(s.job("gives-up", "exit", "5")),
			want: moves(running, move{berth.Retrying, workflow, berth.ReasonExitCode},
				move{berth.Scheduled, leader, ""}, move{berth.Running, agent, ""}, move{berth.Failed, workflow, berth.ReasonExitCode}),
		},
		{
			says: "a job that a stranger killed once is retried, at no cost to its user, and succeeds",
			spec: twice(s.job("recovers", "trap-term", "0")),
			act: func(w *watch) {
				s.engine.awaitLine(w.id, "ready")
				s.engine.signal(w.id, "SIGKILL")
				w.reaches(t, berth.Running, 2)
				s.engine.awaitLine(w.id, "ready")
				s.engine.signal(w.id, "SIGTERM")
			},
			want: moves(running, move{berth.Retrying, workflow, berth.ReasonMachineError},
				move{berth.Scheduled, leader, ""}, move{berth.Running, agent, ""}, move{berth.Succeeded, workflow, ""}),
		},
		{
			says: "a running job that is canceled is stopped first",
			spec: s.job("stops", "trap-term", "143"),
			act: func(w *watch) {
				s.engine.awaitLine(w.id, "ready")
				s.cancel(w.id)
			},
			want: moves(running, move{berth.Canceling, user, berth.ReasonCanceledByUser}, move{berth.Canceled, workflow, berth.ReasonCanceledByUser}),
		},
		{
			says: "a queued job is canceled at once",
			spec: s.wholeMachine("waits"),
			act: func(w *watch) {
				w.reaches(t, berth.Queued, 1)
				s.cancel(w.id)
			},
			want: moves(running[:2], move{berth.Canceled, user, berth.ReasonCanceledByUser}),
		},
	}
	// As long as this one runs, nothing else has the whole machine.
	holder := s.submit(s.shift("holder"))
	s.becomes(holder, berth.Running)
	watches := make([]*watch, len(lives))
	for i, life := range lives {
		watches[i] = s.watch(s.submit(life.spec))
	}
	for i, life := range lives {
		if life.act != nil {
			life.act(watches[i])
		}
	}
	for i, life := range lives {
		if diff := cmp.Diff(life.want, watches[i].end(t)); diff != "" {
			t.Errorf("%s, but what was watched is (-want +got):\n%s", life.says, diff)
		}
	}
	s.endShifts([]berth.JobID{holder})
	s.wantShiftsDone([]berth.JobID{holder})
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
	if _, err := s.api.Cancel(s.t.Context(), id); err != nil {
		s.t.Fatal(err)
	}
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
		err := s.api.FollowEvents(ctx, id, 0, func(e wire.Event) error {
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
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.err = err
	}()
	s.t.Cleanup(func() { cancel(); <-w.over })
	return w
}

var errNotYet = errors.New("not yet")

// reaches waits until the watcher has seen a status so many times.
func (w *watch) reaches(t *testing.T, want berth.State, times int) {
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
