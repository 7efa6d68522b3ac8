package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// BurstState is the part of the scaler's facts that quotes of offers need beyond policies, offers and spend.
type BurstState struct {
	Now      time.Time // of the database
	Parents  map[berth.TenantID]berth.TenantID
	Machines map[berth.TenantID]int // launches of the scaler that are not settled, of the tenant alone
	// Boots is the median time from the request of a machine to its join, by provider/region/type, over the launches
	// of the last 30 days that Berth still has.
	Boots map[string]time.Duration
}

// State returns the facts for quotes of offers. All of it is of one snapshot.
func (d *Scaling) State(ctx context.Context) (s BurstState, err error) {
	s.Parents, s.Machines = map[berth.TenantID]berth.TenantID{}, map[berth.TenantID]int{}
	s.Boots = map[string]time.Duration{}
	err = d.readTx(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&s.Now); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT t.id, coalesce(t.parent, ''), (
				SELECT count(*)
				FROM launches l
				WHERE l.tenant = t.id AND l.actor = @actor AND l.state NOT IN ('gone', 'failed'))
			FROM tenants t`, namedArgs{"actor": ScalerActor})
		if err != nil {
			return err
		}
		var id, parent berth.TenantID
		// Of the tenant alone: the caller adds up subtrees.
		var machines int
		if _, err := pgx.ForEachRow(rows, []any{&id, &parent, &machines}, func() error {
			s.Parents[id], s.Machines[id] = parent, machines
			return nil
		}); err != nil {
			return err
		}
		// A median: a few machines that boot slowly must not move the estimate.
		rows, err = tx.Query(ctx, `
			SELECT provider || '/' || region || '/' || type,
				percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM joined_at - created_at)::float8)
			FROM launches
			WHERE joined_at > clock_timestamp() - interval '30 days'
			GROUP BY 1`)
		if err != nil {
			return err
		}
		var kind string
		var seconds float64
		_, err = pgx.ForEachRow(rows, []any{&kind, &seconds}, func() error {
			s.Boots[kind] = time.Duration(seconds * float64(time.Second))
			return nil
		})
		return err
	})
	return s, mapError(err, "state of the scaler")
}
