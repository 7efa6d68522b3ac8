package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
)

// Population is how many rows there are in each state.
type Population struct {
	Jobs     map[berth.State]int // live ones; every live state is there
	Machines map[berth.MachineState]int
}

// Population counts live jobs and machines.
func (d *DB) Population(ctx context.Context) (Population, error) {
	p := Population{Jobs: map[berth.State]int{}, Machines: map[berth.MachineState]int{}}
	for _, s := range berth.States {
		if !s.Terminal() {
			p.Jobs[s] = 0
		}
	}
	rows, err := d.pool.Query(ctx, `
		SELECT 'job', state, count(*)
		FROM jobs
		WHERE state NOT IN ('succeeded', 'failed', 'canceled')
		GROUP BY state
		UNION ALL
		SELECT 'machine', state, count(*)
		FROM machines
		GROUP BY state`)
	if err != nil {
		return p, mapError(err, "counts")
	}
	var what, state string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&what, &state, &n}, func() error {
		if what == "job" {
			p.Jobs[berth.State(state)] = n
		} else {
			p.Machines[berth.MachineState(state)] = n
		}
		return nil
	})
	return p, mapError(err, "counts")
}
