package workflows_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/failure"
	"berth/wire"
	"berth/workflows"
)

const id = berth.JobID("01900000-0000-7000-8000-000000000001")

// world is a job's row and the machines, on which a test acts at points of the
// environment's own time.
type world struct {
	t   *testing.T
	env *testsuite.TestWorkflowEnvironment

	mu      sync.Mutex
	row     wire.JobView
	waiting map[berth.AllocationID][]byte // tokens of Runs under way
	calls   []string
	runs    map[berth.AllocationID]int
	fail    map[string]error    // by activity: what it fails with
	decided map[int]berth.State // by attempt: what Settle answers
	input   wire.JobInput
}

func newWorld(t *testing.T, row wire.JobView) *world {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	w := &world{
		t: t, env: suite.NewTestWorkflowEnvironment(), row: row,
		waiting: map[berth.AllocationID][]byte{}, runs: map[berth.AllocationID]int{},
		fail: map[string]error{}, decided: map[int]berth.State{}, input: wire.JobInput{Job: id},
	}
	register(w.env, wire.ActivityReserve, func(_ context.Context, _ wire.StepInput) (wire.JobView, error) {
		return w.step("reserve", wire.ActivityReserve.Name())
	})
	register(w.env, wire.ActivityLoad, func(_ context.Context, _ wire.StepInput) (wire.JobView, error) {
		return w.step("load", wire.ActivityLoad.Name())
	})
	register(w.env, wire.ActivityRequestCancel, func(_ context.Context, _ wire.StepInput) (wire.JobView, error) {
		w.mu.Lock()
		w.row.CancelSeen = true
		if w.row.State.Waiting() {
			w.row.State = berth.Canceled
		} else if !w.row.State.Terminal() {
			w.row.State = berth.Canceling
		}
		w.mu.Unlock()
		return w.step("cancel", wire.ActivityRequestCancel.Name())
	})
	register(w.env, wire.ActivityStopAttempt, func(_ context.Context, in wire.AttemptInput) (bool, error) {
		_, err := w.step(fmt.Sprintf("stop %d", in.Attempt), wire.ActivityStopAttempt.Name())
		return err == nil, err
	})
	register(w.env, wire.ActivityEscalate, func(_ context.Context, in wire.AttemptInput) (wire.None, error) {
		_, err := w.step(fmt.Sprintf("escalate %d", in.Attempt), wire.ActivityEscalate.Name())
		return wire.None{}, err
	})
	register(w.env, wire.ActivitySettle, func(_ context.Context, in wire.AttemptInput) (wire.SettleResult, error) {
		_, err := w.step(fmt.Sprintf("settle %d", in.Attempt), wire.ActivitySettle.Name())
		w.mu.Lock()
		defer w.mu.Unlock()
		next, ok := w.decided[in.Attempt]
		if ok && w.row.Attempt == in.Attempt {
			w.row = wire.JobView{State: next, Attempt: in.Attempt}
		}
		return wire.SettleResult{Next: next, NotReady: !ok}, err
	})
	register(w.env, wire.ActivityRun, func(ctx context.Context, r wire.RunRequest) (wire.RunResult, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.waiting[r.Alloc] = activity.GetInfo(ctx).TaskToken
		w.runs[r.Alloc]++
		return wire.RunResult{}, activity.ErrResultPending
	})
	w.env.RegisterWorkflowWithOptions(workflows.Job, workflow.RegisterOptions{Name: berth.WorkflowJob})
	w.env.SetTestTimeout(5 * time.Minute) // of the real clock
	return w
}

// register registers an activity of the environment.
func register[In, Out any](env *testsuite.TestWorkflowEnvironment, a wire.Activity[In, Out],
	serve wire.Handler[In, Out]) {
	env.RegisterActivityWithOptions(a.Func(serve), activity.RegisterOptions{Name: a.Name()})
}

