package agent

import (
	"maps"
	"slices"
	"sync"
	"time"

	"berth"
	"berth/spec"
)

// stuckBoard lists members whose containers the engine cannot end: a process in them waits in the
// kernel, usually for a dead file server, and receives no signal. While there is one, the machine gets
// no new work. All methods may be called concurrently.
type stuckBoard struct {
	mu   sync.Mutex
	list map[berth.AllocationID]stuckMember
}

// stuckMember is one entry.
type stuckMember struct {
	owner  *identity // of the member; a restored database may give its allocation to another one
	since  time.Time
	giveUp bool // the server is to give the member up as orphaned
}

// newStuckBoard returns an empty board.
func newStuckBoard() *stuckBoard { return &stuckBoard{list: map[berth.AllocationID]stuckMember{}} }

// add lists a member until drop or leave. giveUp asks the server to give the member up, so that its job need
// not wait for the container's end.
func (b *stuckBoard) add(owner *identity, giveUp bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old, known := b.list[owner.alloc]; !known || old.owner != owner {
		b.list[owner.alloc] = stuckMember{owner, time.Now(), giveUp}
	}
}

// leave removes a member that this agent no longer has, as after a restore of the database: its allocation may be
// another job's then, which must not be given up.
func (b *stuckBoard) leave(owner *identity) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.list[owner.alloc].owner == owner {
		delete(b.list, owner.alloc)
	}
}

// drop removes a member whose container has ended.
func (b *stuckBoard) drop(id berth.AllocationID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.list, id)
}

// longest returns the time since the first of the members is stuck, 0 if there is none.
func (b *stuckBoard) longest() (longest time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.list {
		longest = max(longest, time.Since(m.since))
	}
	return longest
}

// givenUp lists the members that the server is to give up, in ascending order.
func (b *stuckBoard) givenUp() []berth.AllocationID {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := slices.Sorted(maps.Keys(b.list))
	return slices.DeleteFunc(ids, func(id berth.AllocationID) bool { return !b.list[id].giveUp })
}

// silentFor returns for how long the machine cannot take new work because of its container engine: it
// does not answer, or it cannot end a container. 0: it can.
func (s *Supervisor) silentFor() time.Duration {
	return max(s.health.silentFor(), s.stuck.longest())
}

// mountLabels returns the labels of the volumes that this agent can mount, given the labels of all volumes.
// An agent that may not mount shares copies alone.
func (s *Supervisor) mountLabels(volumes map[string]string) map[string]string {
	labels := map[string]string{}
	for key := range volumes {
		v, ok := spec.VolumeOf(key)
		if !ok {
			continue
		}
		s.mountable.Do(func() {
			if s.cannotMount = s.mounts.Check(); s.cannotMount != nil {
				s.log.Warn("shared folders cannot be mounted here, jobs can only copy them", "err", s.cannotMount)
			}
		})
		if s.cannotMount == nil {
			labels[v.MountLabel()] = spec.HasVolume
		}
	}
	return labels
}
