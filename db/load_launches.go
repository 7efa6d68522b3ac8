package db

import (
	"context"
	"time"

	"berth/db/history"
)

// launchRecords are the records of history.Cluster about launches of all machines. Amounts are in
// micro-dollars. Deleted launches count through pruned_spend, so the settled days of a tenant must
// equal the costs of its launches.
const launchRecords = `jsonb_build_object('spent', coalesce((
		SELECT jsonb_agg(to_jsonb(s) ORDER BY s.tenant)
		FROM (
			SELECT x.tenant, sum(x.days)::bigint AS days, sum(x.launches)::bigint AS launches
			FROM (
				SELECT d.tenant, d.settled AS days, 0 AS launches FROM spend d
				UNION ALL
				SELECT l.tenant, 0, l.settled FROM launches l
				UNION ALL
				SELECT p.tenant, 0, p.settled FROM pruned_spend p
			) x
			GROUP BY x.tenant
		) s), '[]'), 'limits', coalesce((
		SELECT jsonb_agg(jsonb_build_object('tenant', b.tenant, 'updated', b.updated_at,
			'since', burst_period(b.policy, clock_timestamp()), 'admits', (b.policy -> 'spend' ->> 'limit')::numeric
				* coalesce((b.policy -> 'spend' ->> 'stop_new')::numeric, 0.9) * 1000000) ORDER BY b.tenant)
		FROM burst_policies b
		WHERE b.policy ? 'spend'), '[]'), 'breakers', coalesce((
		SELECT jsonb_agg(to_jsonb(b) || jsonb_build_object('unset', coalesce(b.until = '-infinity', false),
			'until', nullif(b.until, '-infinity')) ORDER BY b.scope, b.key)
		FROM breakers b), '[]'))`

// Launches calls each for every machine name with launches, by name, except where all of them were
// settled before since. It reads pages of names, each with all its launches, so memory holds one page.
// The stored request of a launch is left out, since it contains a sealed secret.
func (h *History) Launches(ctx context.Context, since time.Time, each func(history.Launched) error) error {
	after := ""
	for {
		list, err := documents[history.Launched](ctx, h.tx, `
			SELECT jsonb_build_object('machine', x.machine, 'machine_state', coalesce(m.state, ''),
				'joined_token', coalesce(m.joined_token, ''),
				'launches', (SELECT jsonb_agg(to_jsonb(l) - 'request' ORDER BY l.n) FROM launches l
					WHERE l.machine = x.machine))
			FROM (
				SELECT l.machine
				FROM launches l
				WHERE l.machine > @after AND (l.due_at IS NOT NULL OR l.state_at >= @since)
				GROUP BY l.machine
				ORDER BY l.machine
				LIMIT @limit
			) x
			LEFT JOIN machines m ON m.id = x.machine
			ORDER BY x.machine`, namedArgs{"after": after, "since": since, "limit": historyJobs})
		if err != nil {
			return mapError(err, "launches")
		}
		for _, l := range list {
			if err := each(l); err != nil {
				return err
			}
			after = string(l.Machine)
		}
		// A page that is not full is the last one.
		if len(list) < historyJobs {
			return nil
		}
	}
}
