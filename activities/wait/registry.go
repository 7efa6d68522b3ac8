package wait

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"berth"
	"berth/wire"
)

// Store reads the rows of members.
type Store interface {
	// Members returns the rows of these allocations. For an allocation without a
	// row, or of a job that was archived, it returns nothing.
	Members(ctx context.Context, allocs []berth.AllocationID) ([]wire.MemberView, error)
	// Ended returns the allocations of the whole cluster whose end is stored and
	// whose attempt is not settled.
	Ended(ctx context.Context) ([]berth.AllocationID, error)
}

// Hints tell which members may have ended. They may be lost, doubled and early.
type Hints interface {
	// News has a value when there are hints to take.
	News() <-chan struct{}
	// Take returns the allocations hinted at since the last call. missed reports
	// that hints may have been lost meanwhile.
	Take() (allocs []berth.AllocationID, missed bool)
}

// Temporal is where activities come from, by the tokens of their tasks. Each
// method returns ErrGone if the activity is over, canceled or repeated elsewhere;
// after any other error the call is worth another try. The implementation bounds
// the rate and the length of calls.
type Temporal interface {
	Complete(ctx context.Context, token []byte, r wire.RunResult) error
	Beat(ctx context.Context, token []byte, p wire.RunProgress) error
	// HandOver ends this try of the activity. The server starts the next one after
	// the delay, wherever a worker is free.
	HandOver(ctx context.Context, token []byte, delay time.Duration) error
}

// ErrGone says that Temporal does not wait for the activity of a token.
var ErrGone = errors.New("activity is over")

// Options tune a Registry. Zero fields take their defaults.
type Options struct {
	Sweep  time.Duration // between two reads of the members that have ended: 2 s
	Beat   time.Duration // the longest time between two heartbeats: wire.WaiterBeat
	Peers  Peers         // nil: the members that this replica waits for are not shared
	Share  time.Duration // between two calls of Peers: 10 s
	Logger *slog.Logger
}

const (
	readLimit  = 5 * time.Second // of one read of rows
	readPause  = time.Second     // after one that failed
	enders     = 16              // completions, or hand-overs, at once
	beaters    = 4               // heartbeats at once
	beatsAhead = 1000            // heartbeats that were read and wait for a sender

	firstPause = 200 * time.Millisecond // of a sender, after a call that failed
	maxPause   = 10 * time.Second
)

// Registry holds the members that this replica waits for. All methods may be
// called concurrently; Run must be under way for anything to happen.
type Registry struct {
	store    Store
	temporal Temporal
	opts     Options
	log      *slog.Logger

	mu      sync.Mutex
	change  *sync.Cond // ends, or closed
	waiting map[berth.AllocationID]*waiter
	count   int
	unread  map[berth.AllocationID]struct{} // rows to read at once
	ends    []end
	sending int  // ends that a sender has taken from ends
	closed  bool // Run is over: senders stop
	left    bool // HandOver was called: nothing enters

	wake chan struct{} // to read
	due  chan beat
}

// waiter is one activity that waits. Of one member there may be several: the
// server repeats an activity whose heartbeats it misses, and a workflow that was
// started again schedules another.
type waiter struct {
	alloc    berth.AllocationID
	token    []byte
	next     *waiter // of the same member
	beatAt   time.Time
	beating  bool // a heartbeat is under way
	progress wire.RunProgress
}

// end is a result on its way to Temporal.
type end struct {
	token  []byte
	result wire.RunResult
}

