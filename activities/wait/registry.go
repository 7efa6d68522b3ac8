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

// Hints name members that may have ended. Hints may be lost, doubled and early.
type Hints interface {
	// News has a value when Take has hints to return.
	News() <-chan struct{}
	// Take returns the allocations hinted at since the last call. missed reports
	// that hints may have been lost meanwhile.
	Take() (allocs []berth.AllocationID, missed bool)
}

// Temporal completes activities by the tokens of their tasks. Each method returns ErrGone
// if the activity is over, canceled or repeated elsewhere; any other error is worth a
// retry. The implementation bounds the rate and the length of calls.
type Temporal interface {
	// Complete ends the activity with a result.
	Complete(ctx context.Context, token []byte, r wire.RunResult) error
	// Beat sends a heartbeat with the member's progress.
	Beat(ctx context.Context, token []byte, p wire.RunProgress) error
	// HandOver ends this try of the activity. The server starts the next one after
	// the delay, wherever a worker is free.
	HandOver(ctx context.Context, token []byte, delay time.Duration) error
}

// ErrGone reports that Temporal does not wait for the activity of a token.
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
	enders     = 16              // concurrent completions, or hand-overs
	beaters    = 4               // concurrent heartbeats
	beatsAhead = 1000            // heartbeats that may wait for a sender

	firstPause = 200 * time.Millisecond // of a sender, after a call that failed
	maxPause   = 10 * time.Second
)

// Registry holds the members for which this replica waits. All methods may be called
// concurrently. Nothing is read or sent unless Run is running.
type Registry struct {
	store    Store
	temporal Temporal
	opts     Options
	log      *slog.Logger

	mu      sync.Mutex
	change  *sync.Cond                      // of ends, sending or closed
	waiting map[berth.AllocationID]*waiter  // the waiters of a member are a list
	count   int                             // waiters in all
	unread  map[berth.AllocationID]struct{} // members to read in the next pass
	ends    []end                           // results to send
	sending int                             // ends that a sender has taken from ends
	closed  bool                            // Run is over: senders stop
	left    bool                            // HandOver was called: Enter refuses

	wake chan struct{} // Run has rows to read
	due  chan beat     // for the senders of heartbeats
}

// waiter is one waiting activity. A member may have several: the server repeats an activity
// if it misses heartbeats, and a restarted workflow schedules another.
type waiter struct {
	alloc    berth.AllocationID
	token    []byte
	next     *waiter          // of the same member
	beatAt   time.Time        // when the next heartbeat is due
	beating  bool             // a heartbeat is under way
	progress wire.RunProgress // of the last read
}

// end is a result on its way to Temporal.
type end struct {
	token  []byte
	result wire.RunResult
}

// New returns a registry without waiters; Run starts its work.
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

// Enter makes the activity with that token wait for a member. It returns false if this
// replica is stopping: then the caller ends the activity, and another replica waits.
func (r *Registry) Enter(alloc berth.AllocationID, token []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left {
		return false
	}
	// The first heartbeats of waiters that come at once are spread over the whole interval,
	// and stay spread.
	first := time.Now().Add(r.opts.Beat/10 + rand.N(r.opts.Beat*9/10))
	r.waiting[alloc] = &waiter{alloc: alloc, token: token, next: r.waiting[alloc], beatAt: first}
	r.count++
	r.unread[alloc] = struct{}{} // the member may have ended before
	r.poke()
	return true
}

// Waiting returns the number of waiting activities, and of results that are not sent yet.
func (r *Registry) Waiting() (waiting, ending int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count, len(r.ends)
}

// poke makes Run read the unread rows soon; r.mu is held.
func (r *Registry) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run reads rows, completes activities and sends heartbeats until ctx ends, and returns
// ctx's error.
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
			r.log.Warn("cannot read members, will retry", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(readPause):
			}
		}
	}
}

// close stops the senders of ends, which wait on change and not on a context.
func (r *Registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.change.Broadcast()
}

// hear marks hinted members for reading, or all members if hints were lost.
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

// sweep marks members for reading that have ended anywhere: an end reported to another
// replica may come without a hint.
func (r *Registry) sweep(ctx context.Context) {
	if n, _ := r.Waiting(); n == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	ended, err := r.store.Ended(ctx)
	if err != nil {
		r.log.Debug("cannot read ended members, will retry", "err", err)
		return
	}
	r.hear(ended, false)
}

// read reads the marked rows in one call and delivers the rows to the waiters. After a
// failure all of them stay marked.
func (r *Registry) read(ctx context.Context) error {
	r.mu.Lock()
	ids := make([]berth.AllocationID, 0, len(r.unread))
	for id := range r.unread {
		if r.waiting[id] != nil {
			ids = append(ids, id)
		}
	}
	// Cleared before the read: a hint that comes during the read marks its member again.
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

// members returns the rows of the allocations by id.
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

// deliver ends the wait for a member with a stored end. If the row shows that the attempt
// has gone on, or does not exist, the result is not sealed, and the workflow then reads the
// row. A live member keeps waiting. r.mu is held.
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

// sendEnds completes activities until Run ends. It retries with growing pauses, without a
// limit.
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
		r.log.Debug("cannot complete activity, will retry", "pause", pause, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, maxPause)
	}
}

// nextEnd waits for a result to send; false means that Run has ended.
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

// sent records the outcome of a completion. A failed one goes behind the others, since the
// fault may be its own.
func (r *Registry) sent(e end, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sending--
	if err != nil {
		r.ends = append(r.ends, e)
	}
	r.change.Broadcast()
}

// drain waits until every result has been sent, or ctx ends.
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

// complete sends one result. ErrGone counts as success: the result is not needed.
func (r *Registry) complete(ctx context.Context, e end) error {
	if err := r.temporal.Complete(ctx, e.token, e.result); !errors.Is(err, ErrGone) {
		return err
	}
	return nil
}

// HandOver passes the waiters on to other replicas when this one stops. Enter refuses from
// now on, and the server starts each activity again elsewhere, spread over the time that
// the other replicas need to enter the waiters (takenUp). Results that were read already
// are sent meanwhile. HandOver ends with ctx, or at the first call that Temporal does not
// answer, and returns the number of waiters that were not handed over: the server misses
// their heartbeats and repeats the activities, and members that end before that are settled
// by pokes.
func (r *Registry) HandOver(ctx context.Context) (left int) {
	if left = r.handOver(ctx); left == 0 {
		r.drain(ctx)
	}
	return left
}

// handOver is HandOver without the wait for results.
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
				// Temporal is down or too slow: further calls would only use up the time of
				// the stop.
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

// takenUp is the number of waiters per second that the remaining replicas should have to
// enter after a hand-over.
const takenUp = 100
