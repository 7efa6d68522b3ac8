package wait_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/activities/wait"
)

// peers records what a registry shares.
type peers struct {
	mu        sync.Mutex
	members   []berth.AllocationID
	calls     int
	changes   int
	away      bool
	withdrawn bool
}

func (p *peers) Share(_ context.Context, members []berth.AllocationID, changed bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.away {
		return errors.New("away")
	}
	if changed {
		p.changes++
		p.members = slices.Clone(members)
	}
	return nil
}

func (p *peers) Withdraw(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.withdrawn = true
	return nil
}

func TestTheMembersThatAReplicaWaitsForAreShared(t *testing.T) {
	t.Parallel()
	s, p := newSite(t), &peers{}
	t.Cleanup(func() { // runs after the registry has stopped
		if !p.withdrawn {
			t.Error("its set outlives the replica")
		}
	})
	r := s.run(wait.Options{Peers: p, Share: time.Millisecond})
	shared := func(what string, ids ...berth.AllocationID) {
		t.Helper()
		s.until(what, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.changes > 0 && slices.Equal(p.members, ids)
		})
	}
	shared("a replica without waiters shares an empty set")
	s.set(running(1))
	s.set(running(2))
	r.Enter(2, []byte("b"))
	r.Enter(1, []byte("a"))
	shared("both are shared", 1, 2)
	p.mu.Lock()
	p.away = true
	p.mu.Unlock()
	s.set(sealed(1))
	s.hint(1)
	s.ends("a")
	p.mu.Lock()
	p.away = false
	calls, changes := p.calls, p.changes
	p.mu.Unlock()
	shared("a change that could not be stored is stored later", 2)
	s.until("it is confirmed", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.calls > calls+3
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.changes - changes; n != 1 {
		t.Errorf("the same set was stored %d times", n)
	}
}
