package workers

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"golang.org/x/time/rate"

	"berth"
	"berth/activities/wait"
	"berth/internal/lib/overload"
	"berth/wire"
)

// Waiters is the worker of the waiters queue: the activities that wait for members. Every
// replica that runs workflows serves the queue.
type Waiters struct {
	client   client.Client
	registry *wait.Registry
	hints    wait.Hints
	limit    Limit
	pace     *rate.Limiter // of repeated activities
	held     chan struct{} // one element for each activity held back by reattach
	log      *slog.Logger
	run      RunFunc // wait, or tests' wrapper of it
}

// RunFunc is the activity that waits for one member. It returns the member's end, or
// activity.ErrResultPending if the end will be sent by the task's token.
type RunFunc func(ctx context.Context, r wire.RunRequest) (wire.RunResult, error)

// Limit bounds a process's calls to Temporal. dispatch.Dispatcher implements Limit for all
// calls of a control plane, so that ends overtake starts and starts overtake repeated
// waiters.
type Limit interface {
	// Call makes a call under the limit and the limit's deadline. The error of call
	// decides whether Temporal counts as overloaded or down.
	Call(ctx context.Context, class overload.Class, call func(ctx context.Context) error) error
	// Await returns when there is room for a call of that class, and makes no call.
	Await(ctx context.Context, class overload.Class) error
}

// WaiterDeps are the parts that Waiters connects. Around is optional and wraps the
// activity; tests use Around to lose tasks.
type WaiterDeps struct {
	Client client.Client
	Limit  Limit
	Store  wait.Store
	Hints  wait.Hints // of ends
	Around func(RunFunc) RunFunc
}

// NewWaiters returns a worker; Run starts to serve.
func NewWaiters(d WaiterDeps, o wait.Options) *Waiters {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	w := &Waiters{
		client: d.Client, registry: wait.New(d.Store, ends(byToken{d.Client, d.Limit}), o), hints: d.Hints,
		limit: d.Limit, pace: rate.NewLimiter(reattached, reattached),
		held: make(chan struct{}, waiterSlots/2), log: o.Logger,
	}
	w.run = noted(w.wait)
	if d.Around != nil {
		w.run = d.Around(w.run)
	}
	return w
}

// handOver bounds the hand-over of waiters by a stopping replica.
const handOver = 10 * time.Second

// Run serves the queue until ctx ends, then hands the waiters over to other replicas.
func (w *Waiters) Run(ctx context.Context) error {
	// The registry outlives ctx: it sends ends and hands waiters over after the worker has
	// stopped.
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.registry.Run(own, w.hints) // own's end
	}()
	err := serve(ctx, w.client, w.log.With("queue", berth.QueueWaiters), w.build)
	window, cancel := context.WithTimeout(own, handOver)
	w.registry.HandOver(window)
	cancel()
	stop()
	<-done
	return err
}

// Registry returns the registry of the members for which this worker waits.
func (w *Waiters) Registry() *wait.Registry { return w.registry }

// WaiterOptions are the options of the waiters queue's worker, on top of o.
func WaiterOptions(o worker.Options) worker.Options {
	o.DisableWorkflowWorker = true
	// A first try holds a slot only for the moment in which its token is stored, and
	// reattach holds at most half of the slots, so there is always room for one more
	// member.
	o.MaxConcurrentActivityExecutionSize = waiterSlots
	// Each poller is an open call on the server, times the replicas. If none is open, the
	// server writes a task to its database and reads it again.
	o.MaxConcurrentActivityTaskPollers = 16
	o.DisableEagerActivities = true
	return o
}

func (w *Waiters) build(o worker.Options) worker.Worker {
	x := worker.New(w.client, berth.QueueWaiters, WaiterOptions(o))
	w.registerRun(x)
	return x
}

// registerRun registers the activity that waits for a member.
func (w *Waiters) registerRun(r worker.ActivityRegistry) {
	register(r, wire.ActivityRun, wire.Handler[wire.RunRequest, wire.RunResult](w.run))
}

// wait implements the activity. The registry gets the task's token, and may complete the
// activity before this function has returned.
func (w *Waiters) wait(ctx context.Context, r wire.RunRequest) (wire.RunResult, error) {
	info := activity.GetInfo(ctx)
	if info.Attempt > 1 {
		w.reattach(ctx)
	}
	if !w.registry.Enter(r.Alloc, info.TaskToken) {
		return wire.RunResult{}, stopping(time.Second)
	}
	return wire.RunResult{}, activity.ErrResultPending
}

