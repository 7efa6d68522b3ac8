package bench_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"berth/workers"
)

// The floor: a workflow that does nothing but run one activity on another task
// queue, as a job's workflow runs one on its machine's.
const (
	floorWorkflow = "Floor"
	floorActivity = "Nothing.v1"
)

// floor runs bare workflows, through the same client.
type floor struct {
	*stack
	queue string
	tuned bool
	ended atomic.Int64
	next  atomic.Int64
}

// newFloor starts the workers of bare workflows: with the SDK's own options, or
// tuned, with all that Berth's workers and starts have of better ones.
func (s *stack) newFloor(tuned bool) *floor {
	f := &floor{stack: s, queue: "floor", tuned: tuned}
	var control, node worker.Options
	if tuned {
		f.queue, control, node = "tuned-floor", workers.ControlOptions(control), workers.WaiterOptions(node)
	}
	w := worker.New(s.temporal, f.queue, control)
	w.RegisterWorkflowWithOptions(f.workflow, workflow.RegisterOptions{Name: floorWorkflow})
	m := worker.New(s.temporal, f.machine(), node)
	m.RegisterActivityWithOptions(func(context.Context, string) error { return nil }, activity.RegisterOptions{Name: floorActivity})
	for _, w := range []worker.Worker{w, m} {
		s.must(w.Start())
		s.b.Cleanup(w.Stop)
	}
	return f
}

func (f *floor) machine() string { return f.queue + "-machine" }

func (f *floor) workflow(ctx workflow.Context, id string) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue: f.machine(), ScheduleToStartTimeout: 2 * time.Minute, StartToCloseTimeout: time.Hour, HeartbeatTimeout: 2 * time.Minute,
	})
	err := workflow.ExecuteActivity(ctx, floorActivity, id).Get(ctx, nil)
	f.ended.Add(1) // none of them is replayed: their worker lives as long as they
	return err
}

// start starts one; tuned, it takes its first task along, as a job's does.
func (f *floor) start(ctx context.Context) (client.WorkflowRun, error) {
	id := fmt.Sprintf("%s/%d", f.queue, f.next.Add(1))
	return f.temporal.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: id, TaskQueue: f.queue, EnableEagerStart: f.tuned,
	}, floorWorkflow, id)
}
