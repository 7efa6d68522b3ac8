package wait

import (
	"context"
	"slices"
	"time"

	"berth"
)

// Peers shares the members for which this replica waits with the other replicas, so that
// the leader finds members for which no replica waits.
type Peers interface {
	// Share stores the members, in ascending order. changed is false if they are the
	// same as in the last call that succeeded.
	Share(ctx context.Context, members []berth.AllocationID, changed bool) error
	// Withdraw removes the set that Share has stored.
	Withdraw(ctx context.Context) error
}

// withdrawLimit bounds the call that removes this replica's set at its stop.
const withdrawLimit = 2 * time.Second

// share stores the waiting members at each interval until ctx ends, and then withdraws the
// set.
func (r *Registry) share(ctx context.Context) {
	tick := time.NewTicker(r.opts.Share)
	defer tick.Stop()
	var last []berth.AllocationID
	// After a failed call the stored set is unknown, so last and shared describe the last
	// success.
	for shared := false; ; {
		members := r.waitingMembers()
		err := r.shareOnce(ctx, members, !shared || !slices.Equal(members, last))
		if err == nil {
			last, shared = members, true
		} else if ctx.Err() == nil {
			r.log.Debug("cannot store the set of waiters, will retry", "err", err)
		}
		select {
		case <-ctx.Done():
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawLimit)
			defer cancel()
			if err := r.opts.Peers.Withdraw(within); err != nil {
				r.log.Debug("cannot remove the set of waiters, it expires", "err", err)
			}
			return
		case <-tick.C:
		}
	}
}

// shareOnce makes one call of Peers, within readLimit.
func (r *Registry) shareOnce(ctx context.Context, members []berth.AllocationID, changed bool) error {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	return r.opts.Peers.Share(ctx, members, changed)
}

// waitingMembers returns the members that this replica waits for, in ascending order.
func (r *Registry) waitingMembers() []berth.AllocationID {
	r.mu.Lock()
	list := make([]berth.AllocationID, 0, len(r.waiting))
	for id := range r.waiting {
		list = append(list, id)
	}
	r.mu.Unlock()
	// Peers wants an order, and share compares two lists.
	slices.Sort(list)
	return list
}
