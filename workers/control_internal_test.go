package workers

import (
	"context"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"

	"berth/wire"
)

// A long step sends heartbeats, so the server knows that its worker is alive.
func TestStepsOfMachinesSendHeartbeats(t *testing.T) {
	t.Parallel()
	env := (&testsuite.WorkflowTestSuite{}).NewTestActivityEnvironment()
	heard := make(chan struct{}, 100)
	env.SetOnActivityHeartbeatListener(func(*activity.Info, converter.EncodedValues) { heard <- struct{}{} })
	step := beating(time.Millisecond, func(ctx context.Context, in wire.MachineInput) (wire.MachineStepResult, error) {
		select {
		case <-heard:
		case <-time.After(time.Minute):
			t.Error("no heartbeat")
		}
		return wire.MachineStepResult{State: string(in.Machine)}, ctx.Err()
	})
	env.RegisterActivity(wire.ActivityMachine.Func(step))
	value, err := env.ExecuteActivity(wire.ActivityMachine.Func(step), wire.MachineInput{Machine: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	var result wire.MachineStepResult
	if err := value.Get(&result); err != nil || result.State != "m1" {
		t.Errorf("result %+v, %v", result, err)
	}
}
