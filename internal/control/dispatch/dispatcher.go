package dispatch

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"berth"
	"berth/db"
	"berth/internal/lib/overload"
)

// rows are the dispatcher's reads of the database.
type rows interface {
	Submitted(ctx context.Context, ids []berth.JobID) ([]db.Dispatch, error)
	SubmittedBefore(ctx context.Context, age time.Duration, limit int) ([]db.Dispatch, error)
	Live(ctx context.Context, ids []berth.JobID) ([]db.Dispatch, error)
	Pressure(ctx context.Context, from, to time.Duration) (db.Pressure, error)
	Unheard(ctx context.Context, allocs []berth.AllocationID) ([]berth.JobID, error)
	Hub() *db.Hub
	AwaitTurn(ctx context.Context) error
}

// Options tune a Dispatcher. Zero fields take their defaults.
type Options struct {
	Starts     bool          // start workflows of submitted jobs, not only poke
	SweepEvery time.Duration // 5 s
	Moment     time.Duration // before starting jobs that another process accepted: 100 ms
	PerSecond  float64       // starts on average: 500

	Namespace string // of the workflows, for Rewait: "default"
	API       string // address of the API, for links in memos; "": memos have no link

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

	// Attempts count as unsettled from unsettledFrom after their end. From unsettledTo on the
	// reconciler pokes them, and they count as stuck.
	unsettledFrom = time.Second
	unsettledTo   = time.Minute
)

// Dispatcher starts and pokes workflows. All methods but Run may be called
// concurrently, and before Run.
type Dispatcher struct {
	*Calls
	*TemporalSchedules
	db     rows
	opts   Options
	log    *slog.Logger
	pace   *rate.Limiter
	gate   *overload.Gate
	starts *startQueue
	turns  databaseTurns
	marks  *startMarks
	pokes  pokes

	starter *starter

	mu      sync.Mutex
	waiters map[berth.JobID]*waiter
}

// start is a queued start of a job's workflow.
type start struct {
	db.Dispatch
	since time.Time // when the row was read
}

// New returns a dispatcher; Run starts its work.
func New(t Temporal, d *db.DB, o Options) *Dispatcher { return newDispatcher(t, stores{d}, o) }

// newDispatcher is New with the rows as an interface, for tests.
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
	calls := newCalls(t)
	x := &Dispatcher{
		Calls: calls, TemporalSchedules: &TemporalSchedules{calls}, db: d, opts: o, log: o.Logger,
		pace:    rate.NewLimiter(rate.Limit(o.PerSecond), inFlight),
		gate:    overload.NewGate(o.Logger),
		starts:  newStartQueue(),
		turns:   newDatabaseTurns(d),
		starter: &starter{temporal: t, api: o.API, log: o.Logger},
		marks:   newStartMarks(),
		waiters: map[berth.JobID]*waiter{},
	}
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

// Gate holds back new starts in this process. Run makes it follow the database.
func (d *Dispatcher) Gate() *overload.Gate { return d.gate }

// pressure reads the figures from which the gate computes its rates.
func (d *Dispatcher) pressure(ctx context.Context) (overload.Pressure, error) {
	p, err := d.db.Pressure(ctx, unsettledFrom, unsettledTo)
	return overload.Pressure(p), err
}

// hearAdmission makes the gate look as soon as admission is paused or resumed.
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
