package overload

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// ErrShed reports a call that was not made because too many others wait, or because of its
// own long wait. Such a call has cost the dependency nothing.
var ErrShed = errors.New("too many calls wait")

// Options tune a Limiter. Zero fields take their defaults.
type Options struct {
	Name string // of the dependency, for errors and metrics

	Min   int // calls in flight that are always allowed: 2
	First int // calls in flight that are allowed at first: 8
	Max   int // calls in flight that are never exceeded: 32

	// Tolerance is the latency up to which the limit grows: 1 s. On a
	// dependency that is far away, three times its least latency counts instead, up to 1.5 s.
	Tolerance time.Duration

	// Knee lowers the tolerance to this multiple of the recent latency of calls that
	// were nearly alone, though not below 150 ms. Beyond the concurrency at which a
	// dependency is busy, more calls in flight only wait for each other: throughput
	// stays and latency grows. 0: Tolerance alone counts.
	Knee float64

	// Queue is the number of calls of each class that may wait: 4096. QueueFor is
	// the longest wait of a call, even with a longer context; 0: as long as its
	// context lives.
	Queue    int
	QueueFor time.Duration

	// Least and Most bound the deadline of a call: 5 s and 20 s.
	Least, Most time.Duration

	// Overloaded reports whether an error says that the dependency has too much to
	// do: a timeout, exhaustion, unavailability. nil: a passed deadline does.
	Overloaded func(error) bool
}

const (
	shrinkSlow   = 0.7 // of the limit, after a call that took too long
	shrinkFailed = 0.5 // of the limit, after a call that failed for overload
	shrinkMost   = 0.3 // of the limit at least, however slow the call was
	growth       = 8   // an eighth of the limit, and one, for each full round of good calls
	oneInLowest  = 16  // every so many permits, the least urgent class that waits is served
	farAway      = 3   // times the least latency is tolerable,
	farMost      = 1500 * time.Millisecond
	nearlyAlone  = 4                      // calls in flight up to which latency measures the dependency itself
	kneeLeast    = 150 * time.Millisecond // a shorter latency binds nothing: it is noise
	kneePart     = 10                     // a new latency counts a tenth
	aloneKept    = 30 * time.Second       // that latency is measured again after this time under load,
	aloneCalls   = 8                      // by so many calls,
	aloneFor     = 3 * time.Second        // within this time at most
	leastKept    = 5 * time.Minute        // the least latency is that of the present and the last such period
	calmAfter    = 2 * time.Second        // of rest without a bad sign, until a low limit rises by itself,
	calmDown     = 10 * time.Second       // and until a high one falls,
	calmStep     = 500 * time.Millisecond
	calmFactor   = 1.5 // by this factor each calmStep
	patience     = 10  // deadlines are so many times the recent latency
)

// Limiter bounds the calls in flight to one dependency. The bound shrinks by a
// factor when calls are slow or fail for overload, at most once for the calls
// that were in flight together, and grows by steps while calls are quick. Calls
// beyond the bound wait, the most urgent class first.
//
// All methods may be called concurrently. The zero value is not usable; see New.
type Limiter struct {
	opts Options

	mu       sync.Mutex
	limit    float64
	flying   list.List // of *Permit, oldest first
	queues   [classes]list.List
	granted  int           // permits in all, to serve the lowest class now and then
	badAt    time.Time     // when the last bad sign came
	shrunkAt time.Time     // calls that began before are no news
	boundAt  time.Time     // when the limit was last near to binding
	calmedAt time.Time     // up to when rest has been credited
	typical  time.Duration // recent latency, quick to rise and slow to fall

	// Of Options.Knee: the recent latency of calls that were nearly alone, 0 if unknown,
	// when the last such call ended, and until when only so few calls may begin.
	alone      time.Duration
	aloneAt    time.Time
	aloneUntil time.Time
	aloneLeft  int // calls that are still to be measured
	aloneSeen  int // calls in the mean, at most kneePart
	least      [2]time.Duration
	leastAt    time.Time
	rejected   [classes]int64
	calls      [classes]int64
}

