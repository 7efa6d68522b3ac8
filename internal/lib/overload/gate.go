package overload

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"
)

// Pressure is the input of a Gate, from the database.
type Pressure struct {
	Paused bool // an operator has paused new starts

	// Unsettled is the number of attempts whose processes have all ended and are
	// stored, and whose jobs are shown as running still, for over a second.
	// Attempts that have been unsettled for a minute do not count: they are stuck,
	// and holding back others does not help them.
	Unsettled int
}

// Timing and steps of a Gate.
const (
	readEvery = 500 * time.Millisecond
	readRest  = 2 * time.Second // while nothing passes and nothing presses
	readLimit = 5 * time.Second
	quietFor  = 5 * time.Second // without pressure before a valve opens fully

	// Unsettled attempts up to which a valve stays open: an odd one is late on the
	// quietest day, and a burst may run some seconds ahead of its ends. An end is
	// shown within 5 s; unsettled attempts ended over a second ago. Starts of
	// workflows yield first: a job that is placed late after its workflow has begun
	// costs Temporal a signal more.
	startsTolerate     = 8
	startsAhead        = 2 // seconds' worth of starts
	placementsTolerate = 40
	placementsAhead    = 3

	// TolerateMost is the number of unsettled attempts beyond which every valve
	// binds, however many starts pass. At most 1000 are counted.
	TolerateMost = 500

	usedFor = 10 * time.Second // after its last use a valve counts as used

	peakKept   = 0.93 // of the greatest flow, at each look: half of it is forgotten in 5 s
	closeShare = 0.25 // of the greatest flow passes all the same: a short burst is not cut off

	closeBy    = 0.7  // of the rate, at each look while ends pile up
	openBy     = 1.25 // of the rate, at each look without pressure
	leastRate  = 0.5  // starts a second, however many ends wait: a gate never stops work for good
	idleFactor = 4    // a rate of so many times the passing rate does not bind
)

// Gate holds back new starts of this process while ended processes wait to be settled, and stops
// all new starts while admission is paused. It has a valve for each place at which a job passes:
// the start of its workflow, and its placement.
type Gate struct {
	Starts     *Valve
	Placements *Valve

	log  *slog.Logger
	wake chan struct{}

	mu   sync.Mutex
	last Pressure
}

// NewGate returns a gate that is open. Run makes it follow.
func NewGate(log *slog.Logger) *Gate {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Gate{Starts: NewValve(startsTolerate, startsAhead),
		Placements: NewValve(placementsTolerate, placementsAhead), log: log, wake: make(chan struct{}, 1)}
}

// Run reads the pressure now and then until ctx ends, and returns its error. A
// reading that fails changes nothing.
func (g *Gate) Run(ctx context.Context, read func(context.Context) (Pressure, error)) error {
	for {
		call, cancel := context.WithTimeout(ctx, readLimit)
		p, err := read(call)
		cancel()
		if err == nil {
			g.Observe(p)
		} else if ctx.Err() == nil {
			g.log.Warn("cannot read unsettled attempts, keeping the gate as it is", "err", err)
		}
		t := time.NewTimer(g.rest())
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		case <-g.wake:
			t.Stop()
		}
	}
}

// Look makes Run read at once, as after a change of admission.
func (g *Gate) Look() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// rest is the time to the next reading.
func (g *Gate) rest() time.Duration {
	g.mu.Lock()
	pressed := g.last != (Pressure{})
	g.mu.Unlock()
	if pressed || g.Starts.busy() || g.Placements.busy() {
		return readEvery
	}
	return readRest
}

// Observe takes a reading.
func (g *Gate) Observe(p Pressure) {
	g.mu.Lock()
	was := g.last
	g.last = p
	g.mu.Unlock()
	if p.Paused != was.Paused {
		g.log.Info("admission changed", "paused", p.Paused)
	}
	now := time.Now()
	g.Starts.observe(p, now)
	g.Placements.observe(p, now)
}

