package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
)

// machineStep is for a step that calls a cloud. A call may take 90 seconds, so it is no local activity.
// The server repeats a step whose worker died, which it notices by the missing heartbeats, and a step
// without access to the provider. Its time is far below that for which a launch may be sent again;
// steps of one machine may overlap. A step that never succeeds ends the workflow, which is started
// again for the overdue row.
var machineStep = workflow.ActivityOptions{
	TaskQueue:              berth.QueueControl,
	StartToCloseTimeout:    2 * time.Minute,
	HeartbeatTimeout:       wire.MachineStepTimeout,
	ScheduleToCloseTimeout: time.Hour,
	RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2,
		MaximumInterval: 30 * time.Second},
}

// machinePasses bounds the steps of one run of Machine. Each adds some ten events to the history.
const machinePasses = 100

// Machine drives the launches of one machine of a cloud, from the request to the proof of the end.
// It repeats one step, which reads the row and does the acts that are due, and then waits for a poke
// or for the pause that the step returned. A lost Machine is rebuilt from the row.
func Machine(ctx workflow.Context, in wire.MachineInput) error {
	poke := workflow.GetSignalChannel(ctx, berth.SignalPoke)
	for range machinePasses {
		for poke.ReceiveAsync(nil) { // the following read covers all of them
		}
		result, err := begin(workflow.WithActivityOptions(ctx, machineStep), wire.ActivityMachine, in).get(ctx)
		if err != nil {
			return err
		}
		workflow.SetCurrentDetails(ctx, result.State+" "+result.Reason)
		if result.Settled && poke.Len() == 0 {
			return nil
		}
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			break
		}
		if result.Settled {
			continue
		}
		timer, cancel := workflow.WithCancel(ctx)
		s := workflow.NewSelector(ctx)
		s.AddReceive(poke, func(workflow.ReceiveChannel, bool) {})
		s.AddFuture(workflow.NewTimer(timer, result.Wait.Std()), func(workflow.Future) {})
		s.Select(ctx)
		cancel()
	}
	return workflow.NewContinueAsNewError(ctx, wire.WorkflowMachine, in)
}
