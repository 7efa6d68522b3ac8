package scale_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"berth"
	"berth/e2e/rig"
	"berth/workers"
)

// Work that starts leave behind is not the cost of running jobs. A window at rest
// opens when Temporal has no activity task of a waiter left to dispatch, and the
// CPU of the servers has stopped falling: the newest window of levelWindow uses at
// least levelPart of the mean of the two before it, or less than levelNoise below.
// After levelLimit it opens anyway, and the table says so.
const (
	levelWindow = 10 * time.Second
	levelLimit  = 3 * time.Minute
	levelPart   = 0.9
	levelNoise  = 0.01 // cores
)

// level waits until the servers are level, and returns a note on how long that took.
func (c *cell) level() (note string) {
	c.t.Helper()
	began := time.Now()
	temporal, err := workers.Dial(workers.ClientOptions{Address: c.Temporal})
	if err != nil {
		c.t.Fatal(err)
	}
	defer temporal.Close()
	var used []float64
	left := int64(0)
	for time.Since(began) < levelLimit && c.t.Context().Err() == nil {
		before := c.Read()
		pause(c.t.Context(), levelWindow)
		after := c.Read()
		sum := 0.0
		for _, g := range rig.Servers {
			sum += after.Cores(g, before)
		}
		used = append(used, sum)
		if left, err = backlog(c.t.Context(), temporal, berth.QueueWaiters); err != nil {
			c.t.Fatalf("backlog of queue %s: %v", berth.QueueWaiters, err)
		}
		if left == 0 && isLevel(used) {
			return fmt.Sprintf("level after %.0f s", time.Since(began).Seconds())
		}
	}
	return fmt.Sprintf("NOT level after %s: %d waiters not dispatched, CPU of the servers %.2f", levelLimit, left, used)
}

// isLevel reports whether the last three windows fall no further.
func isLevel(used []float64) bool {
	if len(used) < 3 {
		return false
	}
	last := used[len(used)-3:]
	mean := (last[0] + last[1]) / 2
	return last[2] >= levelPart*mean || mean-last[2] < levelNoise
}

// backlog returns about how many activity tasks of a queue wait to be dispatched.
func backlog(ctx context.Context, temporal client.Client, queue string) (n int64, err error) {
	d, err := temporal.DescribeTaskQueueEnhanced(ctx, client.DescribeTaskQueueEnhancedOptions{
		TaskQueue: queue, TaskQueueTypes: []client.TaskQueueType{client.TaskQueueTypeActivity}, ReportStats: true,
	})
	if _, none := errors.AsType[*serviceerror.NotFound](err); none {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	//lint:ignore SA1019 workers here have no versions, and the field that replaces it lists none of their backlog
	for _, v := range d.VersionsInfo {
		if info, ok := v.TypesInfo[client.TaskQueueTypeActivity]; ok && info.Stats != nil {
			n += info.Stats.ApproximateBacklogCount
		}
	}
	return n, nil
}
