package db_test

import (
	"testing"

	"berth"
	"berth/wire"
)

// A backup may know less of a job than the machine that runs it: it was taken
// when the job was placed, and the container runs since.
func TestF15ARestoredReservationFollowsItsContainer(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.register("host1", "agent0")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a, _ := s.register("host1", "agent1", wire.ContainerSeen{Alloc: s.alloc(id, attempt), Job: id, Attempt: attempt, Running: true})
	a.report(id, attempt, berth.PhaseRunning, nil)
	if j := s.job(id); j.Status != berth.Running || lastEvent(s, id).Actor != "agent:m0" {
		t.Fatalf("job is %s, last event %+v", j.Status, lastEvent(s, id))
	}
	if r := s.ranks(id, attempt); r[0] != `active {"start": true}` {
		t.Errorf("rank is %s", r[0])
	}
	events := lastEvent(s, id).Seq
	a.report(id, attempt, berth.PhaseRunning, nil)
	if e := lastEvent(s, id); e.Seq != events {
		t.Errorf("told again it wrote %+v", e)
	}
	a.report(id, attempt, berth.PhaseSealed, withExit(0))
	if r := s.settle(id, attempt); r.Next != berth.Succeeded {
		t.Errorf("settled to %s", r.Next)
	}
	s.freed()
}

// Or the container has ended by the time its machine is heard again.
func TestF15ARestoredReservationWhoseContainerHasEndedSettles(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.register("host1", "agent0")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a, _ := s.register("host1", "agent1", wire.ContainerSeen{Alloc: s.alloc(id, attempt), Job: id, Attempt: attempt})
	a.report(id, attempt, berth.PhaseSealed, withExit(0))
	if r := s.settle(id, attempt); r.Next != berth.Succeeded {
		t.Errorf("settled to %s", r.Next)
	}
	if j := s.job(id); j.Status != berth.Succeeded || j.StartedAt == nil {
		t.Errorf("job is %s, started %v", j.Status, j.StartedAt)
	}
	s.freed()
}
