package db

import (
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// queueWindows reads the machines that are inside a maintenance window. The trigger
// allocations_windows refuses starts there too, but then the whole batch fails. The statement follows
// the locks of the machines, which writers of windows take.
func (p *present) queueWindows(batch *pgx.Batch, machines []berth.MachineID) {
	batch.Queue(`
		SELECT machine_id, maintenance, ends_at
		FROM maintenance_machines
		WHERE machine_id = ANY($1) AND state IN ('planned', 'active')
		  AND closes_at <= clock_timestamp() AND ends_at > clock_timestamp()`,
		machines).Query(func(rows pgx.Rows) error {
		var id berth.MachineID
		var w presentWindow
		_, err := pgx.ForEachRow(rows, []any{&id, &w.id, &w.until}, func() error {
			p.machines[id].window = &presentWindow{w.id, w.until}
			return nil
		})
		return err
	})
}

// presentWindow is a maintenance window that has begun and is not over.
type presentWindow struct {
	id    int64
	until time.Time
}
