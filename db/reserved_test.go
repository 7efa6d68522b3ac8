package db_test

import (
	"testing"

	"berth"
	"berth/db"
	"berth/wire"
)

// offers returns the reservations in the machine's set.
func (a *agent) offers() []berth.AllocationID {
	a.t.Helper()
	r, err := a.sync(func(req *wire.SyncRequest) { req.Digest = "" })
	if err != nil {
		a.t.Fatal(err)
	}
	var ids []berth.AllocationID
	for _, x := range r.Assignments {
		if x.State == berth.AllocReserved {
			ids = append(ids, x.Alloc)
		}
	}
	return ids
}

func TestAMachineIsToldOfItsReservationsUntilItClaimsThem(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	want := s.alloc(id, attempt)
	before := a.digest
	for range 2 { // a lost answer is repeated
		r, err := a.sync(func(req *wire.SyncRequest) { req.Digest, req.WaitMS = before, 60_000 })
		if err != nil {
			t.Fatal(err)
		}
		if !r.Changed || len(r.Assignments) != 1 || r.Assignments[0].Alloc != want || r.Assignments[0].Orders != (berth.Orders{}) {
			t.Fatalf("answer is %+v, want the reservation %d", r, want)
		}
	}
	if _, r := s.register("host1", "agent2"); len(r.Sync.Assignments) != 1 {
		t.Errorf("the next process is told %+v", r.Sync)
	}
	a.boot = "agent2"
	a.mustClaim(id, attempt)
	if got := a.offers(); len(got) != 0 {
		t.Errorf("after the claim it is offered %v", got)
	}
}

// TestAReservationThatCannotBeClaimedIsNotOffered checks that the set contains only reservations that a claim
// would get. Otherwise each change of the set would cause another claim in vain.
func TestAReservationThatCannotBeClaimedIsNotOffered(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]string{
		"another attempt is current":         `UPDATE jobs SET attempt = attempt + 1`,
		"another epoch of the machine":       `UPDATE allocations SET machine_epoch = machine_epoch - 1`,
		"at_most_one without a fence":        `UPDATE jobs SET mode = 'exclusive', execution = 'at_most_one'`,
		"at_most_one of a restored database": `UPDATE jobs SET mode = 'exclusive', execution = 'at_most_one', held = true, held_at = now()`,
		"the job waits again":                `UPDATE jobs SET state = 'retrying'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			a, _ := s.register("host1", "agent1")
			id := s.submit(nil)
			attempt := s.place(id, "m0")
			if got := a.offers(); len(got) != 1 {
				t.Fatalf("it is offered %v", got)
			}
			mustExec(t, s.pool, `ALTER TABLE jobs DISABLE TRIGGER USER`)
			mustExec(t, s.pool, `ALTER TABLE allocations DISABLE TRIGGER USER`)
			mustExec(t, s.pool, spoil)
			if got := a.offers(); len(got) != 0 {
				t.Errorf("it is offered %v", got)
			}
			if _, err := a.claims(id, attempt); err == nil {
				t.Error("and can claim it")
			}
		})
	}
}

func TestACanceledReservationIsNotOffered(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	hints := s.db.Hub().Subscribe(db.TopicMachine, "m0")
	defer hints.Close()
	id := s.submit(nil)
	s.place(id, "m0")
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:x", nil); err != nil {
		t.Fatal(err)
	}
	if !hears(t, hints) {
		t.Error("the machine was not told")
	}
	if got := a.offers(); len(got) != 0 {
		t.Errorf("it is offered %v", got)
	}
}
