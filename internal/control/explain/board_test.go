package explain_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/explain"
	"berth/placement"
)

// boardWith returns a board that has the job, waiting for the next boards as callers do.
func boardWith(t *testing.T, o *explain.Explainer, id berth.JobID) *explain.Board {
	t.Helper()
	lacks := func(b *explain.Board) bool { _, ok := b.Of(id); return !ok }
	for began := time.Now(); time.Since(began) < 5*time.Minute; {
		if b := o.Board(t.Context(), lacks); b != nil && !lacks(b) {
			return b
		}
	}
	t.Fatalf("no board has job %s", id)
	return nil
}

func TestABoardAgreesWithExplanations(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{Backfill: 1}, nil)
	t.Cleanup(o.Close)
	exec(t, d, `UPDATE machines SET state = 'draining', reason = 'new disk'`)
	ids := []berth.JobID{queued(t, d, "default", 2), queued(t, d, "default", 8), queued(t, d, "default", 1)}
	b := boardWith(t, o, ids[2])
	for n, id := range ids {
		got, ok := b.Of(id)
		want := why(t, d, o, id)
		if i, listed := b.Index(id); !ok || !listed || i != n || got.Position != want.Position ||
			got.Code != want.Blockers[0].Code {
			t.Errorf("job %d: board %+v, explanation %+v", n, got, want)
		}
	}
	if w, _ := b.Of(ids[0]); w.Text != "m0 drained (new disk)" {
		t.Errorf("%+v", w)
	}
	if _, ok := b.Of("nothing"); ok {
		t.Error("a board has a job that does not exist")
	}
}

// However many callers ask, one reading answers them, and the board is the same.
func TestManyCallersShareOneBoard(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{}, nil)
	t.Cleanup(o.Close)
	id := queued(t, d, "default", 2)
	boards := map[*explain.Board]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	began := time.Now()
	for range 50 {
		all.Go(func() {
			for range 100 {
				b := o.Board(t.Context(), nil)
				if b == nil {
					t.Error("no board")
					return
				}
				mu.Lock()
				boards[b]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if most := int(time.Since(began)/explain.ShortestBoard) + 2; len(boards) > most {
		t.Errorf("5000 questions in %s made %d boards, want at most %d", time.Since(began), len(boards), most)
	}
	for b := range boards {
		if _, ok := b.Of(id); !ok {
			t.Error("a board lacks a job that was queued before")
		}
	}
}

// In a small cluster the caller waits for the board that has its job.
func TestABoardKnowsAJobThatWasQueuedAMomentAgo(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{}, nil)
	t.Cleanup(o.Close)
	if o.Board(t.Context(), nil) == nil {
		t.Fatal("no board")
	}
	for range 5 {
		boardWith(t, o, queued(t, d, "default", 2))
	}
}

// While the rows cannot be read, callers get the present board, and later none.
func TestABoardIsKeptWhileTheRowsCannotBeRead(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{}, nil)
	t.Cleanup(o.Close)
	id := queued(t, d, "default", 2)
	boardWith(t, o, id)
	exec(t, d, `ALTER TABLE nominations RENAME TO hidden`)
	o.Forget()
	for range 20 {
		if b := o.Board(t.Context(), nil); b == nil {
			t.Fatal("the board is gone although it is not old")
		}
	}
	fresh := explain.New(d, placement.Policy{}, nil)
	t.Cleanup(fresh.Close)
	if b := fresh.Board(t.Context(), nil); b != nil {
		t.Errorf("a board without one of the tables: %+v", b)
	}
	exec(t, d, `ALTER TABLE hidden RENAME TO nominations`)
	if b := fresh.Board(t.Context(), nil); b == nil {
		t.Error("no board after the failure")
	}
}

// A call that ends early leaves the board to the others, and Close awaits it.
func TestCloseAwaitsTheBoardUnderWay(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{}, nil)
	unlock := lockedQueue(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if b := o.Board(ctx, nil); b != nil {
		t.Errorf("a board of rows that cannot be read: %+v", b)
	}
	o.Close()
	unlock()
	if b := o.Board(t.Context(), nil); b != nil {
		t.Errorf("a board after Close: %+v", b)
	}
}

// crowd queues 20 times n jobs of 20 classes and adds 1,000 machines that are too small.
func crowd(b testing.TB, d *db.DB, n int) {
	exec(b, d, `INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb) SELECT 'n' || n, 'ready', 1000, 65536, 1000 FROM generate_series(1, 1000) n`)
	for c := range 20 {
		id := queued(b, d, "default", 2+c)
		exec(b, d, `INSERT INTO jobs (id, tenant, name, class, priority, preemptible, run_limit_ms, grace_ms, lost_after_ms, labels, actor, idem_hash, state)
			SELECT gen_random_uuid(), tenant, name, class, priority, preemptible, run_limit_ms, grace_ms, lost_after_ms, labels, actor, idem_hash, 'queued'
			FROM jobs, generate_series(2, `+strconv.Itoa(n)+`) WHERE id = $1`, id)
	}
}

// BenchmarkBoard asks for the reasons of 10,000 waiting jobs.
func BenchmarkBoard(b *testing.B) {
	d := open(b)
	crowd(b, d, 500)
	o := explain.New(d, placement.Policy{Order: placement.Fair, BandWidth: 100, Backfill: 8}, nil)
	b.Cleanup(o.Close)
	for o.Board(b.Context(), nil) == nil {
	}
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if o.Board(b.Context(), nil) == nil {
				b.Error("no board")
			}
		}
	})
	b.ReportMetric(float64(o.Board(b.Context(), nil).Took().Milliseconds()), "ms/board")
}

