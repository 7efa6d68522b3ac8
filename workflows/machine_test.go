package workflows_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/spec"
	"berth/wire"
	"berth/workflows"
)

// machine runs the workflow of a machine over scripted steps.
func machine(t *testing.T, step func(n int) (wire.MachineStepResult, error), poke time.Duration) (steps int, env *testsuite.TestWorkflowEnvironment) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env = suite.NewTestWorkflowEnvironment()
	env.RegisterWorkflowWithOptions(workflows.Machine, workflow.RegisterOptions{Name: wire.WorkflowMachine})
	register(env, wire.ActivityMachine, func(_ context.Context, in wire.MachineInput) (wire.MachineStepResult, error) {
		if in.Machine != "gpu-1" {
			t.Errorf("step of machine %q", in.Machine)
		}
		steps++
		return step(steps)
	})
	if poke > 0 {
		env.RegisterDelayedCallback(func() { env.SignalWorkflow(berth.SignalPoke, nil) }, poke)
	}
	env.SetTestTimeout(5 * time.Minute)
	env.ExecuteWorkflow(wire.WorkflowMachine, wire.MachineInput{Machine: "gpu-1"})
	return steps, env
}

func TestAMachinesWorkflowStepsUntilTheLaunchIsSettled(t *testing.T) {
	t.Parallel()
	steps, env := machine(t, func(n int) (wire.MachineStepResult, error) {
		if n == 2 {
			return wire.MachineStepResult{}, errors.New("the cloud is away") // Temporal repeats the step
		}
		return wire.MachineStepResult{State: "x", Wait: spec.Duration(time.Hour), Settled: n == 4}, nil
	}, 0)
	if err := env.GetWorkflowError(); err != nil || steps != 4 {
		t.Errorf("%d steps, %v", steps, err)
	}
}

func TestAPokeCutsTheWaitOfAMachineShort(t *testing.T) {
	t.Parallel()
	var env *testsuite.TestWorkflowEnvironment
	steps, env := machine(t, func(n int) (wire.MachineStepResult, error) {
		return wire.MachineStepResult{State: "x", Wait: spec.Duration(24 * time.Hour), Settled: n == 2}, nil
	}, time.Minute)
	if err := env.GetWorkflowError(); err != nil || steps != 2 {
		t.Errorf("%d steps, %v", steps, err)
	}
	if d := time.Until(env.Now()); d > 12*time.Hour {
		t.Errorf("the workflow waited for its timer: %s", d)
	}
}

func TestTheHistoryOfAMachineDoesNotGrowWithoutBound(t *testing.T) {
	t.Parallel()
	steps, env := machine(t, func(int) (wire.MachineStepResult, error) {
		return wire.MachineStepResult{State: "serving", Wait: spec.Duration(5 * time.Minute)}, nil
	}, 0)
	if err := env.GetWorkflowError(); !workflow.IsContinueAsNewError(err) || steps > 200 {
		t.Errorf("%d steps, then %v", steps, err)
	}
}
