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
)

// Temporal is what the dispatcher needs of a Temporal client.
type Temporal interface {
	ExecuteWorkflow(ctx context.Context, o client.StartWorkflowOptions, workflow any, args ...any) (client.WorkflowRun, error)
	SignalWorkflow(ctx context.Context, workflowID, runID, signal string, arg any) error
	TerminateWorkflow(ctx context.Context, workflowID, runID, reason string, details ...any) error
	DescribeWorkflowExecution(ctx context.Context, workflowID, runID string) (*workflowservice.DescribeWorkflowExecutionResponse, error)
	ListWorkflow(ctx context.Context, r *workflowservice.ListWorkflowExecutionsRequest) (*workflowservice.ListWorkflowExecutionsResponse, error)
	ScheduleClient() client.ScheduleClient
}

// Options tune a Dispatcher. Zero fields take their defaults.
type Options struct {
	Starts     bool          // start workflows of submitted jobs, not only poke
	SweepEvery time.Duration // 5 s
	Moment     time.Duration // before starting what another process accepted: 100 ms
	PerSecond  float64       // starts on average: 500
	Logger     *slog.Logger
}

const (
	inFlight   = 32               // starts, and pokes, at once
	callLimit  = 10 * time.Second // of one call to Temporal
	sweepBatch = 2000
	remembered = time.Minute // starts, so that the sweep does not repeat them while workers are behind
)

// Dispatcher starts and pokes workflows. All methods but Run may be called
// concurrently, and before Run.
type Dispatcher struct {
	temporal Temporal
	db       *db.DB
	opts     Options
	log      *slog.Logger
	limit    *rate.Limiter
	starts   chan db.Dispatch

	health health
	pokes  pokes

	mu      sync.Mutex
	waiters map[berth.JobID]*waiter
	started map[berth.JobID]time.Time
}

// New returns a dispatcher that Run sets to work.
func New(t Temporal, d *db.DB, o Options) *Dispatcher {
	if o.SweepEvery == 0 {
		o.SweepEvery = 5 * time.Second
	}
	if o.Moment == 0 {
		o.Moment = 100 * time.Millisecond
	}
	if o.PerSecond == 0 {
		o.PerSecond = 500
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	x := &Dispatcher{
		temporal: t, db: d, opts: o, log: o.Logger,
		limit:   rate.NewLimiter(rate.Limit(o.PerSecond), inFlight),
		starts:  make(chan db.Dispatch, 4*inFlight),
		waiters: map[berth.JobID]*waiter{},
		started: map[berth.JobID]time.Time{},
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
