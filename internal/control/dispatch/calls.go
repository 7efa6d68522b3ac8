package dispatch

import (
	"context"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"berth/internal/lib/overload"
)

// Temporal is the part of a Temporal client that the dispatcher uses.
type Temporal interface {
	ExecuteWorkflow(
		ctx context.Context, o client.StartWorkflowOptions, workflow any, args ...any,
	) (client.WorkflowRun, error)
	SignalWorkflow(ctx context.Context, workflowID, runID, signal string, arg any) error
	TerminateWorkflow(ctx context.Context, workflowID, runID, reason string, details ...any) error
	CompleteActivityByID(
		ctx context.Context, namespace, workflowID, runID, activityID string, result any, err error,
	) error
	DescribeWorkflowExecution(
		ctx context.Context, workflowID, runID string,
	) (*workflowservice.DescribeWorkflowExecutionResponse, error)
	ListWorkflow(
		ctx context.Context, r *workflowservice.ListWorkflowExecutionsRequest,
	) (*workflowservice.ListWorkflowExecutionsResponse, error)
	ScheduleClient() client.ScheduleClient
}

// Repeats of failed calls: a tenth of the successful calls, ten at once, and one per
// second even while no call succeeds.
const (
	// knee is how many times its latency with few calls Temporal may take. With more calls
	// in flight it starts no more workflows a second, and a tenant's only job waits for
	// all of them. Latencies vary: a factor of 2 cost throughput on crowded hosts.
	knee = 3

	repeatShare = 0.1
	repeatBurst = 10
	repeatEvery = time.Second
)

// Calls makes the calls of this process to Temporal, under one limit, and remembers
// whether Temporal answers. All methods may be called concurrently.
type Calls struct {
	temporal Temporal
	limiter  *overload.Limiter // every call to Temporal but probes
	repeats  *overload.Budget
	health   health
}

// newCalls returns calls that count Temporal as down until its first answer.
func newCalls(t Temporal) *Calls {
	c := &Calls{
		temporal: t,
		limiter:  overload.New(overload.Options{Name: "temporal", Max: inFlight, Knee: knee, Overloaded: isOverload}),
		repeats:  overload.NewBudget(repeatShare, repeatBurst, repeatEvery),
	}
	c.health.up = make(chan struct{}, 1)
	return c
}

// Limiter bounds all calls to Temporal of this process. Callers outside of this
// package make theirs by Call.
func (c *Calls) Limiter() *overload.Limiter { return c.limiter }

// Repeats is the budget for repeats of calls to Temporal.
func (c *Calls) Repeats() *overload.Budget { return c.repeats }

// Call makes a call to Temporal under this process's limit and deadline, and
// records whether Temporal answered. An error of f that is an answer, such as a
// canceled activity, must not be returned by f unless it is a service error.
func (c *Calls) Call(ctx context.Context, class overload.Class, f func(ctx context.Context) error) error {
	p, err := c.limiter.Acquire(ctx, class)
	if err != nil {
		return err
	}
	return c.call(ctx, p, f)
}

// call is Call with a permit that the caller has acquired, and ends the permit.
func (c *Calls) call(ctx context.Context, p *overload.Permit, f func(ctx context.Context) error) error {
	return p.Do(ctx, func(within context.Context) error {
		err := f(within)
		c.note(ctx, err)
		return err
	})
}

// Await returns when the limit has room for a call of that class. It makes no
// call: work whose cost arises elsewhere, such as a task that Temporal will
// dispatch next, waits here for its turn.
func (c *Calls) Await(ctx context.Context, class overload.Class) error {
	p, err := c.limiter.Acquire(ctx, class)
	if err == nil {
		p.Drop()
	}
	return err
}

// list makes a call whose latency grows with the number of results. Such a call has a
// deadline of its own, and its latency does not change the limit.
func (c *Calls) list(ctx context.Context, f func(ctx context.Context) error) error {
	p, err := c.limiter.AcquireSlow(ctx, overload.Sweep)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	err = f(within)
	c.note(ctx, err)
	if ctx.Err() != nil {
		p.Done(nil) // its caller gave it up, which says nothing
	} else {
		p.Done(err)
	}
	return err
}

// Healthy reports whether workflows can drive new placements: Temporal answers, or
// has not failed for long.
func (c *Calls) Healthy() bool {
	h := &c.health
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ok || time.Since(h.okAt) < patience
}

// note records the outcome of a call made under ctx. The end of ctx says nothing
// about Temporal.
func (c *Calls) note(ctx context.Context, err error) (answered bool) {
	return ctx.Err() != nil || c.health.note(err)
}

// Check is nil if Temporal answers. It looks up a workflow that does not exist:
// the cheapest question that only a server with our namespace can answer.
func (c *Calls) Check(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := c.temporal.DescribeWorkflowExecution(call, "berth/probe", "")
	if c.note(ctx, err) {
		return ctx.Err()
	}
	return err
}
