package agent

import (
	"sync"
	"time"

	"berth"
)

// orders are the standing orders of one member. They only add up: the control
// plane never takes an order back, and an answer that arrives late must not
// either. All methods may be called concurrently.
type orders struct {
	// kick wakes the member's goroutine after a change. It holds one token, and
	// one goroutine receives at a time.
	kick chan struct{}

	mu    sync.Mutex
	sum   berth.Orders
	limit time.Duration // of the member's run; 0: none
}

// newOrders returns an empty set of orders.
func newOrders() *orders { return &orders{kick: make(chan struct{}, 1)} }

// take adds orders, replaces the run limit, and wakes the member if either changed.
func (o *orders) take(more berth.Orders, limit time.Duration) {
	if o.merge(more, limit) {
		o.nudge()
	}
}

// merge is take without the wake. It reports whether something changed.
func (o *orders) merge(more berth.Orders, limit time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	was, wasLimit := o.sum, o.limit
	o.sum.Start = o.sum.Start || more.Start
	o.sum.Checkpoint = o.sum.Checkpoint || more.Checkpoint
	o.sum.Stop = o.sum.Stop || more.Stop
	o.sum.Kill = o.sum.Kill || more.Kill
	o.sum.Save = max(o.sum.Save, more.Save)
	o.sum.Stalled = o.sum.Stalled || more.Stalled
	if stops(more) {
		o.sum.GraceMS = more.GraceMS
	}
	o.limit = limit
	return o.sum != was || o.limit != wasLimit
}

// start adds the order to start, which may come without the rest of the set.
func (o *orders) start() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.sum.Start {
		o.sum.Start = true
		o.nudge()
	}
}

// standing returns the sum of all orders so far.
func (o *orders) standing() berth.Orders {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sum
}

// runLimit returns how long the member may run; 0: without limit.
func (o *orders) runLimit() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.limit
}

// nudge makes the member's goroutine look at the orders again.
func (o *orders) nudge() { notify(o.kick) }

// stops reports whether orders end a member.
func stops(o berth.Orders) bool { return o.Stop || o.Kill || o.Checkpoint }
