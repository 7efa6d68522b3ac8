package db_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// hundred calls do a hundred times from four goroutines. It accepts refusals and fails on internal errors.
func (s *stage) hundred(do func(context.Context) error) {
	s.t.Helper()
	var all sync.WaitGroup
	errs := make(chan error, 100)
	for range 4 {
		all.Go(func() {
			for range 25 {
				if err := do(s.t.Context()); err != nil {
					errs <- err
				}
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if berth.CodeOf(err) == berth.CodeInternal {
			s.t.Error(err)
		}
	}
}

// TestF21EveryMessageAHundredTimesHasOneEffect checks that a job whose calls are each made a hundred times,
// with reports repeated in any order, has the history of a job whose calls were made once.
func TestF21EveryMessageAHundredTimesHasOneEffect(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	jobSpec := spec.Job{Name: "often", Image: "busybox"}.WithDefaults()
	ids := make(chan berth.JobID, 100)
	s.hundred(func(ctx context.Context) error {
		job, _, err := s.db.Jobs.Submit(ctx, db.Submission{Tenant: "default", Spec: jobSpec, Actor: "user:test", IdemKey: "once"})
		ids <- job.ID
		return err
	})
	id := <-ids
	for range 99 {
		if other := <-ids; other != id {
			t.Fatalf("one key made %s and %s", id, other)
		}
	}
	s.hundred(func(ctx context.Context) error { _, err := s.db.Jobs.Load(ctx, id); return err })
	term := s.term()
	start := s.start(id, on("m0"))
	s.hundred(func(ctx context.Context) error {
		_, err := s.db.Queue.CommitStarts(ctx, term, []berth.Start{start})
		return err
	})
	alloc := s.alloc(id, 1)
	s.hundred(func(context.Context) error { _, err := a.claims(id, 1); return err })
	end := exited(0)
	reports := []wire.SyncRequest{}
	for seq, p := range []wire.RankReport{
		{Phase: berth.PhasePulling}, {Phase: berth.PhasePrepared}, {Phase: berth.PhaseRunning}, {Phase: berth.PhaseExited, Exit: &end}, {Phase: berth.PhaseSealed, Exit: &end},
	} {
		p.Alloc, p.Job, p.Attempt = alloc, id, 1
		reports = append(reports, wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Seq: int64(seq + 1), Reports: []wire.RankReport{p}})
	}
	say := func(ctx context.Context, q wire.SyncRequest) error {
		_, err := s.db.Agents.Sync(ctx, "m0", q)
		return err
	}
	for i := range reports { // each new report in order, then repeats of all so far in any order
		if err := say(t.Context(), reports[i]); err != nil {
			t.Fatal(err)
		}
		s.hundred(func(ctx context.Context) error { return say(ctx, reports[rand.IntN(i+1)]) })
	}
	s.hundred(func(ctx context.Context) error { _, err := s.db.Attempts.Settle(ctx, id, 1); return err })
	s.hundred(func(ctx context.Context) error {
		_, err := s.db.Jobs.RequestCancel(ctx, "", id, "user:test", nil)
		return err
	})
	s.hundred(func(ctx context.Context) error {
		return say(ctx, wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Seq: 9, Gone: []berth.AllocationID{alloc}})
	})
	const moves = "submitted queued scheduled ordered running succeeded "
	if got := one[string](s, `SELECT string_agg(coalesce(to_state, kind), ' ' ORDER BY seq) || ' ' FROM job_events WHERE job = $1`, id); got != moves {
		t.Errorf("history is %q", got)
	}
	s.freed()
}

// TestF21ACancelBeforeTheStartIsNeverOvertaken checks that a cancel before the claim wins, regardless of
// later deliveries.
func TestF21ACancelBeforeTheStartIsNeverOvertaken(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	s.hundred(func(ctx context.Context) error {
		_, err := s.db.Jobs.RequestCancel(ctx, "", id, "user:test", nil)
		return err
	})
	s.hundred(func(context.Context) error {
		if _, err := a.claims(id, attempt); err == nil {
			return fmt.Errorf("a claim of a canceled job is granted")
		}
		return nil
	})
	if r := s.settle(id, attempt); r.Next != berth.Canceled {
		t.Errorf("settled to %s", r.Next)
	}
	s.freed()
}

// TestF30WrongClocksOfAMachineDecideNothing checks that leases, charges and verdicts depend on the database's
// clock, and never on the machine's.
func TestF30WrongClocksOfAMachineDecideNothing(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-10 * time.Minute, 10 * time.Minute, -20 * 365 * 24 * time.Hour, 365 * 24 * time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			term := s.term()
			a, _ := s.register("host1", "agent1")
			id := s.submit(nil)
			attempt := s.place(id, "m0")
			a.mustClaim(id, attempt)
			a.report(id, attempt, berth.PhasePrepared, nil)
			a.report(id, attempt, berth.PhaseRunning, nil)
			if v := s.judge(term, "m0"); v.Lost || len(v.Jobs) != 0 {
				t.Errorf("its machine is given up: %+v", v)
			}
			x := exited(0)
			x.StartedAt, x.FinishedAt = time.Now().Add(off), time.Now().Add(off+time.Second)
			a.report(id, attempt, berth.PhaseSealed, func(p *wire.RankReport) { p.Exit = &x })
			if r := s.settle(id, attempt); r.Next != berth.Succeeded {
				t.Errorf("settled to %s", r.Next)
			}
			if n := one[int](s, `
				SELECT count(*) FROM allocations a JOIN attempts t ON t.job = a.job
				WHERE a.started_at BETWEEN now() - interval '1 min' AND now() AND a.exited_at BETWEEN a.started_at AND now()
				  AND t.started_at BETWEEN now() - interval '1 min' AND now() AND t.ended_at BETWEEN t.started_at AND now()`); n != 1 {
				t.Error("the times on record are the machine's")
			}
			if j := s.job(id); j.FinishedAt.Sub(j.SubmittedAt) > time.Minute || j.FinishedAt.Before(*j.StartedAt) {
				t.Errorf("started %s, finished %s", j.StartedAt, j.FinishedAt)
			}
		})
	}
}