// Pressure is the last reading.
func (g *Gate) Pressure() Pressure {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// Valve lets starts pass at a rate: without bound while no ended process waits,
// by additive and multiplicative steps below the passed rate while some do. All
// methods may be called concurrently.
type Valve struct {
	tolerated, ahead int

	mu      sync.Mutex
	paused  bool
	rate    float64 // starts a second; infinite: open
	tokens  float64
	at      time.Time // up to when tokens are counted
	waiting int       // unsettled attempts at the last look
	lastBad time.Time
	passed  float64 // since the last look
	lookAt  time.Time
	flow    float64 // starts a second, smoothed
	peak    float64 // the greatest flow, which is forgotten slowly
	usedAt  time.Time
	changed chan struct{}
}

// NewValve returns an open valve. The valve stays open up to tolerated unsettled attempts, or up
// to the number of starts that it lets pass in ahead seconds.
func NewValve(tolerated, ahead int) *Valve {
	now := time.Now()
	return &Valve{tolerated: tolerated, ahead: ahead, rate: math.Inf(1), at: now, lookAt: now,
		changed: make(chan struct{})}
}

// observe adapts the rate to the number of unsettled attempts: a growing number closes the
// valve, a falling one holds the rate, and afterwards the valve opens step by step.
func (v *Valve) observe(p Pressure, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if took := now.Sub(v.lookAt).Seconds(); took > 0 {
		v.flow += (v.passed/took - v.flow) / 2
		v.passed, v.lookAt = 0, now
		v.peak = max(v.flow, peakKept*v.peak)
	}
	v.refill(now)
	was := v.rate
	switch {
	case p.Unsettled > min(TolerateMost, max(v.tolerated, int(float64(v.ahead)*v.peak))):
		v.lastBad = now
		if p.Unsettled > v.waiting*9/10 { // else they are being worked off: the present rate leaves them room
			v.rate = max(leastRate, closeShare*v.peak, closeBy*min(v.rate, max(v.flow, leastRate/closeBy)))
		} else if math.IsInf(v.rate, 1) {
			v.rate = max(leastRate, v.flow)
		}
	case math.IsInf(v.rate, 1):
	default:
		v.rate = openBy*v.rate + 1
		if v.rate > idleFactor*v.flow && now.Sub(v.lastBad) > quietFor {
			v.rate = math.Inf(1)
		}
	}
	v.tokens = min(v.tokens, v.burst())
	changed := v.rate != was || v.paused != p.Paused
	v.waiting, v.paused = p.Unsettled, p.Paused
	if changed {
		close(v.changed)
		v.changed = make(chan struct{})
	}
}

// burst is the number of starts that may pass at once after a pause.
func (v *Valve) burst() float64 {
	if math.IsInf(v.rate, 1) {
		return 0
	}
	return max(1, v.rate/2)
}

// refill adds the tokens of the time since the last call. v.mu is held.
func (v *Valve) refill(now time.Time) {
	if !math.IsInf(v.rate, 1) {
		v.tokens = min(v.burst(), v.tokens+v.rate*now.Sub(v.at).Seconds())
	}
	v.at = now
}

// Room is how many starts may pass now.
func (v *Valve) Room() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.usedAt = time.Now()
	return v.room(v.usedAt)
}

// room returns the number of starts that may pass now. v.mu is held.
func (v *Valve) room(now time.Time) int {
	v.refill(now)
	switch {
	case v.paused:
		return 0
	case math.IsInf(v.rate, 1):
		return math.MaxInt
	}
	return int(max(0, v.tokens))
}

// Pass counts starts that have passed. More than there was room for are made up
// for later: the starts of one plan stand together.
func (v *Valve) Pass(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.usedAt = time.Now()
	v.pass(n, v.usedAt)
}

// Return gives back starts that have passed and were not made after all.
func (v *Valve) Return(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	v.pass(-n, now)
	v.passed, v.tokens = max(0, v.passed), min(v.tokens, v.burst())
}

// pass counts starts. The tokens may fall below zero, which delays later starts. v.mu is held.
func (v *Valve) pass(n int, now time.Time) {
	v.refill(now)
	v.passed += float64(n)
	if !math.IsInf(v.rate, 1) {
		v.tokens -= float64(n)
	}
}

// Wait waits until a start may pass, and counts the start. It returns the context's error if the
// context ends first.
func (v *Valve) Wait(ctx context.Context) error {
	for {
		v.mu.Lock()
		now := time.Now()
		v.usedAt = now
		if v.room(now) > 0 {
			v.pass(1, now)
			v.mu.Unlock()
			return nil
		}
		changed, next := v.changed, v.nextIn()
		v.mu.Unlock()
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-changed:
		case <-t.C:
		}
		t.Stop()
	}
}

// Changed is closed when the rate or the pause changes.
func (v *Valve) Changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

// NextIn is the time until a start may pass, if nothing changes.
func (v *Valve) NextIn() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.room(time.Now()) > 0 {
		return 0
	}
	return v.nextIn()
}

// nextIn returns the time until the next start may pass, if no observation changes the rate
// before. v.mu is held.
func (v *Valve) nextIn() time.Duration {
	if v.paused {
		return readRest
	}
	return max(time.Millisecond, time.Duration((1-v.tokens)/v.rate*float64(time.Second)))
}

// busy reports whether starts pass, or are bound.
func (v *Valve) busy() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.passed > 0 || v.flow > 0.05 || v.paused || !math.IsInf(v.rate, 1)
}

// ValveStats are a Valve's figures.
type ValveStats struct {
	Paused bool
	Rate   float64 // starts a second that may pass; infinite: no bound
	Flow   float64 // starts a second that pass

	// Used reports whether starts of this process asked the valve lately. The
	// pressure is the cluster's, the rate is this process's: the rate of a valve
	// that this process does not use says nothing about other processes.
	Used bool
}

// Binding reports whether the valve holds back starts.
func (s ValveStats) Binding() bool { return s.Paused || !math.IsInf(s.Rate, 1) }

// Stats returns the present figures.
func (v *Valve) Stats() ValveStats {
	v.mu.Lock()
	defer v.mu.Unlock()
	return ValveStats{Paused: v.paused, Rate: v.rate, Flow: v.flow, Used: time.Since(v.usedAt) < usedFor}
}
