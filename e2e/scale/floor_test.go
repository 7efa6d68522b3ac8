package scale_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"berth/e2e/rig"
	"berth/workers"
)

// A bare workflow runs one activity on another task queue and does nothing
// else: the floor under everything that Berth does with Temporal.
const (
	floorWorkflow = "Floor"
	floorActivity = "Nothing.v1"
	floorQueue    = "floor"
	floorMachine  = "floor-machine"
)

// bareRate runs n bare workflows from as many clients as submit jobs elsewhere,
// with the SDK's own options, and returns how many ended a second.
func (c *cell) bareRate(n int) float64 {
	c.t.Helper()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	temporal, err := workers.Dial(workers.ClientOptions{Address: c.Temporal, Logger: log})
	if err != nil {
		c.t.Fatal(err)
	}
	defer temporal.Close()
	control, node := worker.New(temporal, floorQueue, worker.Options{}), worker.New(temporal, floorMachine, worker.Options{})
	var ended atomic.Int64
	control.RegisterWorkflowWithOptions(func(ctx workflow.Context) error {
		defer ended.Add(1) // none is replayed: their worker lives as long as they do
		return bareWorkflow(ctx)
	}, workflow.RegisterOptions{Name: floorWorkflow})
	node.RegisterActivityWithOptions(func(context.Context) error { return nil }, activity.RegisterOptions{Name: floorActivity})
	for _, w := range []worker.Worker{control, node} {
		if err := w.Start(); err != nil {
			c.t.Fatal(err)
		}
		defer w.Stop()
	}
	load := func(prefix string, n int) float64 {
		began, target := time.Now(), ended.Load()+int64(n)
		next := make(chan int)
		var all sync.WaitGroup
		for range submitters {
			all.Go(func() {
				for i := range next {
					if _, err := temporal.ExecuteWorkflow(c.t.Context(), client.StartWorkflowOptions{ID: fmt.Sprintf("floor/%s/%d", prefix, i), TaskQueue: floorQueue}, floorWorkflow); err != nil {
						c.t.Errorf("start a bare workflow: %v", err)
					}
				}
			})
		}
		for i := range n {
			next <- i
		}
		close(next)
		all.Wait()
		until(c.t, "every bare workflow has ended", 2*time.Minute, func(context.Context) error {
			if left := target - ended.Load(); left > 0 {
				return fmt.Errorf("%d are left", left)
			}
			return nil
		})
		return float64(n) / time.Since(began).Seconds()
	}
	load("warm", n/4) // caches and connections
	return load("measured", n)
}

func bareWorkflow(ctx workflow.Context) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue: floorMachine, ScheduleToStartTimeout: 2 * time.Minute, StartToCloseTimeout: time.Hour, HeartbeatTimeout: 2 * time.Minute,
	})
	return workflow.ExecuteActivity(ctx, floorActivity).Get(ctx, nil)
}

// measureBare adds the rate of bare workflows.
func (c *cell) measureBare(n int) float64 {
	rate := c.bareRate(n)
	c.table.Add(rig.Figure{Name: "bare workflows of one activity", Value: rate, Unit: "/s", Note: "the floor of this run"})
	return rate
}
