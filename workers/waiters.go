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
	"berth/internal/lib/failpoint"
	"berth/internal/lib/overload"
	"berth/wire"
)

// Waiters is the worker of the waiters queue, which every replica serves that
// runs workflows: the activities that wait for members.
type Waiters struct {
	client   client.Client
	registry *wait.Registry
	hints    wait.Hints
	limit    Limit
	pace     *rate.Limiter // of activities that come again
	held     chan struct{} // one element for each activity that reattach holds back
	log      *slog.Logger
	run      RunFunc
}

// RunFunc is the activity that waits for one member: it returns its end, or
// activity.ErrResultPending once the end is to be sent by the task's token.
type RunFunc func(ctx context.Context, r wire.RunRequest) (wire.RunResult, error)

// Limit bounds a process's calls to Temporal. dispatch.Dispatcher implements it
// for all calls of a control plane, so that ends overtake starts and starts
// overtake waiters that come again.
type Limit interface {
	// Call makes a call under the limit and the limit's deadline. The error of call
	// decides whether Temporal counts as overloaded or down.
	Call(ctx context.Context, class overload.Class, call func(ctx context.Context) error) error
	// Await returns when there is room for a call of that class, and makes none.
	Await(ctx context.Context, class overload.Class) error
}

// WaiterDeps are the parts that Waiters connects. Around is optional, and wraps
// the activity: tests lose tasks with it.
type WaiterDeps struct {
	Client client.Client
	Limit  Limit
	Store  wait.Store
	Hints  wait.Hints // of ends
	Around func(RunFunc) RunFunc
}

// NewWaiters returns a worker that Run starts.
func NewWaiters(d WaiterDeps, o wait.Options) *Waiters {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	w := &Waiters{
		client: d.Client, registry: wait.New(d.Store, byToken{d.Client, d.Limit}, o), hints: d.Hints,
		limit: d.Limit, pace: rate.NewLimiter(reattached, reattached),
		held: make(chan struct{}, waiterSlots/2), log: o.Logger,
	}
	w.run = w.wait
	if d.Around != nil {
		w.run = d.Around(w.wait)
	}
	return w
}

// handOver is how long a replica that stops takes to hand its waiters over.
const handOver = 10 * time.Second

// Run serves the queue until ctx ends, then hands over what waits here.
func (w *Waiters) Run(ctx context.Context) error {
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

// Registry holds the members that this worker waits for.
func (w *Waiters) Registry() *wait.Registry { return w.registry }

// WaiterOptions are the options of the waiters queue's worker, on top of o.
func WaiterOptions(o worker.Options) worker.Options {
	o.DisableWorkflowWorker = true
	// A first try takes a slot for the moment in which its token is noted, and
	// reattach holds at most half of the slots, so there is always room for one more
	// member.
	o.MaxConcurrentActivityExecutionSize = waiterSlots
	// Each poller is an open call on the server, times the replicas. A task that finds
	// none open is written to the server's database and read from it again.
	o.MaxConcurrentActivityTaskPollers = 16
	o.DisableEagerActivities = true
	return o
}

func (w *Waiters) build(o worker.Options) worker.Worker {
	x := worker.New(w.client, berth.QueueWaiters, WaiterOptions(o))
	x.RegisterActivityWithOptions(w.run, activity.RegisterOptions{Name: berth.ActivityRun})
	return x
}

// wait is the activity: it notes the task's token and leaves the rest to the
// registry, which may complete the activity before this function has returned.
func (w *Waiters) wait(ctx context.Context, r wire.RunRequest) (wire.RunResult, error) {
	info := activity.GetInfo(ctx)
	if info.Attempt > 1 {
		w.reattach(ctx)
	}
	if !w.registry.Enter(r.Alloc, info.TaskToken) {
		return wire.RunResult{}, stopping(time.Second)
	}
	if err := failpoint.Hit("worker.wait.after"); err != nil {
		return wire.RunResult{}, err
	}
	return wire.RunResult{}, activity.ErrResultPending
}

const (
	waiterSlots = 100         // activities of the waiters queue at once, per replica
	reattached  = 100         // activities a second, per replica, that come again
	reattachFor = time.Minute // is the longest that one of them waits
)

// reattach holds back an activity that comes again, after the loss or the stop of
// the replica that served it: at most reattached a second, and none while Temporal
// is busy with ends and starts. The activity keeps its slot meanwhile. At
// most half of the slots are held so; further activities enter at once, because
// new members need the other half. No member is harmed by the delay: without a
// waiter its end reaches the workflow by a poke.
//
// The hold-back is bounded, because a task that was dispatched has been paid for:
// to serve it late is cheaper than to have it repeated.
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
		_ = w.limit.Await(ctx, overload.Reattach) // late: it enters all the same
	}
}

// stopping is the error with which a waiter leaves a worker that stops: the server
// starts the activity again after the delay, and writes no event of that.
func stopping(delay time.Duration) error {
	return temporal.NewApplicationErrorWithOptions("this replica stops, another one waits",
		"WaiterStopping", temporal.ApplicationErrorOptions{NextRetryDelay: max(delay, time.Millisecond)})
}

// byToken is wait.Temporal over the client of this process, under its limit. Ends
// and heartbeats are of class End: a heartbeat that starves costs a repetition of
// the activity, which is dearer. Waiters that leave are of class Reattach.
type byToken struct {
	client client.Client
	limit  Limit
}

// call makes a call of that class. Only a missing answer is an error for the
// limit: a canceled activity says nothing about the state of the server.
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

// Complete completes an activity. The row has the full end of a member; the
// workflow gets the part of it that fits a history.
func (t byToken) Complete(ctx context.Context, token []byte, r wire.RunResult) error {
	if err := failpoint.Hit("worker.end.before"); err != nil {
		return err
	}
	return t.call(ctx, overload.End, func(ctx context.Context) error {
		return t.client.CompleteActivity(ctx, token, shortened(r), nil)
	})
}

func (t byToken) Beat(ctx context.Context, token []byte, p wire.RunProgress) error {
	err := t.call(ctx, overload.End, func(ctx context.Context) error {
		return t.client.RecordActivityHeartbeat(ctx, token, p)
	})
	if !temporal.IsCanceledError(err) {
		return err
	}
	// The workflow has stopped waiting. Where it goes on, its history should not
	// keep an activity that no worker serves.
	err = t.call(ctx, overload.End, func(ctx context.Context) error {
		return t.client.CompleteActivity(ctx, token, nil, temporal.NewCanceledError())
	})
	if err != nil {
		return err
	}
	return wait.ErrGone
}

func (t byToken) HandOver(ctx context.Context, token []byte, delay time.Duration) error {
	return t.call(ctx, overload.Reattach, func(ctx context.Context) error {
		return t.client.CompleteActivity(ctx, token, nil, stopping(delay))
	})
}

// gone turns the answers that tell that nobody waits for an activity's result into
// wait.ErrGone.
func gone(err error) error {
	if _, ok := errors.AsType[*serviceerror.NotFound](err); ok || errors.Is(err, activity.ErrActivityPaused) ||
		errors.Is(err, activity.ErrActivityReset) {
		return wait.ErrGone
	}
	return err
}

// shortened bounds what an engine's own words, and the names of outputs, take of a
// payload.
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