// New returns a registry that Run sets to work.
func New(store Store, t Temporal, o Options) *Registry {
	if o.Sweep == 0 {
		o.Sweep = 2 * time.Second
	}
	if o.Beat == 0 {
		o.Beat = wire.WaiterBeat
	}
	if o.Share == 0 {
		o.Share = 10 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Registry{
		store: store, temporal: t, opts: o, log: o.Logger,
		waiting: map[berth.AllocationID]*waiter{},
		unread:  map[berth.AllocationID]struct{}{},
		wake:    make(chan struct{}, 1),
		due:     make(chan beat, beatsAhead),
	}
	r.change = sync.NewCond(&r.mu)
	return r
}

// Enter notes that the activity with that token waits for a member. It returns
// false if this replica stops: then another one is to wait.
func (r *Registry) Enter(alloc berth.AllocationID, token []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left {
		return false
	}
	// The first heartbeats of waiters that come at once are spread over the whole
	// interval, and stay spread.
	first := time.Now().Add(r.opts.Beat/10 + rand.N(r.opts.Beat*9/10))
	r.waiting[alloc] = &waiter{alloc: alloc, token: token, next: r.waiting[alloc], beatAt: first}
	r.count++
	r.unread[alloc] = struct{}{} // it may have ended before this
	r.poke()
	return true
}

// Waiting returns how many activities wait here, and how many results are on
// their way to Temporal.
func (r *Registry) Waiting() (waiting, ending int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count, len(r.ends)
}

// poke wakes Run to read; r.mu is held.
func (r *Registry) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run reads rows, completes activities and sends heartbeats until ctx ends, and
// returns its error.
func (r *Registry) Run(ctx context.Context, hints Hints) error {
	var all sync.WaitGroup
	defer all.Wait()
	for range beaters {
		all.Go(func() { r.sendBeats(ctx) })
	}
	for range enders {
		all.Go(func() { r.sendEnds(ctx) })
	}
	if r.opts.Peers != nil {
		all.Go(func() { r.share(ctx) })
	}
	defer r.close()
	tick := time.NewTicker(r.opts.Sweep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-hints.News():
			r.hear(hints.Take())
		case <-r.wake:
		case now := <-tick.C:
			r.sweep(ctx)
			r.beat(ctx, now)
		}
		if err := r.read(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("rows of members not read, will retry", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(readPause):
			}
		}
	}
}

func (r *Registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.change.Broadcast()
}

// hear marks the members for reading that hints are about; all of them where hints
// were lost.
func (r *Registry) hear(allocs []berth.AllocationID, missed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if missed {
		for id := range r.waiting {
			r.unread[id] = struct{}{}
		}
		return
	}
	for _, id := range allocs {
		if r.waiting[id] != nil {
			r.unread[id] = struct{}{}
		}
	}
}

// sweep marks the members for reading that have ended, whoever recorded it.
func (r *Registry) sweep(ctx context.Context) {
	if n, _ := r.Waiting(); n == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	ended, err := r.store.Ended(ctx)
	if err != nil {
		r.log.Debug("ended members not read, will retry", "err", err)
		return
	}
	r.hear(ended, false)
}

// read reads the marked rows and acts on what they say.
func (r *Registry) read(ctx context.Context) error {
	r.mu.Lock()
	ids := make([]berth.AllocationID, 0, len(r.unread))
	for id := range r.unread {
		if r.waiting[id] != nil {
			ids = append(ids, id)
		}
	}
	clear(r.unread)
	r.mu.Unlock()
	views, err := r.members(ctx, ids)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		for _, id := range ids {
			r.unread[id] = struct{}{}
		}
		r.poke()
		return err
	}
	for _, id := range ids {
		v, found := views[id]
		r.deliver(id, v, found)
	}
	return nil
}

// members returns the rows of the allocations by their id.
func (r *Registry) members(ctx context.Context,
	ids []berth.AllocationID) (map[berth.AllocationID]wire.MemberView, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	list, err := r.store.Members(ctx, ids)
	if err != nil {
		return nil, err
	}
	views := make(map[berth.AllocationID]wire.MemberView, len(list))
	for _, v := range list {
		views[v.Alloc] = v
	}
	return views, nil
}

