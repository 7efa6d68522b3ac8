package wait

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"berth"
	"berth/wire"
)

// Heartbeats. A waiter whose heartbeat is due acts by its row:
//
//	row              machine                       verdicts   the waiter
//	sealed           any                           any        returns the end
//	not live, none   any                           any        returns a result that is not sealed
//	live             heard, or silent for less     any        sends a heartbeat
//	                 than a verdict takes
//	live             silent for longer             possible   sends none, and looks again later
//	live             silent for longer             frozen     sends a heartbeat
//	cannot be read   any                           any        sends a heartbeat with the last read
//
// If a waiter sends no heartbeat for wire.WaiterTimeout, the server repeats its activity,
// in this replica or another: the history gets no event for the repetition, and no attempt
// is spent. The verdict on the machine, once it comes, ends the wait through the row.

// beat is one heartbeat to send.
type beat struct {
	w        *waiter
	progress wire.RunProgress
}

// beat reads the rows of the members with a due heartbeat, and queues the heartbeats.
func (r *Registry) beat(ctx context.Context, now time.Time) {
	due := r.dueAt(now)
	if len(due) == 0 {
		return
	}
	ids := make([]berth.AllocationID, 0, len(due))
	for _, w := range due {
		ids = append(ids, w.alloc)
	}
	slices.Sort(ids)
	views, err := r.members(ctx, slices.Compact(ids))
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.log.Warn("cannot read members, heartbeats repeat the last state", "err", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range due {
		v, found := views[w.alloc]
		switch {
		case err != nil:
			r.due <- beat{w, w.progress} // never blocks: dueAt reserved room
		case !found || !v.Live():
			r.deliver(w.alloc, v, found)
		case v.Overdue:
			w.put(r.opts.Beat / 10) // the machine may be heard again
		default:
			w.progress = v.Progress
			r.due <- beat{w, v.Progress}
		}
	}
}

// dueAt returns waiters with a due heartbeat, no more than the senders have room for, so
// that ends never wait for heartbeats. A returned waiter is not due again until put is
// called.
func (r *Registry) dueAt(now time.Time) []*waiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []*waiter
	room := cap(r.due) - len(r.due)
	for _, first := range r.waiting {
		for w := first; w != nil && len(due) < room; w = w.next {
			if !w.beating && !w.beatAt.After(now) {
				w.beating = true
				due = append(due, w)
			}
		}
	}
	return due
}

// interval returns the time to the next heartbeat: a little less than the longest, at
// random, so that waiters which were started together drift apart.
func (r *Registry) interval() time.Duration {
	return r.opts.Beat*8/10 + rand.N(r.opts.Beat*2/10)
}

// put makes the next heartbeat due after d; the registry's mu is held.
func (w *waiter) put(d time.Duration) {
	w.beatAt, w.beating = time.Now().Add(d), false
}

// sendBeats sends queued heartbeats until ctx ends.
func (r *Registry) sendBeats(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-r.due:
			r.send(ctx, b)
		}
	}
}

// beatAgain is the time to the retry of a failed heartbeat.
const beatAgain = 30 * time.Second

// send sends one heartbeat and schedules the next, or drops the waiter if its activity is
// over.
func (r *Registry) send(ctx context.Context, b beat) {
	err := r.temporal.Beat(ctx, b.w.token, b.progress)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, ErrGone):
		r.drop(b.w)
	case err != nil:
		r.log.Debug("heartbeat failed, will retry", "alloc", b.w.alloc, "err", err)
		b.w.put(beatAgain/2 + rand.N(beatAgain))
	default:
		b.w.put(r.interval())
	}
}

// drop removes a waiter, unless its wait has ended already; r.mu is held.
func (r *Registry) drop(w *waiter) {
	for at := r.waiting[w.alloc]; at != nil; at = at.next {
		switch {
		case at == w && w.next == nil:
			delete(r.waiting, w.alloc)
		case at == w:
			r.waiting[w.alloc] = w.next
		case at.next == w:
			at.next = w.next
		default:
			continue
		}
		r.count--
		return
	}
}
