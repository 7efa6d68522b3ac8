package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// Withdrawal names the nominations of a job on a machine that expire at the given time.
type Withdrawal struct {
	Job       berth.JobID // the beneficiary
	Machine   berth.MachineID
	ExpiresAt time.Time // zero: never
}

// WithdrawNominations deletes nominations of waiting jobs that their reserved starts replace. It spares the
// nominations of a repair, and the ones that a later preemption has written since the plan, which expire at
// another time. It returns the number of deleted rows: one for each device, and one for the rest.
func (d *Queue) WithdrawNominations(ctx context.Context, term Term, list []Withdrawal) (int, error) {
	// Most plans withdraw nothing, and need no transaction.
	if len(list) == 0 {
		return 0, nil
	}
	var jobs []berth.JobID
	var machines []berth.MachineID
	var until []*time.Time // nil: never
	for _, w := range list {
		at := &w.ExpiresAt
		if at.IsZero() {
			at = nil
		}
		jobs, machines, until = append(jobs, w.Job), append(machines, w.Machine), append(until, at)
	}
	n := 0
	// SKIP LOCKED: a row that another transaction holds is being changed, and the next plan judges it again. ORDER BY
	// keeps the lock order of db/doc.go.
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			DELETE FROM nominations d
			WHERE d.id IN (
				SELECT e.id
				FROM unnest(@jobs::uuid[], @machines::text[], @until::timestamptz[]) AS w(job, machine, until)
				JOIN nominations e ON e.beneficiary = w.job AND e.machine_id = w.machine
					AND e.expires_at = coalesce(w.until, 'infinity') AND e.victim IS DISTINCT FROM e.beneficiary
				ORDER BY e.id
				FOR UPDATE OF e SKIP LOCKED)`, namedArgs{"jobs": jobs, "machines": machines, "until": until})
		n = int(tag.RowsAffected())
		return err
	})
	return n, mapError(err, "withdrawn nominations")
}
