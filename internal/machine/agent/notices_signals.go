package agent

import "time"

// The methods below make the server's turn wait for the signals of containers; see noticeBoard.

// await starts the wait for the signals of all running containers. b.mu is held.
func (b *noticeBoard) await() {
	for p := range b.signaled {
		b.signaled[p] = false
	}
	b.held = time.Now().Add(b.hold)
}

// waits reports whether the server must not learn of the present notice yet. b.mu is held.
func (b *noticeBoard) waits(now time.Time) bool {
	if !now.Before(b.held) {
		return false
	}
	for _, signaled := range b.signaled {
		if !signaled {
			return true
		}
	}
	return false
}

// join adds a container that runs. If a wait is under way, the wait includes it: the container may be older than
// the notice.
func (b *noticeBoard) join(p *stopPlan) {
	k := p.claim.Spec.Checkpoint
	if b == nil || k == nil || k.Signal == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.signaled[p] = !b.waits(time.Now())
}

// sent notes that a container needs no further signal for the notice with this seenNotices.EndID, and wakes the
// sender after the last one.
func (b *noticeBoard) sent(p *stopPlan, id string) {
	if b == nil || id == "" {
		return
	}
	b.mu.Lock()
	before, in := b.signaled[p]
	over := in && !before && b.seen.EndID == id
	if over {
		b.signaled[p] = true
	}
	b.mu.Unlock()
	if over {
		b.deliver()
	}
}

// leave removes a container that has ended. If it had its signal, the wait is over.
func (b *noticeBoard) leave(p *stopPlan) {
	if b == nil {
		return
	}
	b.mu.Lock()
	signaled, in := b.signaled[p]
	if signaled {
		b.held = time.Time{}
	}
	delete(b.signaled, p)
	b.mu.Unlock()
	if in {
		b.deliver()
	}
}
