package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// Notice is one pending call of a webhook.
type Notice struct {
	Job    berth.JobID
	Seq    int64 // of the event that caused it
	Hook   int   // index in spec.notify
	Tenant berth.TenantID
	URL    string
	Status berth.State   // the reported status
	Body   string        // JSON, the same on each try
	Tries  int           // including this one
	Age    time.Duration // since the notice was created
}

// ID returns the call's id, the same on each try, so that a receiver can drop duplicates.
func (n Notice) ID() string { return fmt.Sprintf("msg_%s_%d_%d", n.Job, n.Seq, n.Hook) }

// NoticeClaim bounds a call of Claim.
type NoticeClaim struct {
	Crowded []berth.TenantID // tenants at their limit of calls in flight
	Each    int              // most notices of one tenant
	Limit   int              // most notices in all
	Lease   time.Duration    // after which an unsettled notice is due again
}

// Claim takes notices that are due, the longest overdue first, at most c.Each of one tenant,
// so that one tenant cannot crowd out the others. The caller has a notice to itself until the
// lease ends. After that the caller counts as dead, before or after its call of the webhook:
// delivery is at least once. A quarantined cluster sends none: its calls may have been sent before the restore.
func (d *Outbox) Claim(ctx context.Context, c NoticeClaim) ([]Notice, error) {
	// The recursion steps from tenant to tenant along the index, instead of reading all
	// notices. SKIP LOCKED keeps concurrent callers from waiting for each other.
	rows, err := d.pool.Query(ctx, `
		WITH RECURSIVE t (tenant) AS (
			SELECT min(tenant) FROM notices WHERE NOT `+quarantined+`
			UNION ALL
			SELECT (SELECT min(n.tenant) FROM notices n WHERE n.tenant > t.tenant)
			FROM t
			WHERE t.tenant IS NOT NULL
		), picked AS MATERIALIZED (
			SELECT n.job, n.seq, n.hook
			FROM t
			CROSS JOIN LATERAL (
				SELECT n.job, n.seq, n.hook, n.due_at
				FROM notices n
				WHERE n.tenant = t.tenant AND n.due_at <= now()
				ORDER BY n.due_at
				LIMIT @each
				FOR UPDATE SKIP LOCKED
			) n
			WHERE t.tenant <> ALL (@crowded::text[])
			ORDER BY n.due_at
			LIMIT @limit
		)
		UPDATE notices n
		SET tries = n.tries + 1, due_at = now() + @lease::interval
		FROM picked p
		WHERE n.job = p.job AND n.seq = p.seq AND n.hook = p.hook
		RETURNING n.job::text, n.seq, n.hook, n.tenant, n.url, n.status, n.body::text, n.tries, now() - n.created_at`,
		namedArgs{"crowded": nonNilList(c.Crowded), "each": c.Each, "limit": c.Limit, "lease": c.Lease})
	if err != nil {
		return nil, mapError(err, "notices")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Notice])
	return list, mapError(err, "notices")
}

// nonNilList replaces nil, which would become NULL: a comparison with NULL is never true.
func nonNilList[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// NoticeBacklog counts the calls of webhooks that are still to be made.
type NoticeBacklog struct {
	Waiting int
	Overdue time.Duration // since the longest overdue call was due; 0: none is
}

// Backlog counts the pending notices. A call in flight is not overdue before its lease ends.
func (d *Outbox) Backlog(ctx context.Context) (b NoticeBacklog, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT count(*), greatest(coalesce(now() - min(due_at), '0'), '0')
		FROM notices`).Scan(&b.Waiting, &b.Overdue)
	return b, mapError(err, "notices")
}

// Delivered removes a notice after a successful call.
func (d *Outbox) Delivered(ctx context.Context, n Notice) error {
	_, err := d.pool.Exec(ctx, `DELETE FROM notices WHERE job = @job AND seq = @seq AND hook = @hook`,
		namedArgs{"job": n.Job, "seq": n.Seq, "hook": n.Hook})
	return mapError(err, "notice "+n.ID())
}

// Failed makes a notice due again after wait, unless another process has claimed it since.
func (d *Outbox) Failed(ctx context.Context, n Notice, wait time.Duration) error {
	_, err := d.pool.Exec(ctx, `
		UPDATE notices
		SET due_at = now() + @wait::interval
		WHERE job = @job AND seq = @seq AND hook = @hook AND tries = @tries`,
		namedArgs{"job": n.Job, "seq": n.Seq, "hook": n.Hook, "tries": n.Tries, "wait": wait})
	return mapError(err, "notice "+n.ID())
}

// GiveUp removes a notice and adds a warning to the job's events, once.
func (d *Outbox) GiveUp(ctx context.Context, n Notice, detail string) error {
	gone := false
	err := d.tx(ctx, func(tx pgx.Tx) error {
		args := namedArgs{"job": n.Job, "seq": n.Seq, "hook": n.Hook}
		if _, err := tx.Exec(ctx, `SELECT 1 FROM jobs WHERE id = @job FOR NO KEY UPDATE`, args); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `DELETE FROM notices WHERE job = @job AND seq = @seq AND hook = @hook`, args)
		if gone = tag.RowsAffected() > 0; err != nil || !gone {
			return err
		}
		return addEvent(ctx, tx, n.Job, wire.Event{
			Kind: wire.EventWarning, Actor: "webhooks",
			Detail: detail,
		})
	})
	if err == nil && gone {
		d.hub.Publish(TopicJob, string(n.Job))
	}
	return mapError(err, "notice "+n.ID())
}
