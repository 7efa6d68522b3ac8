package db

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
)

// When a member of a gang has ended, nominations (table nominations) keep the capacity of the
// other members for the gang's next attempt. The gang is both victim and beneficiary of
// these nominations. A nomination is inactive while the gang itself holds the capacity, and
// takes effect at the very moment at which a member releases it. It is deleted by the next
// placement of the gang, by the end of the job, or by the leader: at the expiry, or when
// another gang waits for the capacity. See docs/adr/0012-repairs-by-nominations.md.

// keepRoom nominates the capacity of a gang's surviving members for the gang itself, for
// duration d, except for the parts that are nominated for other jobs already: a preemption may count
// on a gang that is killed or leaves a draining machine before any of its members has ended. Several
// members may share a machine or a GPU, and a nomination does not record whose part it takes. So the gang
// keeps the capacity of the survivors, and at most the part of all members that is nominated for no
// other job. keepRoom does nothing for a job that is not Repairable. The caller holds the locks of lockJob.
func keepRoom(ctx context.Context, tx pgx.Tx, job lockedJob, d time.Duration) error {
	if !job.Repairable() {
		return nil
	}
	survivors := job.Survivors()
	if err := lockMachines(ctx, tx, job); err != nil {
		return err
	}
	// A later report may show that another member ended first: that member is then to
	// blame, and the member blamed so far is a survivor.
	_, err := tx.Exec(ctx, `
		DELETE FROM nominations e
		WHERE e.beneficiary = @job AND e.victim = @job AND NOT EXISTS (
			SELECT 1
			FROM allocations a
			WHERE a.id = ANY(@survivors) AND a.machine_id = e.machine_id)`,
		namedArgs{"job": job.ID, "survivors": ids(survivors)})
	if err != nil || len(survivors) == 0 {
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO nominations AS e (beneficiary, machine_id, gpu_idx, milli, cpu_m, memory_mib, disk_mib, victim,
			victim_attempt, expires_at)
		SELECT @job, k.machine_id, k.idx, k.milli, k.cpu_m, k.mem_mb, k.disk_mb, @job, @attempt, now() + @hold::interval
		FROM (
			SELECT p.machine_id, p.idx,
				greatest(least(sum(p.milli) FILTER (WHERE p.survives), sum(p.milli)), 0) AS milli,
				greatest(least(sum(p.cpu_m) FILTER (WHERE p.survives), sum(p.cpu_m)), 0) AS cpu_m,
				greatest(least(sum(p.mem_mb) FILTER (WHERE p.survives), sum(p.mem_mb)), 0) AS mem_mb,
				greatest(least(sum(p.disk_mb) FILTER (WHERE p.survives), sum(p.disk_mb)), 0) AS disk_mb
			FROM (
				SELECT a.machine_id, -1 AS idx, 0 AS milli, a.cpu_m, a.mem_mb, a.disk_mb,
					a.id = ANY(@survivors) AS survives
				FROM allocations a
				WHERE a.id = ANY(@members)
				UNION ALL
				SELECT c.machine_id, c.idx, c.milli, 0, 0, 0, c.alloc_id = ANY(@survivors)
				FROM device_allocations c
				WHERE c.alloc_id = ANY(@members)
				UNION ALL
				SELECT o.machine_id, o.gpu_idx, -o.milli, -o.cpu_m, -o.memory_mib, -o.disk_mib, false
				FROM nominations o
				WHERE o.victim = @job AND o.victim_attempt = @attempt AND o.beneficiary <> @job
					AND o.expires_at > clock_timestamp()
			) p
			GROUP BY p.machine_id, p.idx
			HAVING bool_or(p.survives)
		) k
		JOIN machines m ON m.id = k.machine_id AND m.state = 'ready'
		WHERE greatest(k.milli, k.cpu_m, k.mem_mb, k.disk_mb) > 0
		ORDER BY k.machine_id, k.idx
		ON CONFLICT (beneficiary, machine_id, gpu_idx, victim) DO UPDATE
		SET milli = excluded.milli, cpu_m = excluded.cpu_m, memory_mib = excluded.memory_mib,
		    disk_mib = excluded.disk_mib, victim_attempt = excluded.victim_attempt, expires_at = excluded.expires_at`,
		namedArgs{"job": job.ID, "attempt": job.Attempt, "survivors": ids(survivors),
			"members": ids(membersOf(job)), "hold": d})
	return err
}

// membersOf lists the allocations of all members of a job's attempt.
func membersOf(job lockedJob) []berth.AllocationID {
	list := make([]berth.AllocationID, len(job.Members))
	for i, m := range job.Members {
		list[i] = m.ID
	}
	return list
}

// settleRoom adjusts the nominations of a gang to the settlement of its attempt. Kept ones
// last for berth.RepairHold from now, except on the machines that the verdict avoids; released
// ones are deleted.
func settleRoom(ctx context.Context, tx pgx.Tx, job lockedJob, s lifecycle.Settlement) error {
	switch s.Room {
	case lifecycle.RoomNone:
		return nil
	case lifecycle.RoomKept:
		if err := keepRoom(ctx, tx, job, berth.RepairHold); err != nil {
			return err
		}
		if len(s.Verdict.Avoid) == 0 {
			return nil
		}
		_, err := tx.Exec(ctx, `DELETE FROM nominations WHERE beneficiary = @job AND machine_id = ANY(@avoid)`,
			namedArgs{"job": job.ID, "avoid": s.Verdict.Avoid})
		return err
	case lifecycle.RoomReleased:
		_, err := tx.Exec(ctx, `DELETE FROM nominations WHERE beneficiary = @job`, namedArgs{"job": job.ID})
		return err
	default:
		panic("unknown future of nominations " + string(s.Room))
	}
}

// lockMachines locks the machines of all members in order of id, before the release of
// capacity locks some of them in another order. A transaction that writes nominations must
// hold these locks.
func lockMachines(ctx context.Context, tx pgx.Tx, job lockedJob) error {
	var on []berth.MachineID
	for _, m := range job.Members {
		on = append(on, m.Machine)
	}
	slices.Sort(on)
	_, err := tx.Exec(ctx, `
		SELECT 1
		FROM machines
		WHERE id = ANY(@machines)
		ORDER BY id
		FOR NO KEY UPDATE`, namedArgs{"machines": slices.Compact(on)})
	return err
}

// GiveUpRepairs deletes the nominations for the repair of the given gangs, because other
// jobs wait for the capacity. It returns the number of gangs that had nominations.
func (d *Queue) GiveUpRepairs(ctx context.Context, term Term, gangs []berth.JobID) (int, error) {
	if len(gangs) == 0 {
		return 0, nil
	}
	n := 0
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			WITH gone AS (
				DELETE FROM nominations d
				WHERE d.id IN (
					SELECT e.id
					FROM nominations e
					WHERE e.beneficiary = ANY(@gangs::uuid[]) AND e.victim = e.beneficiary
					ORDER BY e.id
					FOR UPDATE SKIP LOCKED)
				RETURNING d.beneficiary
			)
			SELECT count(DISTINCT beneficiary) FROM gone`, namedArgs{"gangs": gangs}).Scan(&n)
	})
	return n, mapError(err, "room kept for repairs")
}
