package db

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
)

// lock checks the session and locks jobs, then allocations, each in order of id. If a job
// may start or become running, the allocations of all its members are locked: they get the
// order to start, or decide whether all have started.
func (r *reporting) lock(ctx context.Context) error {
	jobs, prepared, allocs := []string{}, []string{}, []int64{}
	for job := range r.lockJobs {
		jobs = append(jobs, string(job))
	}
	slices.Sort(jobs)
	for _, p := range r.req.Reports {
		allocs = append(allocs, int64(p.Alloc))
		if p.Phase == berth.PhasePrepared || p.Phase == berth.PhaseRunning && r.lockJobs[p.Job] || r.starting[p.Job] {
			prepared = append(prepared, string(p.Job))
		}
	}
	allocs = append(allocs, ids(r.req.Gone)...)

	b := &pgx.Batch{}
	var s session
	b.Queue(`
		SELECT m.state, m.epoch, m.agent_boot, coalesce(l.seq, 0), cardinality(m.pending_kills) > 0, `+markColumns+`
		FROM machines m
		CROSS JOIN cluster c
		LEFT JOIN machine_leases l ON l.machine_id = m.id
		WHERE m.id = @machine`, namedArgs{"machine": r.machine}).QueryRow(func(row pgx.Row) error {
		return row.Scan(append([]any{&s.state, &s.epoch, &s.agentBoot, &s.seq, &r.owesKill}, s.mark.dest()...)...)
	})
	r.queueJobs(b, jobs)
	r.queueAllocations(b, allocs, prepared)
	if err := r.tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	if s.state == "" {
		return berth.Errorf(berth.CodeNotFound, "no such machine %s", r.machine)
	}
	// This check precedes the session's: a restored database may not know the session
	// either.
	if ahead, err := s.mark.behind(ctx, r.tx, r.req.Watermark); err != nil {
		return err
	} else if ahead {
		return errMustLeap
	}
	if err := s.check(r.machine, r.req.AgentBoot, r.req.Epoch); err != nil {
		return err
	}
	r.mark, r.quarantined = s.mark.now(), s.mark.quarantined
	if r.req.Seq < s.seq || r.req.Seq == s.seq && !r.part {
		return errOvertaken
	}
	r.known = s.state != berth.MachineSuspect
	return nil
}

// queueJobs locks the jobs that the reports may move.
func (r *reporting) queueJobs(b *pgx.Batch, jobs []string) {
	r.jobs = map[berth.JobID]*reportedJob{}
	if len(jobs) == 0 {
		return
	}
	b.Queue(`
		SELECT id::text, state, attempt, image_digest
		FROM jobs
		WHERE id = ANY(@jobs::text[]::uuid[])
		ORDER BY id
		FOR NO KEY UPDATE`, namedArgs{"jobs": jobs}).Query(func(rows pgx.Rows) error {
		var j reportedJob
		_, err := pgx.ForEachRow(rows, []any{&j.ID, &j.State, &j.Attempt, &j.Digest}, func() error {
			locked := j
			r.jobs[j.ID] = &locked
			return nil
		})
		return err
	})
}

// queueAllocations locks the allocations that the machine reported and, of each
// job that may start, all allocations of its current attempt.
func (r *reporting) queueAllocations(b *pgx.Batch, allocs []int64, prepared []string) {
	r.rows = map[berth.AllocationID]*reportedRow{}
	if len(allocs) == 0 {
		return
	}
	b.Queue(`
		SELECT id, job::text, attempt, rank, machine_id, machine_epoch, state, phase, sealed_at IS NOT NULL,
			exit IS NOT NULL,
		       orders, forgotten_at IS NOT NULL, started_at IS NOT NULL
		FROM allocations
		WHERE id IN (
			SELECT unnest(@allocs::bigint[])
			UNION
			SELECT a.id
			FROM allocations a
			JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
			WHERE a.job = ANY(@prepared::text[]::uuid[])
		)
		ORDER BY id
		FOR NO KEY UPDATE`, namedArgs{"allocs": allocs, "prepared": prepared}).Query(func(rows pgx.Rows) error {
		var a reportedRow
		_, err := pgx.ForEachRow(rows, []any{&a.ID, &a.Job, &a.Attempt, &a.Rank, &a.Machine, &a.Epoch, &a.State,
			&a.Phase, &a.Sealed, &a.HasExit,
			&a.Orders, &a.Forgotten, &a.Started}, func() error {
			locked := a
			r.rows[a.ID] = &locked
			r.order = append(r.order, a.ID)
			// The next row is scanned into the same variable: orders must not carry over.
			a.Orders = berth.Orders{}
			return nil
		})
		return err
	})
}

// lockMore returns errMoved, so that the transaction starts over with more locks, if the
// locked rows show that an ordinary report affects its job after all: the first report of a
// started container, or the end of an orphan. It collects all such jobs of the call at
// once, so the transaction starts over only a few times, however many reports the call has.
func (r *reporting) lockMore() error {
	var more error
	for _, id := range r.req.Gone {
		if a := r.rows[id]; a != nil && a.Machine == r.machine && a.State == berth.AllocOrphaned && !r.lockJobs[a.Job] {
			r.lockJobs[a.Job], more = true, errMoved
		}
	}
	for _, p := range r.req.Reports {
		a := r.rows[p.Alloc]
		if r.isOf(a, p) && a.State == berth.AllocOrphaned && p.Exit != nil && !r.lockJobs[p.Job] {
			r.lockJobs[p.Job], more = true, errMoved
		}
		if !r.isOf(a, p) || a.Started || !started(p) || a.State != berth.AllocReserved && a.State != berth.AllocActive {
			continue
		}
		if r.starting[p.Job] || r.lockJobs[p.Job] && p.Phase == berth.PhaseRunning {
			continue // lock took the job and its members
		}
		r.lockJobs[p.Job], r.starting[p.Job] = true, true
		more = errMoved
	}
	return more
}
