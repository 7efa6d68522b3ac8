package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
)

// Lacking returns the machines of a list that do not have a label with a value, in order of their
// ids.
func (d *Machines) Lacking(ctx context.Context, machines []berth.MachineID, label, value string,
) ([]berth.MachineID, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT id
		FROM machines
		WHERE id = ANY(@machines::text[]) AND labels->>@label IS DISTINCT FROM @value
		ORDER BY id`, namedArgs{"machines": machines, "label": label, "value": value})
	if err != nil {
		return nil, mapError(err, "machines")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[berth.MachineID])
	return list, mapError(err, "machines")
}