// step notes a call and answers with the row.
func (w *world) step(call, activity string) (wire.JobView, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, call)
	if err := w.fail[activity]; err != nil {
		return wire.JobView{}, err
	}
	view := w.row
	view.Slots = slices.Clone(view.Slots)
	return view, nil
}

// count is how often a step was called; w.mu is held.
func (w *world) count(call string) int {
	n := 0
	for _, c := range w.calls {
		if c == call {
			n++
		}
	}
	return n
}

func (w *world) called(call string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count(call)
}

// at acts at a time after the workflow's start.
func (w *world) at(d time.Duration, act func()) { w.env.RegisterDelayedCallback(act, d) }

func (w *world) change(f func(row *wire.JobView)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.row)
}

func (w *world) poke() { w.env.SignalWorkflow(berth.SignalPoke, nil) }

// granted is the row after the leader placed n ranks in an attempt.
func granted(attempt, n int) wire.JobView {
	v := wire.JobView{State: berth.Scheduled, Attempt: attempt}
	for i := range n {
		v.Slots = append(v.Slots, berth.Slot{
			Alloc: berth.AllocationID(attempt*100 + i), Rank: i, Machine: berth.MachineID(fmt.Sprintf("m%d", i)), State: berth.AllocReserved,
		})
	}
	return v
}

func (w *world) grant(attempt, n int) {
	w.change(func(row *wire.JobView) { *row = granted(attempt, n) })
}

// exit ends a rank: its row, and the activity that waits for it.
func (w *world) exit(alloc berth.AllocationID, e failure.Exit) {
	w.t.Helper()
	w.seal(alloc)
	w.finish(alloc, wire.RunResult{Phase: berth.PhaseSealed, Exit: &e}, nil)
}

// seal ends a rank in its row alone.
func (w *world) seal(alloc berth.AllocationID) {
	w.slot(alloc, func(s *berth.Slot) { s.State, s.Sealed = berth.AllocExited, true })
}

func (w *world) slot(alloc berth.AllocationID, f func(s *berth.Slot)) {
	w.change(func(row *wire.JobView) {
		row.Slots = slices.Clone(row.Slots)
		for i := range row.Slots {
			if row.Slots[i].Alloc == alloc {
				f(&row.Slots[i])
			}
		}
	})
}

// finish ends the Run of a rank.
func (w *world) finish(alloc berth.AllocationID, result wire.RunResult, cause error) {
	w.t.Helper()
	w.mu.Lock()
	token := w.waiting[alloc]
	delete(w.waiting, alloc)
	w.mu.Unlock()
	if token == nil {
		w.t.Errorf("no Run waits for allocation %d", alloc)
		return
	}
	if err := w.env.CompleteActivity(token, result, cause); err != nil {
		w.t.Error(err)
	}
}

func (w *world) decide(attempt int, next berth.State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.decided[attempt] = next
}

// execute runs the workflow to its end and fails if it fails.
func (w *world) execute() {
	w.t.Helper()
	w.env.ExecuteWorkflow(berth.WorkflowJob, w.input)
	if !w.env.IsWorkflowCompleted() {
		w.t.Fatal("workflow has not completed")
	}
	if err := w.env.GetWorkflowError(); err != nil {
		w.t.Fatalf("workflow failed: %v; calls %v", err, w.calls)
	}
}

func (w *world) want(calls ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.calls, calls) {
		w.t.Errorf("steps are\n%q, want\n%q", w.calls, calls)
	}
}

func (w *world) wantRuns(alloc berth.AllocationID, n int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs[alloc] != n {
		w.t.Errorf("allocation %d was waited for %d times, want %d", alloc, w.runs[alloc], n)
	}
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func exited(code int) failure.Exit {
	return failure.Exit{Cause: failure.CauseExited, Code: code, StartedAt: start, FinishedAt: start.Add(time.Second)}
}

var errTimeout = temporal.NewTimeoutError(1, nil)