// New returns a Limiter.
func New(o Options) *Limiter {
	if o.Min == 0 {
		o.Min = 2
	}
	if o.Max == 0 {
		o.Max = 32
	}
	if o.First == 0 {
		o.First = min(8, o.Max)
	}
	if o.Tolerance == 0 {
		o.Tolerance = time.Second
	}
	if o.Queue == 0 {
		o.Queue = 4096
	}
	if o.Least == 0 {
		o.Least = 5 * time.Second
	}
	if o.Most == 0 {
		o.Most = 20 * time.Second
	}
	if o.Overloaded == nil {
		o.Overloaded = func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }
	}
	return &Limiter{opts: o, limit: float64(o.First)}
}

// Permit is the right to make one call. End it with Done or Drop, once.
type Permit struct {
	l       *Limiter
	began   time.Time
	crowd   int  // calls in flight when this one began, itself included
	slow    bool // by its nature: its latency says nothing
	element *list.Element
}

// waiter is a call that waits for its permit.
type waiter struct {
	class  Class
	slow   bool
	permit chan *Permit // holds one: a permit is handed over without waiting
}

// Acquire waits for the right to make a call of that class. It returns ErrShed,
// wrapped, where the call was refused or waited too long, and the context's
// error where that ended first.
func (l *Limiter) Acquire(ctx context.Context, class Class) (*Permit, error) {
	return l.acquire(ctx, class, false)
}

// AcquireSlow is Acquire for a call with a latency that says nothing, such as a long list:
// only its error counts. It also suits a caller that prepares its call before Permit.Do,
// where latency counts again.
func (l *Limiter) AcquireSlow(ctx context.Context, class Class) (*Permit, error) {
	return l.acquire(ctx, class, true)
}

func (l *Limiter) acquire(ctx context.Context, class Class, slow bool) (*Permit, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.calm(time.Now())
	if l.hasRoom() {
		p := l.permit(class, slow)
		l.mu.Unlock()
		return p, nil
	}
	if l.queues[class].Len() >= l.opts.Queue {
		l.rejected[class]++
		l.mu.Unlock()
		return nil, fmt.Errorf("%s: %w: %d of class %s", l.opts.Name, ErrShed, l.opts.Queue, class)
	}
	w := &waiter{class: class, slow: slow, permit: make(chan *Permit, 1)}
	place := l.queues[class].PushBack(w)
	l.mu.Unlock()
	return l.wait(ctx, w, place)
}

func (l *Limiter) wait(ctx context.Context, w *waiter, place *list.Element) (*Permit, error) {
	var late <-chan time.Time
	if l.opts.QueueFor > 0 {
		t := time.NewTimer(l.opts.QueueFor)
		defer t.Stop()
		late = t.C
	}
	select {
	case p := <-w.permit:
		return p, nil
	case <-ctx.Done():
	case <-late:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case p := <-w.permit: // it came in the same moment
		return p, nil
	default:
	}
	l.queues[w.class].Remove(place)
	l.rejected[w.class]++
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%s: %w: class %s, for %s", l.opts.Name, ErrShed, w.class, l.opts.QueueFor)
}

// Do makes a call under the limit and under the limiter's deadline. The wait for
// its turn does not count against that deadline.
func (l *Limiter) Do(ctx context.Context, class Class, call func(ctx context.Context) error) error {
	p, err := l.Acquire(ctx, class)
	if err != nil {
		return err
	}
	return p.Do(ctx, call)
}

// Do makes the call that the permit allows, under the limiter's deadline, and ends the
// permit. The time since Acquire does not count as latency of the dependency.
func (p *Permit) Do(ctx context.Context, call func(ctx context.Context) error) error {
	p.l.begin(p)
	end := p.Drop // also after a panic of the call: its permit must not stay taken
	defer func() { end() }()
	within, cancel := context.WithTimeout(ctx, p.l.Deadline())
	defer cancel()
	err := call(within)
	if ctx.Err() == nil {
		end = func() { p.Done(err) }
	}
	return err
}

// begin starts the clock of a permit's call. Latency counts from now on.
func (l *Limiter) begin(p *Permit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.began, p.slow = time.Now(), false
	l.flying.MoveToBack(p.element) // the list is ordered by the begin of the calls
}

