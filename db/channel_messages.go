package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// ChannelMessage is one message to a channel with all of its notifications. A repeated try has the same
// notifications, without the ones that became too old.
type ChannelMessage struct {
	Channel int64
	Tenant  berth.TenantID
	Name    string
	Kind    string
	Secret  string // name of the tenant's secret with the address
	URL     string
	To      []string
	Batch   int64 // number of the message in its channel
	Tries   int   // including this one

	Total  int
	Counts []TypeCount // by type, the most frequent first
	First  []StoredNotification
}

// TypeCount is the number of notifications of one type.
type TypeCount struct {
	Type string
	N    int
}

// StoredNotification is one notification of a message.
type StoredNotification struct {
	ID   int64
	UID  string // the same at each repeat, and of no other notification of any database
	Body string // JSON, a wire.Notification
}

// ChannelClaim bounds a call of Claim.
type ChannelClaim struct {
	Crowded []berth.TenantID // tenants at their limit of concurrent messages
	Each    int              // most channels of one tenant
	Limit   int              // most channels in all
	Lease   time.Duration    // after which an unsettled message is due again
	First   int              // most notifications that a message returns whole
	Most    int              // most notifications of a message
}

// Claim takes the next message of channels that are due, the longest overdue first. The caller has the message
// to itself until the lease ends; after that another process sends the same message again. A message to a
// webhook has as many notifications as it returns whole. A quarantined cluster sends none.
func (d *Channels) Claim(ctx context.Context, c ChannelClaim) (list []ChannelMessage, err error) {
	err = d.tx(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			WITH due AS (
				SELECT c.id, c.due_at, row_number() OVER (PARTITION BY c.tenant ORDER BY c.due_at, c.id) AS n
				FROM channels c
				WHERE c.due_at <= now() AND coalesce(c.claimed_until, '-infinity') <= now()
				  AND c.tenant <> ALL (@crowded::text[]) AND NOT `+quarantined+`
				  AND EXISTS (SELECT FROM notifications n WHERE n.channel = c.id)
			), picked AS MATERIALIZED (
				SELECT c.id
				FROM channels c
				WHERE coalesce(c.claimed_until, '-infinity') <= now()
				  AND c.id IN (SELECT id FROM due WHERE n <= @each ORDER BY due_at, id LIMIT @limit)
				ORDER BY c.id
				FOR NO KEY UPDATE SKIP LOCKED
			)
			UPDATE channels c
			SET claimed_until = now() + @lease::interval, tries = c.tries + 1
			FROM picked p
			WHERE c.id = p.id
			RETURNING c.id, c.tenant, c.name, c.kind, c.secret, c.url, c.recipients, c.batch, c.tries`,
			namedArgs{"crowded": nonNilList(c.Crowded), "each": c.Each, "limit": c.Limit, "lease": c.Lease})
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (m ChannelMessage, err error) {
			err = row.Scan(&m.Channel, &m.Tenant, &m.Name, &m.Kind, &m.Secret, &m.URL, &m.To, &m.Batch, &m.Tries)
			return m, err
		})
		for i := 0; err == nil && i < len(list); i++ {
			err = fillMessage(ctx, tx, &list[i], c)
		}
		return err
	})
	return list, mapError(err, "channels")
}

// fillMessage reads the notifications of the present message, or puts the waiting ones into the next message. A
// message to a webhook is filled up at each try, since its notifications are calls of their own.
func fillMessage(ctx context.Context, tx pgx.Tx, m *ChannelMessage, c ChannelClaim) error {
	args := namedArgs{"channel": m.Channel, "batch": m.Batch, "most": c.Most, "first": c.First}
	var held int
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM notifications WHERE channel = @channel AND batch = @batch`,
		args).Scan(&held); err != nil {
		return err
	}
	if m.Kind == spec.ChannelWebhook {
		args["most"] = max(0, c.First-held)
	} else if held > 0 {
		args["most"] = 0
	}
	// The numbers of notifications are not in the order of their commits, so each notification carries the number of
	// its message: a later delivery must not delete notifications that it has not sent.
	if held == 0 {
		if _, err := tx.Exec(ctx, `UPDATE channels SET batch = @batch + 1, tries = 1 WHERE id = @channel`,
			args); err != nil {
			return err
		}
		m.Batch, m.Tries = m.Batch+1, 1
		args["batch"] = m.Batch
	}
	if _, err := tx.Exec(ctx, `
		UPDATE notifications
		SET batch = @batch
		WHERE id IN (
			SELECT id
			FROM notifications
			WHERE channel = @channel AND batch IS NULL
			ORDER BY id
			LIMIT @most)`, args); err != nil {
		return err
	}
	return readMessage(ctx, tx, m, args)
}

