package workflows_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

func TestAJobPlacedAtOnceIsReservedRunAndSettled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	w.at(time.Hour, func() {
		w.decide(1, berth.Succeeded)
		w.exit(100, exited(0))
	})
	w.execute()
	w.want("reserve", "settle 1")
	w.wantRuns(100, 1)
}

func TestAJobThatWaitsIsWokenByAPoke(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wire.JobView{State: berth.Queued})
	w.at(24*time.Hour, func() {
		w.grant(1, 1)
		w.poke()
	})
	w.at(25*time.Hour, func() {
		w.decide(1, berth.Succeeded)
		w.exit(100, exited(0))
	})
	w.execute()
	w.want("reserve", "reserve", "settle 1")
}

func TestPokesMayBeDoubledAndStale(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wire.JobView{State: berth.Queued})
	w.at(time.Minute, func() { w.poke(); w.poke(); w.poke() }) // nothing has changed
	w.at(time.Hour, func() {
		w.grant(1, 1)
		w.poke()
		w.poke()
	})
	w.at(2*time.Hour, w.poke)
	w.at(3*time.Hour, func() {
		w.decide(1, berth.Succeeded)
		w.poke()
		w.exit(100, exited(0))
	})
	w.execute()
	w.wantRuns(100, 1)
	if n := w.called("settle 1"); n != 1 {
		t.Errorf("settled %d times", n)
	}
}

func TestALostPokeIsRepairedByTheNextOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wire.JobView{State: berth.Queued})
	w.at(time.Minute, func() { w.grant(1, 1) }) // nobody says so
	w.at(time.Minute+15*time.Second, w.poke)    // the reconciler does
	w.at(time.Hour, func() {
		w.decide(1, berth.Succeeded)
		w.exit(100, exited(0))
	})
	w.execute()
	w.want("reserve", "reserve", "settle 1")
}

func TestARetryIsReservedAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	w.at(time.Hour, func() {
		w.decide(1, berth.Retrying)
		w.exit(100, exited(1))
	})
	w.at(2*time.Hour, func() {
		w.grant(2, 1)
		w.poke()
	})
	w.at(3*time.Hour, func() {
		w.decide(2, berth.Failed)
		w.exit(200, exited(1))
	})
	w.execute() // a failed job completes its workflow
	w.want("reserve", "settle 1", "reserve", "reserve", "settle 2")
}

func TestATerminalJobEndsItsWorkflowAtOnce(t *testing.T) {
	t.Parallel()
	for _, s := range []berth.State{berth.Succeeded, berth.Failed, berth.Canceled} {
		w := newWorld(t, wire.JobView{State: s, Attempt: 1})
		w.execute()
		w.want("reserve")
	}
}

func TestARebuiltWorkflowAdoptsWhatRuns(t *testing.T) {
	t.Parallel()
	row := granted(3, 1)
	row.State, row.Slots[0].State = berth.Running, berth.AllocActive
	w := newWorld(t, row)
	w.at(time.Hour, func() {
		w.decide(3, berth.Succeeded)
		w.exit(300, exited(0))
	})
	w.execute()
	w.want("reserve", "settle 3")
}

func TestARebuiltWorkflowSettlesWhatHasEnded(t *testing.T) {
	t.Parallel()
	row := granted(1, 1)
	row.State, row.Slots[0].State, row.Slots[0].Sealed = berth.Running, berth.AllocExited, true
	w := newWorld(t, row)
	w.decide(1, berth.Succeeded)
	w.execute()
	w.want("reserve", "settle 1")
	w.wantRuns(100, 0)
}

func TestCancelWhileWaiting(t *testing.T) {
	t.Parallel()
	for name, cancel := range cancels {
		w := newWorld(t, wire.JobView{State: berth.Queued})
		w.at(time.Hour, func() { cancel(w) })
		t.Log(name)
		w.execute()
		w.want("reserve", "cancel")
	}
}

// cancels are the ways in which Temporal's side asks for a cancel.
var cancels = map[string]func(*world){
	"signal":  func(w *world) { w.env.SignalWorkflow(berth.SignalCancel, nil) },
	"request": func(w *world) { w.env.CancelWorkflow() },
	"both, and twice": func(w *world) {
		w.env.SignalWorkflow(berth.SignalCancel, nil)
		w.env.SignalWorkflow(berth.SignalCancel, nil)
		w.env.CancelWorkflow()
	},
}

func TestCancelWhileRunningWaitsForTheMachine(t *testing.T) {
	t.Parallel()
	for name, cancel := range cancels {
		w := newWorld(t, granted(1, 1))
		w.at(time.Hour, func() { cancel(w) })
		w.at(2*time.Hour, func() { w.env.SignalWorkflow(berth.SignalCancel, nil) })
		w.at(3*time.Hour, func() {
			w.decide(1, berth.Canceled)
			w.exit(100, failure.Exit{Cause: failure.CauseOrdered, Code: 143, StartedAt: start, FinishedAt: start})
		})
		t.Log(name)
		w.execute()
		w.want("reserve", "cancel", "settle 1")
		w.wantRuns(100, 1)
	}
}

func TestCancelDuringAPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	w.at(time.Hour, func() { w.finish(100, wire.RunResult{Phase: berth.PhaseSealed}, nil) }) // not in the row yet
	w.at(time.Hour+500*time.Millisecond, func() { w.env.SignalWorkflow(berth.SignalCancel, nil) })
	w.at(2*time.Hour, func() {
		w.decide(1, berth.Canceled)
		w.exit(100, exited(143))
	})
	w.execute()
	w.want("reserve", "settle 1", "cancel", "settle 1")
}

func TestCancelBeforeTheFirstStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wire.JobView{State: berth.Submitted})
	w.at(0, func() { w.env.CancelWorkflow() })
	w.execute()
	if w.called("cancel") != 1 || w.row.State != berth.Canceled {
		t.Errorf("steps are %q", w.calls)
	}
}

func TestSettleIsRepeatedUntilTheRowIsReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	for i := range 4 { // the agent says that it is over, the row does not
		w.at(time.Duration(i)*time.Hour+time.Minute, func() { w.finish(100, wire.RunResult{Phase: berth.PhaseSealed}, nil) })
	}
	w.at(3*time.Hour+time.Minute-time.Second, func() {
		w.decide(1, berth.Succeeded)
		w.seal(100)
	})
	w.execute()
	w.want("reserve", "settle 1", "reserve", "settle 1", "reserve", "settle 1", "reserve", "settle 1")
	w.wantRuns(100, 4)
}

func TestStepsFallBackToActivitiesWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	w.fail[wire.ActivityReserve.Name()] = temporal.NewApplicationError("database does not answer", string(berth.CodeUnavailable))
	w.at(5*time.Hour, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fail = map[string]error{}
		w.decided[1] = berth.Succeeded
	})
	w.at(6*time.Hour, func() { w.exit(100, exited(0)) })
	w.execute()
	if n := w.called("reserve"); n < 100 {
		t.Errorf("tried %d times in five hours", n)
	}
}

func TestAMissingRowFailsTheWorkflow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wire.JobView{})
	w.fail[wire.ActivityReserve.Name()] = temporal.NewNonRetryableApplicationError("no such job", string(berth.CodeNotFound), nil)
	w.env.ExecuteWorkflow(berth.WorkflowJob, wire.JobInput{Job: id})
	var app *temporal.ApplicationError
	if err := w.env.GetWorkflowError(); !errors.As(err, &app) || app.Type() != string(berth.CodeNotFound) {
		t.Errorf("got %v", err)
	}
	w.want("reserve")
}

func TestARefusedStepIsTriedAgainAfterAPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	refusal := temporal.NewNonRetryableApplicationError("attempt 1 cannot be settled", string(berth.CodeInvalid), nil)
	w.fail[wire.ActivitySettle.Name()] = refusal
	w.at(time.Hour, func() { w.exit(100, exited(0)) })
	w.at(2*time.Hour, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.fail, wire.ActivitySettle.Name())
		w.decided[1] = berth.Succeeded
	})
	w.execute()
	if n := w.called("settle 1"); n < 10 || n > 200 {
		t.Errorf("tried %d times in an hour", n)
	}
}

func TestContinuesAsNewWithinAnAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	w.at(time.Hour, func() {
		w.env.SetContinueAsNewSuggested(true)
		w.poke()
	})
	w.env.ExecuteWorkflow(berth.WorkflowJob, wire.JobInput{Job: id})
	var next *workflow.ContinueAsNewError
	if err := w.env.GetWorkflowError(); !errors.As(err, &next) || next.WorkflowType.Name != berth.WorkflowJob {
		t.Errorf("got %v", err)
	}
	w.want("reserve", "load")
}

func TestACancelIsOnTheRowBeforeContinuingAsNew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	w.at(time.Hour, func() {
		w.env.SetContinueAsNewSuggested(true)
		w.env.SignalWorkflow(berth.SignalCancel, nil)
	})
	w.env.ExecuteWorkflow(berth.WorkflowJob, wire.JobInput{Job: id})
	var next *workflow.ContinueAsNewError
	if err := w.env.GetWorkflowError(); !errors.As(err, &next) {
		t.Errorf("got %v", err)
	}
	w.want("reserve", "cancel")
}

func TestWhatEntersAHistoryRoundTripsThroughJSON(t *testing.T) {
	t.Parallel()
	check(t, wire.JobInput{Job: id})
	check(t, wire.RunRequest{Job: id, Attempt: 2, Alloc: 3})
	e := exited(3)
	check(t, wire.RunResult{Phase: berth.PhaseSealed, Exit: &e})
	check(t, wire.SettleResult{NotReady: true, Next: berth.Retrying, HasParent: true})
	v := granted(2, 2)
	v.Slots[1].GPUs, v.ResumeStep, v.StopBy, v.RunLimit, v.CancelSeen = []int{0, 1}, 7, start, spec.Duration(time.Hour), true
	check(t, v)
}

func check[T any](t *testing.T, v T) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var back T
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v, back); diff != "" {
		t.Errorf("%T (-want +got):\n%s", v, diff)
	}
}
