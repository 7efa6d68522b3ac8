package workers

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/activities/control"
	"berth/wire"
	"berth/workflows"
)

// waiting bounds the first steps of workflows that wait for the leader at once in a
// process. Each holds a workflow task and a goroutine, little more; a further submission
// waits in the task queue.
const waiting = 2000

// stickyFor is the time for which a workflow's task waits for the worker with the workflow
// in memory; then any worker takes the task and replays the history. It is the delay of a
// workflow whose worker was lost in the last ten seconds. The SDK's default is 5 s. Much
// less than 2 s would make a busy worker replay workflows that it still has in memory.
const stickyFor = 2 * time.Second

// Control is the worker of the control queue: workflows, and their steps next to the
// database.
type Control struct {
	client   client.Client
	steps    *control.Steps
	machines *control.MachineSteps
	log      *slog.Logger
}

// NewControl returns a worker; Run starts to serve.
func NewControl(c client.Client, steps *control.Steps, machines *control.MachineSteps, log *slog.Logger) *Control {
	return &Control{c, steps, machines, log}
}

// Run serves the queue until ctx ends and then finishes the tasks under way.
func (c *Control) Run(ctx context.Context) error {
	return serve(ctx, c.client, c.log.With("queue", berth.QueueControl), c.build)
}

// ControlOptions are the options of the control queue's worker, on top of o.
func ControlOptions(o worker.Options) worker.Options {
	o.MaxConcurrentWorkflowTaskExecutionSize = waiting
	o.MaxConcurrentLocalActivityExecutionSize = waiting
	o.MaxConcurrentWorkflowTaskPollers = 8 // half of them poll this process's sticky queue
	o.MaxConcurrentActivityExecutionSize = 200
	o.MaxConcurrentActivityTaskPollers = 2 // steps come here only while the database is away
	o.DisableEagerActivities = true        // Run is served on another queue
	// The SDK would send each heartbeat of a step only when four fifths of its timeout have passed.
	o.MaxHeartbeatThrottleInterval = wire.MachineStepBeat
	o.StickyScheduleToStartTimeout = stickyFor
	o.DeadlockDetectionTimeout = 5 * time.Second
	return o
}

// build returns a worker with all workflows and steps, by their names in packages berth and wire.
func (c *Control) build(o worker.Options) worker.Worker {
	w := worker.New(c.client, berth.QueueControl, ControlOptions(o))
	registerWorkflows(w)
	c.registerSteps(w)
	return w
}

// registerWorkflows registers all workflows. Their names are part of histories and never change.
func registerWorkflows(r worker.WorkflowRegistry) {
	r.RegisterWorkflowWithOptions(workflows.Job, workflow.RegisterOptions{Name: berth.WorkflowJob})
	r.RegisterWorkflowWithOptions(workflows.Array, workflow.RegisterOptions{Name: berth.WorkflowArray})
	r.RegisterWorkflowWithOptions(workflows.Pipeline, workflow.RegisterOptions{Name: berth.WorkflowPipeline})
	r.RegisterWorkflowWithOptions(workflows.Fire, workflow.RegisterOptions{Name: berth.WorkflowFire})
	r.RegisterWorkflowWithOptions(workflows.Machine, workflow.RegisterOptions{Name: wire.WorkflowMachine})
}

// registerSteps registers all steps of workflows.
func (c *Control) registerSteps(r worker.ActivityRegistry) {
	register(r, wire.ActivityReserve, c.steps.Reserve)
	register(r, wire.ActivityLoad, c.steps.Load)
	register(r, wire.ActivitySettle, c.steps.Settle)
	register(r, wire.ActivityStopAttempt, c.steps.StopAttempt)
	register(r, wire.ActivityEscalate, c.steps.Escalate)
	register(r, wire.ActivityRequestCancel, c.steps.RequestCancel)
	register(r, wire.ActivityReconcile, c.steps.Reconcile)
	register(r, wire.ActivityCancelParent, c.steps.CancelParent)
	register(r, wire.ActivityFire, c.steps.Fire)
	register(r, wire.ActivityMachine, beating(wire.MachineStepBeat, c.machines.Step))
}

// beating returns a handler that sends heartbeats while serve runs.
func beating[In, Out any](every time.Duration, serve wire.Handler[In, Out]) wire.Handler[In, Out] {
	return func(ctx context.Context, in In) (Out, error) {
		served := make(chan struct{})
		var beats sync.WaitGroup
		defer beats.Wait()
		defer close(served)
		beats.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for {
				select {
				case <-served:
					return
				case <-tick.C:
					activity.RecordHeartbeat(ctx)
				}
			}
		})
		return serve(ctx, in)
	}
}

// register registers the handler of an activity under the activity's name.
func register[In, Out any](r worker.ActivityRegistry, a wire.Activity[In, Out], serve wire.Handler[In, Out]) {
	r.RegisterActivityWithOptions(a.Func(serve), activity.RegisterOptions{Name: a.Name()})
}