// Done ends a call and reports its error, nil for success.
func (p *Permit) Done(err error) { p.l.done(p, err) }

// Drop ends a call that was not made, or was given up by its own caller: such a call says
// nothing of the dependency. Like Done, Drop ends the permit.
func (p *Permit) Drop() {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	p.l.land(p)
}

func (l *Limiter) done(p *Permit, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	took := now.Sub(p.began)
	failed := err != nil && l.opts.Overloaded(err)
	if !p.slow && (err == nil || failed) {
		l.learn(p, took, failed, now)
	}
	switch {
	case failed:
		l.shrink(p, shrinkFailed, now)
	case !p.slow && took > l.tolerance():
		l.shrink(p, shrinkSlow, now)
	case 2*p.crowd >= int(l.limit): // otherwise the limit did not hold calls back
		l.limit = min(float64(l.opts.Max), l.limit+(1+l.limit/growth)/l.limit)
	}
	l.land(p)
}

// shrink reduces the limit by a part, the larger the slower the call was. If far fewer
// calls were in flight, the new limit follows from their number: a limit that does not bind
// would have to shrink many times.
func (l *Limiter) shrink(p *Permit, factor float64, now time.Time) {
	l.badAt = now
	if p.began.Before(l.shrunkAt) {
		return
	}
	l.shrunkAt = now
	if took := now.Sub(p.began); took > 0 {
		factor = min(factor, max(shrinkMost, float64(l.tolerance())/float64(took)))
	}
	l.limit = max(float64(l.opts.Min), factor*min(l.limit, 2*float64(p.crowd)))
}

// calm adapts the limit between ends of calls. A call in flight for longer than is
// tolerable is already a bad sign. While the limit is far from binding, its value
// becomes outdated: it returns to its start value, upwards soon after the last bad
// sign, downwards after a longer rest, so that a later burst starts carefully. A
// binding limit grows by good calls alone.
func (l *Limiter) calm(now time.Time) {
	l.measureAlone(now)
	if e := l.flying.Front(); e != nil {
		if p := e.Value.(*Permit); now.Sub(p.began) > l.tolerance() && !p.slow {
			l.shrink(p, shrinkSlow, now)
			return
		}
	}
	first, wait := float64(l.opts.First), calmAfter
	if l.limit > first {
		wait = calmDown
	}
	if 2*l.flying.Len() >= int(l.limit) || now.Sub(l.boundAt) < wait || now.Sub(l.badAt) < wait {
		l.calmedAt = now
		return
	}
	steps := int(now.Sub(l.calmedAt) / calmStep)
	if steps <= 0 {
		return
	}
	l.calmedAt = l.calmedAt.Add(time.Duration(steps) * calmStep)
	change := math.Pow(calmFactor, float64(min(steps, 100)))
	if l.limit < first {
		l.limit = min(first, l.limit*change)
	} else {
		l.limit = max(first, l.limit/change)
	}
}

// measureAlone has few calls in flight for a moment if the latency of calls nearly alone
// is unknown, or was measured long ago, while the limit binds.
func (l *Limiter) measureAlone(now time.Time) {
	if l.opts.Knee == 0 || l.isMeasuring(now) || l.flying.Len() <= nearlyAlone || now.Sub(l.aloneAt) < aloneKept {
		return
	}
	l.aloneUntil, l.aloneLeft = now.Add(aloneFor), aloneCalls
	l.aloneSeen = 0 // the old mean is outdated
	l.aloneAt = now // also where long calls leave no room for a measurement
}

func (l *Limiter) isMeasuring(now time.Time) bool { return l.aloneLeft > 0 && now.Before(l.aloneUntil) }

// learn keeps the recent latency, and the least one of calls that were nearly
// alone.
func (l *Limiter) learn(p *Permit, took time.Duration, failed bool, now time.Time) {
	part := time.Duration(20)
	if took > l.typical {
		part = 4
	}
	l.typical += (took - l.typical) / part
	if crowd := max(p.crowd, l.flying.Len()); !failed && crowd <= nearlyAlone {
		l.aloneSeen = min(l.aloneSeen+1, kneePart)
		l.alone += (took - l.alone) / time.Duration(l.aloneSeen)
		l.aloneAt, l.aloneLeft = now, l.aloneLeft-1
	}
	if failed || max(p.crowd, l.flying.Len()) > l.opts.Min {
		return // a refusal may be very quick, and among many calls it is not distance that is measured
	}
	if now.Sub(l.leastAt) > leastKept {
		l.leastAt, l.least = now, [2]time.Duration{math.MaxInt64, l.least[0]}
	}
	l.least[0] = min(l.least[0], took)
}

