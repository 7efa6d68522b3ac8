package node

import (
	"context"
	"errors"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"berth"
)

// heartbeatEvery is how often a waiter tells Temporal that it lives. It is a
// backstop: the machine's lease decides who is alive, and each heartbeat is a
// write.
const heartbeatEvery = 60 * time.Second

// Supervisor owns the containers of a machine.
type Supervisor interface {
	// Ensure takes up the work of an allocation, unless it has it already.
	Ensure(ctx context.Context, req berth.RunRequest) error
	// Wait blocks until the rank's end is on record, or until it turns out not
	// to be this machine's work (any more): then the phase is not sealed.
	Wait(ctx context.Context, alloc berth.AllocationID) (berth.RunResult, error)
	// Progress tells where a rank stands.
	Progress(alloc berth.AllocationID) berth.RunProgress
}

// Activities are what a machine does for workflows.
type Activities struct{ Supervisor Supervisor }

// Run waits for one rank, from its claim to its recorded end. It owns nothing:
// when its context ends it returns and the container stays; the workflow
// schedules it again and it waits on. A bad exit is a value, and so is work
// that is not this machine's any more (a result that is not sealed): the
// workflow reads the row to learn which.
func (a *Activities) Run(ctx context.Context, req berth.RunRequest) (berth.RunResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	beat := time.NewTicker(heartbeatEvery)
	defer beat.Stop()
	done := make(chan struct{})
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		for {
			select {
			case <-done:
				return
			case <-ctx.Done():
				return
			case <-activity.GetWorkerStopChannel(ctx):
				cancel(errStopping)
				return
			case <-beat.C:
				activity.RecordHeartbeat(ctx, a.Supervisor.Progress(req.Alloc))
			}
		}
	}()
	result, err := a.wait(ctx, req)
	close(done)
	<-beating
	if errors.Is(context.Cause(ctx), errStopping) && err != nil {
		return berth.RunResult{}, temporal.NewApplicationError("the agent stops; its next process goes on", "AgentStopping")
	}
	return result, err
}

var errStopping = errors.New("agent is stopping")

func (a *Activities) wait(ctx context.Context, req berth.RunRequest) (berth.RunResult, error) {
	if err := a.Supervisor.Ensure(ctx, req); err != nil {
		return berth.RunResult{}, err
	}
	return a.Supervisor.Wait(ctx, req.Alloc)
}