// readMessage reads the notifications of the present message.
func readMessage(ctx context.Context, tx pgx.Tx, m *ChannelMessage, args namedArgs) error {
	rows, err := tx.Query(ctx, `
		SELECT type, count(*)
		FROM notifications
		WHERE channel = @channel AND batch = @batch
		GROUP BY type
		ORDER BY count(*) DESC, type`, args)
	if err != nil {
		return err
	}
	if m.Counts, err = pgx.CollectRows(rows, pgx.RowToStructByPos[TypeCount]); err != nil {
		return err
	}
	for _, t := range m.Counts {
		m.Total += t.N
	}
	rows, err = tx.Query(ctx, `
		SELECT id, uid::text, body::text
		FROM notifications
		WHERE channel = @channel AND batch = @batch
		ORDER BY id
		LIMIT @first`, args)
	if err != nil {
		return err
	}
	m.First, err = pgx.CollectRows(rows, pgx.RowToStructByPos[StoredNotification])
	return err
}

// Delivered removes the notifications of a message after its delivery. The channel's next message is due after wait.
func (d *Channels) Delivered(ctx context.Context, m ChannelMessage, wait time.Duration) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		args := namedArgs{"channel": m.Channel, "batch": m.Batch, "wait": wait}
		_, err := tx.Exec(ctx, `
			UPDATE channels
			SET due_at = now() + @wait::interval, claimed_until = NULL, tries = 0, failing_since = NULL,
				last_error = '', delivered_at = now()
			WHERE id = @channel AND batch = @batch`, args)
		if err == nil {
			_, err = tx.Exec(ctx, `DELETE FROM notifications WHERE channel = @channel AND batch = @batch`, args)
		}
		return err
	})
	return mapError(err, "channel "+m.Name)
}

// Remove removes single notifications, which were delivered by calls of their own or can never be.
func (d *Channels) Remove(ctx context.Context, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := d.pool.Exec(ctx, `DELETE FROM notifications WHERE id = ANY(@ids)`, namedArgs{"ids": ids})
	return mapError(err, "notifications")
}

// Failed records a failed try and makes the channel due again after wait, unless another process has claimed it since.
func (d *Channels) Failed(ctx context.Context, m ChannelMessage, reason string, wait time.Duration) error {
	_, err := d.pool.Exec(ctx, `
		UPDATE channels
		SET due_at = now() + @wait::interval, claimed_until = NULL, failing_since = coalesce(failing_since, now()),
			failed_at = now(), last_error = @reason
		WHERE id = @channel AND batch = @batch AND tries = @tries`,
		namedArgs{"channel": m.Channel, "batch": m.Batch, "tries": m.Tries, "reason": reason, "wait": wait})
	return mapError(err, "channel "+m.Name)
}

// Sweep deletes the notifications of deleted channels, since a job that changes during the deletion can add one, and
// notifications that are older than age. It deletes all but the newest keep of each channel, and returns the number of
// deleted ones.
func (d *Channels) Sweep(ctx context.Context, age time.Duration, keep int) (dropped int, err error) {
	tag, err := d.pool.Exec(ctx, `
		WITH ends AS MATERIALIZED (
			SELECT c.id, (
				SELECT k.id
				FROM notifications k
				WHERE k.channel = c.id
				ORDER BY k.id DESC
				OFFSET @keep
				LIMIT 1) AS newest_dropped
			FROM channels c
		)
		DELETE FROM notifications n
		WHERE n.created_at < now() - @age::interval
		   OR NOT EXISTS (SELECT FROM channels c WHERE c.id = n.channel)
		   OR n.id <= (SELECT e.newest_dropped FROM ends e WHERE e.id = n.channel)`,
		namedArgs{"age": age, "keep": keep})
	return int(tag.RowsAffected()), mapError(err, "notifications")
}

// Backlog counts the notifications that are not delivered, up to 100,000, and returns how long the longest overdue
// message has been due. A channel that failed is not overdue before its next try.
func (d *Channels) Backlog(ctx context.Context) (b NoticeBacklog, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM (SELECT FROM notifications LIMIT 100000) few),
			greatest(coalesce(max(now() - greatest(c.due_at, c.claimed_until, n.created_at)), '0'), '0')
		FROM channels c
		CROSS JOIN LATERAL (
			SELECT n.created_at
			FROM notifications n
			WHERE n.channel = c.id
			ORDER BY n.id
			LIMIT 1
		) n`).Scan(&b.Waiting, &b.Overdue)
	return b, mapError(err, "notifications")
}