// Reasons call a draining machine drained from the same moment as lists of machines do: once the results of
// its last job are stored, which changes no row of the machine.
func TestReasonsNameDrainedMachines(t *testing.T) {
	t.Parallel()
	d := open(t)
	exec(t, d, `INSERT INTO machine_leases (machine_id, epoch, until) VALUES ('m0', 1, now() + interval '1 hour')`)
	term, ok, err := d.Leader.OpenLease(db.LeaseLeader, "test").Acquire(t.Context(), time.Hour)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	running := queued(t, d, "default", 4)
	start := berth.Start{Job: running, Version: 2, Attempt: 1, Ranks: []berth.Grant{{Machine: "m0", Epoch: 1,
		Capacity: berth.Capacity{CPUMilli: 4000, MemoryMiB: 2048}}}}
	if c, err := d.Queue.CommitStarts(t.Context(), term, []berth.Start{start}); err != nil || len(c.Started) != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	exec(t, d, `UPDATE machines SET state = 'draining', reason = 'new disk', drain_reason = 'new disk'`)
	waiting := queued(t, d, "default", 1)
	o := explain.New(d, placement.Policy{}, nil)
	for _, step := range []struct{ change, want string }{
		{`SELECT 1`, "draining"},
		{`UPDATE allocations SET state = 'exited', exited_at = now()`, "draining"},
		{`UPDATE allocations SET sealed_at = now()`, "drained"},
		{`UPDATE machines SET pending_kills = '{7}'`, "draining"},
		{`UPDATE machines SET pending_kills = '{}'`, "drained"},
	} {
		exec(t, d, step.change)
		o.Forget()
		if w := why(t, d, o, waiting); w.Fit.Short != "m0 "+step.want+" (new disk)" {
			t.Errorf("after %s: %s, want %s", step.change, w.Fit.Short, step.want)
		}
	}
	exec(t, d, `UPDATE machines SET state = 'ready', reason = '', drain_reason = NULL`)
	o.Forget()
	if w := why(t, d, o, waiting); w.Fit.FitNow != 1 {
		t.Errorf("undrained: %+v", w.Fit)
	}
}