// deliver ends the wait for a member if its row says so. Where it says that there
// is nothing to wait for, or where there is no row, the result is not sealed: the
// workflow reads the row then. r.mu is held.
func (r *Registry) deliver(id berth.AllocationID, v wire.MemberView, found bool) {
	var result wire.RunResult
	switch {
	case found && v.Sealed:
		result = wire.RunResult{Phase: berth.PhaseSealed, Exit: v.Exit}
	case found && v.Live():
		for w := r.waiting[id]; w != nil; w = w.next {
			w.progress = v.Progress
		}
		return
	}
	for w := r.waiting[id]; w != nil; w = w.next {
		r.ends = append(r.ends, end{w.token, result})
		r.count--
	}
	delete(r.waiting, id)
	r.change.Broadcast()
}

// sendEnds completes activities until Run is over, each for as long as it takes.
func (r *Registry) sendEnds(ctx context.Context) {
	pause := firstPause
	for {
		e, ok := r.nextEnd()
		if !ok {
			return
		}
		err := r.complete(ctx, e)
		r.sent(e, err)
		if err == nil {
			pause = firstPause
			continue
		}
		r.log.Debug("activity not completed, will retry", "pause", pause, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, maxPause)
	}
}

// nextEnd waits for a result to send; false once Run is over.
func (r *Registry) nextEnd() (end, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.closed && len(r.ends) == 0 {
		r.change.Wait()
	}
	if r.closed {
		return end{}, false
	}
	e := r.ends[0]
	r.ends = r.ends[1:]
	r.sending++
	return e, true
}

// sent records the outcome of a completion. One that failed goes behind the others,
// since it may be at fault itself.
func (r *Registry) sent(e end, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sending--
	if err != nil {
		r.ends = append(r.ends, e)
	}
	r.change.Broadcast()
}

// drain waits until every result that was read has been sent, or ctx ends.
func (r *Registry) drain(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.change.Broadcast()
	})
	defer stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for ctx.Err() == nil && !r.closed && len(r.ends)+r.sending > 0 {
		r.change.Wait()
	}
}

// complete sends one result. An activity that is gone needs none.
func (r *Registry) complete(ctx context.Context, e end) error {
	if err := r.temporal.Complete(ctx, e.token, e.result); !errors.Is(err, ErrGone) {
		return err
	}
	return nil
}

// HandOver gives the waiters to other replicas, because this one stops: nothing
// enters any more, and the server starts each activity again elsewhere, spread
// over as long as the others need to take them up. Results that were read already
// are sent in the same time. HandOver ends with ctx, or at the first call that
// Temporal does not answer, and returns the number of waiters that it did not hand
// over: the server misses their heartbeats, and ends before that are settled by
// pokes.
func (r *Registry) HandOver(ctx context.Context) (left int) {
	if left = r.handOver(ctx); left == 0 {
		r.drain(ctx)
	}
	return left
}

func (r *Registry) handOver(ctx context.Context) (left int) {
	var tokens [][]byte
	r.mu.Lock()
	r.left = true
	for _, first := range r.waiting {
		for w := first; w != nil; w = w.next {
			tokens = append(tokens, w.token)
		}
	}
	clear(r.waiting)
	r.count = 0
	r.mu.Unlock()
	if len(tokens) == 0 {
		return 0
	}
	spread := time.Second + time.Duration(len(tokens))*time.Second/takenUp
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	next := make(chan []byte)
	var mu sync.Mutex
	var all sync.WaitGroup
	left = len(tokens)
	for range enders {
		all.Go(func() {
			for token := range next {
				err := r.temporal.HandOver(ctx, token, rand.N(spread))
				if err != nil && !errors.Is(err, ErrGone) {
					stop()
					continue
				}
				mu.Lock()
				left--
				mu.Unlock()
			}
		})
	}
	for _, token := range tokens {
		select {
		case next <- token:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	all.Wait()
	r.log.Info("handed waiters over", "waiters", len(tokens)-left, "left", left, "spread", spread)
	return left
}

// takenUp is how many waiters a second the replicas that go on should have to take
// up after one has handed over its own.
const takenUp = 100