// tolerance is the latency above which the dependency counts as overloaded. A limit
// that has become too low for the present conditions corrects itself: its calls are
// nearly alone, and their latency raises the tolerance.
func (l *Limiter) tolerance() time.Duration {
	least := time.Duration(0)
	for _, x := range l.least {
		if x != math.MaxInt64 && x > 0 && (least == 0 || x < least) {
			least = x
		}
	}
	most := max(l.opts.Tolerance, min(farAway*least, farMost))
	if l.opts.Knee == 0 || l.alone == 0 {
		return most
	}
	return min(most, max(kneeLeast, time.Duration(l.opts.Knee*float64(l.alone))))
}

// Deadline is how long a call may take: longer where the dependency is slow and
// the limit therefore low, since an answer without a reader is lost work.
func (l *Limiter) Deadline() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return min(l.opts.Most, max(l.opts.Least, patience*l.typical))
}

func (l *Limiter) hasRoom() bool {
	most := int(l.limit)
	if l.aloneLeft > 0 && l.isMeasuring(time.Now()) {
		most = min(most, nearlyAlone)
	}
	return l.flying.Len() < most
}

// permit counts a call as in flight; l.mu is held.
func (l *Limiter) permit(class Class, slow bool) *Permit {
	l.granted++
	l.calls[class]++
	if 2*(l.flying.Len()+1) >= int(l.limit) {
		l.boundAt = time.Now()
	}
	p := &Permit{l: l, began: time.Now(), crowd: l.flying.Len() + 1, slow: slow}
	p.element = l.flying.PushBack(p)
	return p
}

// land ends a call and lets others begin; l.mu is held.
func (l *Limiter) land(p *Permit) {
	if p.element == nil {
		panic("overload: a permit was ended twice")
	}
	l.flying.Remove(p.element)
	p.element = nil
	l.serve()
}

// serve hands permits to waiters until no room is left; l.mu is held.
func (l *Limiter) serve() {
	for l.hasRoom() {
		q := l.nextQueue()
		if q == nil {
			return
		}
		w := q.Remove(q.Front()).(*waiter)
		w.permit <- l.permit(w.class, w.slow)
	}
}

// nextQueue is the most urgent class that waits; now and then the least urgent
// one, so that repairs go on under an overload that lasts.
func (l *Limiter) nextQueue() *list.List {
	fromBelow := l.granted%oneInLowest == oneInLowest-1
	for i := range l.queues {
		if fromBelow {
			i = len(l.queues) - 1 - i
		}
		if l.queues[i].Len() > 0 {
			return &l.queues[i]
		}
	}
	return nil
}

// Stats are a Limiter's figures.
type Stats struct {
	Limit     int
	InFlight  int
	Queued    map[Class]int
	Calls     map[Class]int64 // begun
	Rejected  map[Class]int64 // never begun
	Tolerance time.Duration
	Typical   time.Duration // recent latency
}

// Binding reports whether calls wait for the limit.
func (s Stats) Binding() bool {
	for _, n := range s.Queued {
		if n > 0 {
			return true
		}
	}
	return false
}

// Stats returns the present figures.
func (l *Limiter) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calm(time.Now())
	l.serve()
	s := Stats{
		Limit: int(l.limit), InFlight: l.flying.Len(), Tolerance: l.tolerance(), Typical: l.typical,
		Queued: map[Class]int{}, Calls: map[Class]int64{}, Rejected: map[Class]int64{},
	}
	for _, c := range Classes() {
		s.Queued[c], s.Calls[c], s.Rejected[c] = l.queues[c].Len(), l.calls[c], l.rejected[c]
	}
	return s
}

// Name is the dependency's.
func (l *Limiter) Name() string { return l.opts.Name }
