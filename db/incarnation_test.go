package db_test

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// After a restore or a failover no id or term from the lost tail is issued again, and the
// former leader has lost leadership.
func TestF15IDsAndTermsLeapInANewIncarnation(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for range 2 { // the first call only records the incarnation
		if n, leapt, err := s.db.Leader.Incarnate(t.Context()); err != nil || n != 1 || leapt {
			t.Fatalf("incarnation %d, leapt %v, %v", n, leapt, err)
		}
	}
	id := s.submit(nil)
	before := s.alloc(id, s.place(id, "m0"))
	lease := s.db.Leader.OpenLease(db.LeaseLeader, "a")
	term, ok, err := lease.Acquire(t.Context(), time.Hour)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	alone := s.submit(func(j *spec.Job) { j.Execution = spec.AtMostOne })
	s.ago(`UPDATE cluster SET system = 'another/1'`)
	if n, leapt, err := s.db.Leader.Incarnate(t.Context()); err != nil || n != 2 || !leapt {
		t.Fatalf("incarnation %d, leapt %v, %v", n, leapt, err)
	}
	if n, leapt, err := s.db.Leader.Incarnate(t.Context()); err != nil || n != 2 || leapt {
		t.Errorf("again: incarnation %d, leapt %v, %v", n, leapt, err)
	}
	for job, held := range map[berth.JobID]bool{id: false, alone: true} {
		if j := s.job(job); j.Held != held {
			t.Errorf("job %s is held: %v, want %v", job, j.Held, held)
		}
	}
	e := lastEvent(s, alone)
	if e.Kind != wire.EventUpdated || !strings.HasPrefix(e.Detail, "held: the database was restored") {
		t.Errorf("the job's latest event is %+v", e)
	}
	next := s.submit(nil)
	if after := s.alloc(next, s.place(next, "m1")); after < before+1_000_000 {
		t.Errorf("allocation %d follows %d", after, before)
	}
	if _, err := s.db.Attempts.KillStray(t.Context(), term, 10); err != nil {
		t.Fatal(err) // there is none, so nothing was written
	}
	if _, err := s.db.Queue.CommitStarts(t.Context(), term, []berth.Start{{Job: id}}); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("the old term commits: %v", err)
	}
	again, ok, err := lease.Acquire(t.Context(), time.Hour)
	if err != nil || !ok || again.Epoch < term.Epoch+1_000_000 {
		t.Errorf("the next term is %d after %d: %v", again.Epoch, term.Epoch, err)
	}
}
