package workers

import (
	"context"
	"log/slog"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"

	"berth"
)

// RunFunc waits for one rank's end on its machine. It returns when ctx ends or
// the worker stops (activity.GetWorkerStopChannel), and no container hears of
// either.
type RunFunc func(ctx context.Context, r berth.RunRequest) (berth.RunResult, error)

// Node is the worker of one machine's queue. All it does is wait.
type Node struct {
	client  client.Client
	machine berth.MachineID
	run     RunFunc
	log     *slog.Logger
}

// NewNode returns a worker that Run starts.
func NewNode(c client.Client, machine berth.MachineID, run RunFunc, log *slog.Logger) *Node {
	return &Node{c, machine, run, log}
}

// Run serves the machine's queue until ctx ends. Waits that are under way then
// are handed back, for this machine's next process to take up.
func (n *Node) Run(ctx context.Context) error {
	return serve(ctx, n.client, n.log.With("queue", berth.MachineQueue(n.machine)), n.build)
}

// NodeOptions are the options of a machine queue's worker, on top of o.
func NodeOptions(o worker.Options) worker.Options {
	o.DisableWorkflowWorker = true
	o.MaxConcurrentActivityExecutionSize = 4096 // waits cost a goroutine each; the machine's capacity is the limit
	o.MaxConcurrentActivityTaskPollers = 2      // each is an open call on the server, times the machines
	o.DisableEagerActivities = true
	return o
}

func (n *Node) build(o worker.Options) worker.Worker {
	o = NodeOptions(o)
	w := worker.New(n.client, berth.MachineQueue(n.machine), o)
	w.RegisterActivityWithOptions(n.wait, activity.RegisterOptions{Name: berth.ActivityRun})
	return w
}

// wait is the activity. The row has the full end of a rank; what the workflow
// gets of it must fit a history.
func (n *Node) wait(ctx context.Context, r berth.RunRequest) (berth.RunResult, error) {
	result, err := n.run(ctx, r)
	if result.Exit != nil && len(result.Exit.Message) > maxMessage {
		exit := *result.Exit
		exit.Message = clip(exit.Message, maxMessage)
		result.Exit = &exit
	}
	return result, err
}
