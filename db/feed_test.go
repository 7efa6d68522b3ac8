package db_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/spec"
)

func (s *stage) feed(cursor db.Cursor, h db.Hinted) db.Changes {
	s.t.Helper()
	c, err := s.db.Queue.Feed(s.t.Context(), cursor, h)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// catchUp reads the feed until it has got to where it could not be at first
// because of transactions of other tests: all databases of a server share them.
// A row may come again with every read until the cursor is past it; the newest
// reading of each counts.
func (s *stage) catchUp(cursor db.Cursor) db.Changes {
	s.t.Helper()
	all := s.feed(cursor, db.Hinted{})
	for all.Next < all.End {
		c := s.feed(all.Next, db.Hinted{})
		all.Next, all.Jobs, all.Machines = c.Next, append(c.Jobs, all.Jobs...), append(c.Machines, all.Machines...)
		all.Caches = append(c.Caches, all.Caches...)
	}
	seenJobs, seenMachines := map[berth.JobID]bool{}, map[berth.MachineID]bool{}
	all.Jobs = slices.DeleteFunc(all.Jobs, func(j db.QueueJob) bool { return seen(seenJobs, j.ID) })
	all.Machines = slices.DeleteFunc(all.Machines, func(m db.PoolMachine) bool { return seen(seenMachines, m.ID) })
	return all
}

// seen says whether id was asked about before.
func seen[K comparable](before map[K]bool, id K) bool {
	was := before[id]
	before[id] = true
	return was
}

func (s *stage) loadQueue() db.Changes {
	s.t.Helper()
	c, err := s.db.Queue.Load(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func hasJob(c db.Changes, id berth.JobID) bool {
	for _, j := range c.Jobs {
		if j.ID == id {
			return true
		}
	}
	return false
}

func TestFeedBringsWhatChangedSinceTheCursor(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	first := s.submit(nil)
	s.load(first)
	c := s.loadQueue()
	if len(c.Jobs) != 1 || len(c.Machines) != 3 || len(c.Machines[0].GPUs) != 2 {
		t.Fatalf("loaded %d jobs, machines %+v", len(c.Jobs), c.Machines)
	}
	c.Next = s.catchUp(c.Next).Next
	if again := s.feed(c.Next, db.Hinted{}); len(again.Jobs)+len(again.Machines) != 0 {
		t.Errorf("nothing changed, and the feed brings %+v", again)
	}
	second := s.submit(nil)
	s.place(first, "m1")
	c = s.catchUp(c.Next)
	if !hasJob(c, first) || !hasJob(c, second) {
		t.Errorf("jobs %+v, want %s and %s", c.Jobs, first, second)
	}
	if len(c.Machines) != 1 || c.Machines[0].ID != "m1" || c.Machines[0].Used.GPUMilli != 1000 || c.Machines[0].GPUs[0].UsedMilli != 1000 {
		t.Errorf("machines %+v, want m1 with one GPU used", c.Machines)
	}
}

func TestHintedRowsComeDespiteAnOpenTransaction(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	c := s.loadQueue()
	tx, err := s.beside().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	id := s.submit(nil)
	held := s.feed(c.Next, db.Hinted{})
	if hasJob(held, id) || held.Next == held.End {
		t.Errorf("the feed went past an open transaction: %+v", held)
	}
	hinted := s.feed(held.End, db.Hinted{Jobs: []berth.JobID{id}, Machines: []berth.MachineID{"m2"}})
	if !hasJob(hinted, id) || len(hinted.Machines) != 1 || len(hinted.Machines[0].GPUs) != 2 {
		t.Errorf("hinted rows: %+v", hinted)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := s.catchUp(held.Next); !hasJob(c, id) {
		t.Error("the feed lost a job behind a transaction that has ended")
	}
}

func TestFeedMissesNothingUnderConcurrentWriters(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const writers, each = 8, 60
	cursor := s.loadQueue().Next
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
					for j := range 3 { // several rows each, so that transactions overlap
						_, err := tx.Exec(t.Context(), `INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
							VALUES ($1, 'default', 'x', 'c', 500, true, 0, 90000, 'user:test')`,
							fmt.Sprintf("01900000-0000-7000-%04d-%08d%04d", w, i, j))
						if err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writing.Wait(); close(done) }()
	seen := map[berth.JobID]bool{}
	for end := ^db.Cursor(0); cursor < end; {
		written := false
		select {
		case <-done:
			written = true
		default:
		}
		c := s.feed(cursor, db.Hinted{})
		cursor = c.Next
		for _, j := range c.Jobs {
			seen[j.ID] = true
		}
		if written { // other tests' transactions may still hold the feed back
			end = min(end, c.End)
		}
	}
	if len(seen) != writers*each*3 {
		t.Errorf("saw %d of %d jobs", len(seen), writers*each*3)
	}
}

func TestRequestsOfClasses(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobSpec := spec.Job{Name: "x", Image: "busybox"}.WithDefaults()
	s.submit(nil)
	class := jobSpec.Request().Class()
	r, err := s.db.Queue.Requests(context.Background(), []string{class, "none"})
	if err != nil || len(r) != 1 || r[class].Class() != class {
		t.Errorf("requests %+v, %v", r, err)
	}
}
