package dispatch

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"golang.org/x/time/rate"

	"berth"
	"berth/db"
	"berth/internal/lib/overload"
)

// Temporal is the part of a Temporal client that the dispatcher uses.
type Temporal interface {
	ExecuteWorkflow(ctx context.Context, o client.StartWorkflowOptions, workflow any, args ...any) (client.WorkflowRun, error)
	SignalWorkflow(ctx context.Context, workflowID, runID, signal string, arg any) error
	TerminateWorkflow(ctx context.Context, workflowID, runID, reason string, details ...any) error
	CompleteActivityByID(
		ctx context.Context, namespace, workflowID, runID, activityID string, result any, err error,
	) error
	DescribeWorkflowExecution(ctx context.Context, workflowID, runID string) (*workflowservice.DescribeWorkflowExecutionResponse, error)
	ListWorkflow(ctx context.Context, r *workflowservice.ListWorkflowExecutionsRequest) (*workflowservice.ListWorkflowExecutionsResponse, error)
	ScheduleClient() client.ScheduleClient
}

// rows are the dispatcher's reads of the database.
type rows interface {
	Submitted(ctx context.Context, ids []berth.JobID) ([]db.Dispatch, error)
	SubmittedBefore(ctx context.Context, age time.Duration, limit int) ([]db.Dispatch, error)
	Live(ctx context.Context, ids []berth.JobID) ([]db.Dispatch, error)
	Pressure(ctx context.Context, from, to time.Duration) (db.Pressure, error)
	Unheard(ctx context.Context, allocs []berth.AllocationID) ([]berth.JobID, error)
	Hub() *db.Hub
}

// Options tune a Dispatcher. Zero fields take their defaults.
type Options struct {
	Starts     bool          // start workflows of submitted jobs, not only poke
	SweepEvery time.Duration // 5 s
	Moment     time.Duration // before starting jobs that another process accepted: 100 ms
	PerSecond  float64       // starts on average: 500

	Namespace string // of the workflows, for Rewait: "default"

	// EndPatience is how long a workflow may take to act on an end recorded here
	// before it is poked: 3 s. EndLook is how long it may take while Temporal answers
	// quickly and only a few workflows are late: 1 s.
	EndLook, EndPatience time.Duration
	Logger               *slog.Logger
}

const (
	inFlight   = 32               // calls at once; also starts, and pokes, that wait for their turn
	callLimit  = 10 * time.Second // of a probe
	sweepBatch = 2000
	remembered = 10 * time.Minute // starts, so that the sweep does not repeat them while workers are behind
	stale      = time.Second      // after which a job that waited to be started is read again

	// Unsettled attempts count from unsettledFrom after their end until
	// unsettledTo, when the reconciler pokes them: then they are stuck.
	unsettledFrom = time.Second
	unsettledTo   = time.Minute
)

// Repeats of failed calls: a tenth of the successful calls, ten at once, and one per
// second even while no call succeeds.
const (
	repeatShare = 0.1
	repeatBurst = 10
	repeatEvery = time.Second
)

// Dispatcher starts and pokes workflows. All methods but Run may be called
// concurrently, and before Run.
type Dispatcher struct {
	temporal Temporal
	db       rows
	opts     Options
	log      *slog.Logger
	pace     *rate.Limiter
	calls    *overload.Limiter // every call to Temporal but probes
	repeats  *overload.Budget
	gate     *overload.Gate
	starts   chan start

	health health
	pokes  pokes

	mu      sync.Mutex
	waiters map[berth.JobID]*waiter
	started map[berth.JobID]time.Time
	failed  map[berth.JobID]*failure
}

// start is a job whose workflow is to be started.
type start struct {
	db.Dispatch
	since time.Time // when its row was read
}

// New returns a dispatcher that Run sets to work.
func New(t Temporal, d *db.DB, o Options) *Dispatcher { return newDispatcher(t, stores{d}, o) }

