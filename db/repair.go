package db

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/failure"
)

// The room of a gang's other members is kept for it once one has ended, by
// nominations (table earmarks) of which the gang is both victim and beneficiary. They
// are inactive while the gang holds the room itself, and keep the room from the very
// moment at which a member releases it. The next placement of the gang deletes them; so
// does the end of the job, and the leader at their time, or when another gang waits for
// that room. See docs/adr/0012-repairs-by-earmarks.md.

// keepRoom keeps the room of the members of a gang for its repair, for that long.
func keepRoom(ctx context.Context, tx pgx.Tx, job lockedJob, d time.Duration) error {
	if len(job.Ranks) < 2 || job.CancelAt != nil || job.Preempted ||
		job.State != berth.Scheduled && job.State != berth.Running {
		return nil
	}
	survivors := job.survivors()
	if err := lockMachines(ctx, tx, job); err != nil {
		return err
	}
	// A member that was told of later may have ended first: then it is to blame, and
	// not the one that was until now.
	_, err := tx.Exec(ctx, `
		DELETE FROM earmarks e
		WHERE e.beneficiary = @job AND e.victim = @job AND NOT EXISTS (
			SELECT 1
			FROM allocations a
			WHERE a.id = ANY(@survivors) AND a.machine_id = e.machine_id)`,
		pgx.NamedArgs{"job": job.ID, "survivors": ids(survivors)})
	if err != nil || len(survivors) == 0 {
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO earmarks AS e (beneficiary, machine_id, gpu_idx, milli, cpu_m, mem_mb, disk_mb, victim,
			victim_attempt, expires_at)
		SELECT @job, k.machine_id, k.idx, sum(k.milli), sum(k.cpu_m), sum(k.mem_mb), sum(k.disk_mb), @job, @attempt,
			now() + @hold::interval
		FROM (
			SELECT a.machine_id, -1 AS idx, 0 AS milli, a.cpu_m, a.mem_mb, a.disk_mb
			FROM allocations a
			WHERE a.id = ANY(@survivors)
			UNION ALL
			SELECT c.machine_id, c.idx, c.milli, 0, 0, 0
			FROM gpu_claims c
			WHERE c.alloc_id = ANY(@survivors)
		) k
		JOIN machines m ON m.id = k.machine_id AND m.state = 'ready'
		GROUP BY k.machine_id, k.idx
		ORDER BY k.machine_id, k.idx
		ON CONFLICT ON CONSTRAINT earmarks_once DO UPDATE
		SET milli = excluded.milli, cpu_m = excluded.cpu_m, mem_mb = excluded.mem_mb, disk_mb = excluded.disk_mb,
		    victim_attempt = excluded.victim_attempt, expires_at = excluded.expires_at`,
		pgx.NamedArgs{"job": job.ID, "attempt": job.Attempt, "survivors": ids(survivors), "hold": d})
	return err
}

// survivors are the members whose machines did nothing wrong: all but those that
// were given up or never taken, or, where none was, but the first that ended
// badly by itself.
func (j lockedJob) survivors() []berth.AllocationID {
	hole := -1
	gone := func(r lockedRank) bool { return r.Orphaned || r.untaken() }
	for i, r := range j.Ranks {
		if !r.bad() || r.Exit == nil ||
			r.Exit.Cause == failure.CauseOrdered || r.Exit.Cause == failure.CauseNotStarted {
			continue
		}
		if hole < 0 || r.Exit.FinishedAt.Before(j.Ranks[hole].Exit.FinishedAt) {
			hole = i
		}
	}
	if slices.ContainsFunc(j.Ranks, gone) {
		hole = -1
	}
	var list []berth.AllocationID
	for i, r := range j.Ranks {
		if !gone(r) && i != hole {
			list = append(list, r.ID)
		}
	}
	return list
}

// settleRoom keeps the room from now on for as long as a repair may take; where
// there is none to come, or not there, it is given up.
func settleRoom(ctx context.Context, tx pgx.Tx, job lockedJob, v failure.Verdict) error {
	if len(job.Ranks) < 2 {
		return nil
	}
	if job.keepsRoom(v) {
		if err := keepRoom(ctx, tx, job, berth.RepairHold); err != nil {
			return err
		}
		if len(v.Avoid) == 0 {
			return nil
		}
		_, err := tx.Exec(ctx, `DELETE FROM earmarks WHERE beneficiary = @job AND machine_id = ANY(@avoid)`,
			pgx.NamedArgs{"job": job.ID, "avoid": v.Avoid})
		return err
	}
	_, err := tx.Exec(ctx, `DELETE FROM earmarks WHERE beneficiary = @job`, pgx.NamedArgs{"job": job.ID})
	return err
}

// keepsRoom reports whether the room of a gang is kept after this verdict, since
// the next attempt comes soon.
func (j lockedJob) keepsRoom(v failure.Verdict) bool {
	return len(j.Ranks) > 1 && v.Next == berth.Retrying && v.Delay < berth.RepairHold
}

// lockMachines takes the machines of a job's members in their order, before what
// is freed there takes some of them: a writer of nominations holds these locks.
func lockMachines(ctx context.Context, tx pgx.Tx, job lockedJob) error {
	var on []berth.MachineID
	for _, r := range job.Ranks {
		on = append(on, r.Machine)
	}
	slices.Sort(on)
	_, err := tx.Exec(ctx, `
		SELECT 1
		FROM machines
		WHERE id = ANY(@machines)
		ORDER BY id
		FOR NO KEY UPDATE`, pgx.NamedArgs{"machines": slices.Compact(on)})
	return err
}

// GiveUpRepairs lets go of the room that is kept for the repair of gangs: others
// wait for it. It returns how many gangs had some.
func (d *Queue) GiveUpRepairs(ctx context.Context, term Term, gangs []berth.JobID) (int, error) {
	if len(gangs) == 0 {
		return 0, nil
	}
	n := 0
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			WITH gone AS (
				DELETE FROM earmarks d
				WHERE d.id IN (
					SELECT e.id
					FROM earmarks e
					WHERE e.beneficiary = ANY(@gangs::uuid[]) AND e.victim = e.beneficiary
					ORDER BY e.id
					FOR UPDATE SKIP LOCKED)
				RETURNING d.beneficiary
			)
			SELECT count(DISTINCT beneficiary) FROM gone`, pgx.NamedArgs{"gangs": gangs}).Scan(&n)
	})
	return n, mapError(err, "room kept for repairs")
}