const (
	waiterSlots = 100         // concurrent activities of the waiters queue, per replica
	reattached  = 100         // repeated activities per second, per replica
	reattachFor = time.Minute // longest hold-back of one of them
)

// reattach delays an activity that the server repeats after the loss or the stop of its
// replica: at most reattached continue per second, and none while Temporal is busy with
// ends and starts. The activity keeps its slot meanwhile. At most half of the slots are
// held so; further activities enter at once, because new members need the other half. No
// member is harmed by the delay: without a waiter its end reaches the workflow by a poke.
//
// The delay is bounded, because a dispatched task has been paid for: serving it late is
// cheaper than having it repeated.
func (w *Waiters) reattach(ctx context.Context) {
	select {
	case w.held <- struct{}{}:
		defer func() { <-w.held }()
	default:
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reattachFor)
	defer cancel()
	if w.pace.Wait(ctx) == nil {
		_ = w.limit.Await(ctx, overload.Reattach) // after the time limit the waiter enters all the same
	}
}

// stopping returns the error with which a waiter leaves a stopping worker: the server
// repeats the activity after the delay, without an event in the history.
func stopping(delay time.Duration) error {
	return temporal.NewApplicationErrorWithOptions("this replica stops, another one waits",
		"WaiterStopping", temporal.ApplicationErrorOptions{NextRetryDelay: max(delay, time.Millisecond)})
}

// byToken implements wait.Temporal over the client of this process, under its limit. Ends
// and heartbeats are of class End: a starved heartbeat costs a repetition of the activity,
// which is dearer. Hand-overs are of class Reattach.
type byToken struct {
	client client.Client
	limit  Limit
}

// call makes a call of that class. Only a missing answer is an error for the limit: a
// canceled activity says nothing about the state of the server.
func (t byToken) call(ctx context.Context, class overload.Class, f func(ctx context.Context) error) error {
	var answer error
	err := t.limit.Call(ctx, class, func(ctx context.Context) error {
		answer = f(ctx)
		if temporal.IsCanceledError(answer) || errors.Is(gone(answer), wait.ErrGone) {
			return nil
		}
		return answer
	})
	if err != nil {
		return err
	}
	return gone(answer)
}

// Complete completes an activity. The row has the full end of a member; the workflow gets
// the part that fits a history.
func (t byToken) Complete(ctx context.Context, token []byte, r wire.RunResult) error {
	return t.call(ctx, overload.End, func(ctx context.Context) error {
		return t.client.CompleteActivity(ctx, token, shortened(r), nil)
	})
}

// Beat sends a heartbeat. If the workflow has canceled the activity, Beat ends the activity
// too and returns wait.ErrGone.
func (t byToken) Beat(ctx context.Context, token []byte, p wire.RunProgress) error {
	err := t.call(ctx, overload.End, func(ctx context.Context) error {
		return t.client.RecordActivityHeartbeat(ctx, token, p)
	})
	if !temporal.IsCanceledError(err) {
		return err
	}
	// The workflow has stopped waiting. If it continues, its history should not keep an
	// activity that no worker serves.
	err = t.call(ctx, overload.End, func(ctx context.Context) error {
		return t.client.CompleteActivity(ctx, token, nil, temporal.NewCanceledError())
	})
	if err != nil {
		return err
	}
	return wait.ErrGone
}

// HandOver fails this try of the activity, so that the server repeats the activity after
// the delay.
func (t byToken) HandOver(ctx context.Context, token []byte, delay time.Duration) error {
	return t.call(ctx, overload.Reattach, func(ctx context.Context) error {
		return t.client.CompleteActivity(ctx, token, nil, stopping(delay))
	})
}

// gone maps answers that mean "no such activity" to wait.ErrGone. A paused or reset
// activity counts too: the server schedules its next try by itself.
func gone(err error) error {
	if _, ok := errors.AsType[*serviceerror.NotFound](err); ok || errors.Is(err, activity.ErrActivityPaused) ||
		errors.Is(err, activity.ErrActivityReset) {
		return wait.ErrGone
	}
	return err
}

// shortened returns the result without its long parts: the engine's message is cut, and the
// names of outputs are left out.
func shortened(r wire.RunResult) wire.RunResult {
	if r.Exit == nil {
		return r
	}
	exit := *r.Exit
	exit.Message = clip(exit.Message, maxMessage)
	exit.Unstored, exit.Refused, exit.Measured = nil, nil, nil // only the row's readers need them
	r.Exit = &exit
	return r
}