func newDispatcher(t Temporal, d rows, o Options) *Dispatcher {
	if o.SweepEvery == 0 {
		o.SweepEvery = 5 * time.Second
	}
	if o.Moment == 0 {
		o.Moment = 100 * time.Millisecond
	}
	if o.PerSecond == 0 {
		o.PerSecond = 500
	}
	if o.Namespace == "" {
		o.Namespace = "default"
	}
	if o.EndLook == 0 {
		o.EndLook = endLook
	}
	if o.EndPatience == 0 {
		o.EndPatience = endPatience
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	x := &Dispatcher{
		temporal: t, db: d, opts: o, log: o.Logger,
		pace:    rate.NewLimiter(rate.Limit(o.PerSecond), inFlight),
		calls:   overload.New(overload.Options{Name: "temporal", Max: inFlight, Overloaded: isOverload}),
		repeats: overload.NewBudget(repeatShare, repeatBurst, repeatEvery),
		gate:    overload.NewGate(o.Logger),
		starts:  make(chan start, 4*inFlight),
		waiters: map[berth.JobID]*waiter{},
		started: map[berth.JobID]time.Time{},
		failed:  map[berth.JobID]*failure{},
	}
	x.health.up = make(chan struct{}, 1)
	x.pokes.init()
	return x
}

// Run starts and pokes until ctx ends, and returns its error.
func (d *Dispatcher) Run(ctx context.Context) error {
	var all sync.WaitGroup
	all.Go(func() { d.probe(ctx) })
	stop := context.AfterFunc(ctx, d.pokes.close)
	defer stop()
	for range inFlight {
		all.Go(func() { d.sendPokes(ctx) })
	}
	all.Go(func() { d.hearPokes(ctx) })
	all.Go(func() { _ = d.gate.Run(ctx, d.pressure) })
	all.Go(func() { d.hearAdmission(ctx) })
	all.Go(func() { d.watchEnds(ctx) })
	if d.opts.Starts {
		for range inFlight {
			all.Go(func() { d.sendStarts(ctx) })
		}
		all.Go(func() { d.hear(ctx, db.Here, 0) })
		all.Go(func() { d.hear(ctx, db.Elsewhere, d.opts.Moment) })
		all.Go(func() { d.sweep(ctx) })
	}
	all.Wait()
	return ctx.Err()
}

// Limiter bounds all calls to Temporal of this process. Callers outside of this
// package make theirs by Call.
func (d *Dispatcher) Limiter() *overload.Limiter { return d.calls }

// Repeats is the budget for repeats of calls to Temporal.
func (d *Dispatcher) Repeats() *overload.Budget { return d.repeats }

// Gate holds back new starts in this process. Run makes it follow the database.
func (d *Dispatcher) Gate() *overload.Gate { return d.gate }

func (d *Dispatcher) pressure(ctx context.Context) (overload.Pressure, error) {
	p, err := d.db.Pressure(ctx, unsettledFrom, unsettledTo)
	return overload.Pressure(p), err
}

// hearAdmission makes the gate look as soon as somebody has paused or resumed.
func (d *Dispatcher) hearAdmission(ctx context.Context) {
	sub := d.db.Hub().Subscribe(db.TopicAdmission, "*")
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.C:
			d.gate.Look()
		}
	}
}

// Call makes a call to Temporal under this process's limit and deadline, and
// records whether Temporal answered. An error of f that is an answer, such as a
// canceled activity, must not be returned by f unless it is a service error.
func (d *Dispatcher) Call(ctx context.Context, class overload.Class, f func(ctx context.Context) error) error {
	return d.calls.Do(ctx, class, func(within context.Context) error {
		err := f(within)
		d.note(ctx, err)
		return err
	})
}

// Await returns when the limit has room for a call of that class. It makes no
// call: work whose cost arises elsewhere, such as a task that Temporal will
// dispatch next, waits here for its turn.
func (d *Dispatcher) Await(ctx context.Context, class overload.Class) error {
	p, err := d.calls.Acquire(ctx, class)
	if err == nil {
		p.Drop()
	}
	return err
}

// list makes a call whose latency depends on how much there is to list.
func (d *Dispatcher) list(ctx context.Context, f func(ctx context.Context) error) error {
	p, err := d.calls.AcquireSlow(ctx, overload.Sweep)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	err = f(within)
	d.note(ctx, err)
	if ctx.Err() != nil {
		p.Done(nil) // its caller gave it up, which says nothing
	} else {
		p.Done(err)
	}
	return err
}
