package node_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"berth"
	"berth/activities/node"
)

// script is a supervisor that plays what it is told.
type script struct {
	ensured berth.RunRequest
	ensure  error
	end     chan berth.RunResult
}

func (s *script) Ensure(_ context.Context, req berth.RunRequest) error {
	s.ensured = req
	return s.ensure
}

func (s *script) Wait(ctx context.Context, _ berth.AllocationID) (berth.RunResult, error) {
	select {
	case r := <-s.end:
		return r, nil
	case <-ctx.Done():
		return berth.RunResult{}, ctx.Err()
	}
}

func (s *script) Progress(berth.AllocationID) berth.RunProgress {
	return berth.RunProgress{Phase: berth.PhaseRunning}
}

func environment(s *script) *testsuite.TestActivityEnvironment {
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivityWithOptions((&node.Activities{Supervisor: s}).Run, activity.RegisterOptions{Name: berth.ActivityRun})
	return env
}

var request = berth.RunRequest{Job: "018f0000-0000-7000-8000-000000000001", Attempt: 2, Alloc: 7}

func TestRunReturnsTheEndAsAValue(t *testing.T) {
	t.Parallel()
	for _, want := range []berth.RunResult{
		{Phase: berth.PhaseSealed, Exit: &berth.Exit{Cause: berth.CauseExited, Code: 3}},
		{}, // not this machine's work any more
	} {
		s := &script{end: make(chan berth.RunResult, 1)}
		s.end <- want
		value, err := environment(s).ExecuteActivity(berth.ActivityRun, request)
		if err != nil {
			t.Fatal(err)
		}
		var got berth.RunResult
		if err := value.Get(&got); err != nil || got.Phase != want.Phase || (got.Exit == nil) != (want.Exit == nil) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
		if s.ensured != request {
			t.Errorf("ensured %+v", s.ensured)
		}
	}
}

func TestRunThatCannotBeTakenUpIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := &script{ensure: errors.New("no session yet")}
	_, err := environment(s).ExecuteActivity(berth.ActivityRun, request)
	if e, ok := errors.AsType[*temporal.ApplicationError](err); !ok || e.NonRetryable() {
		t.Errorf("error is %v", err)
	}
}

func TestRunOfAStoppingAgentIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := &script{end: make(chan berth.RunResult)}
	env := environment(s)
	stop := make(chan struct{})
	env.SetWorkerStopChannel(stop)
	close(stop)
	began := time.Now()
	_, err := env.ExecuteActivity(berth.ActivityRun, request)
	if e, ok := errors.AsType[*temporal.ApplicationError](err); !ok || e.NonRetryable() || e.Type() != "AgentStopping" {
		t.Errorf("error is %v", err)
	}
	if time.Since(began) > time.Minute {
		t.Error("it took its time")
	}
}
