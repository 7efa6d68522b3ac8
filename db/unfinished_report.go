package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// StoreUnfinished stores the unfinished lines of members of a machine in place of the former ones. Lines of members
// without a follower are dropped, and the ones that the rows already have change nothing. A caller whose session is not
// current gets ErrStaleEpoch and has changed nothing.
func (d *Agents) StoreUnfinished(ctx context.Context, machine berth.MachineID, req wire.UnfinishedReport) error {
	if err := req.Valid(); err != nil {
		return err
	}
	var allocs []int64
	var at []time.Time
	var stderr []bool
	var lines []string
	for _, l := range req.Lines {
		allocs, at = append(allocs, int64(l.Alloc)), append(at, l.At)
		stderr, lines = append(stderr, l.Stderr), append(lines, l.Text)
	}
	// Locked in the order of their keys, as by every statement that writes several rows.
	rows, err := d.pool.Query(ctx, `
		WITH chosen AS (
			SELECT f.alloc, x.at, x.stderr, x.line
			FROM unnest(@allocs::bigint[], @at::timestamptz[], @stderr::boolean[], @lines::text[])
				AS x (alloc, at, stderr, line)
			JOIN followed_members f ON f.alloc = x.alloc
			WHERE f.machine_id = @machine AND f.until > now()
			  AND (f.at, f.stderr, f.line) IS DISTINCT FROM (x.at, x.stderr, x.line) AND EXISTS (
				SELECT 1
				FROM machines m
				WHERE m.id = @machine AND m.epoch = @epoch AND m.agent_boot = @boot
				  AND m.state NOT IN ('lost', 'retired'))
			ORDER BY f.alloc
			FOR UPDATE OF f
		)
		UPDATE followed_members f
		SET at = c.at, stderr = c.stderr, line = c.line
		FROM chosen c
		WHERE f.alloc = c.alloc
		RETURNING f.job::text, f.rank`,
		namedArgs{"machine": machine, "epoch": req.Epoch, "boot": req.AgentBoot, "allocs": allocs, "at": at,
			"stderr": stderr, "lines": lines})
	if err != nil {
		return mapError(err, "unfinished lines of machine "+string(machine))
	}
	var keys []string
	var job string
	var rank int
	if _, err := pgx.ForEachRow(rows, []any{&job, &rank}, func() error {
		keys = append(keys, unfinishedKey(job, rank))
		return nil
	}); err != nil {
		return mapError(err, "unfinished lines of machine "+string(machine))
	}
	// No changed row has two causes: equal lines, or a stale session. Only then is the session read, which spares the
	// common case a query.
	if len(keys) == 0 {
		return d.checkSession(ctx, machine, Session{AgentBoot: req.AgentBoot, Epoch: req.Epoch})
	}
	// Published after the commit, since a follower reads the row when it is woken.
	d.hub.Publish(TopicUnfinished, keys...)
	return nil
}
