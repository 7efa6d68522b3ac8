package db

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// readChannels selects channels c of the tenants up, in the order of scanChannel. The destination of a channel of a
// tenant above is left out.
const readChannels = `
	SELECT c.name, c.tenant, up.depth > 0, c.kind, c.events, c.updated_at, c.updated_by,
		CASE WHEN up.depth = 0 THEN c.secret ELSE '' END, CASE WHEN up.depth = 0 THEN c.url ELSE '' END,
		CASE WHEN up.depth = 0 THEN c.recipients ELSE '{}' END,
		(SELECT count(*) FROM (SELECT FROM notifications n WHERE n.channel = c.id LIMIT 10001) few),
		(SELECT count(*) FROM (
			SELECT FROM notifications n WHERE n.channel = c.id AND n.type = 'channel.test' LIMIT 100) few),
		c.delivered_at, c.failing_since,
		c.failed_at, CASE WHEN up.depth = 0 THEN c.last_error ELSE '' END
	FROM up
	JOIN channels c ON c.tenant = up.id`

func scanChannel(row pgx.CollectableRow) (c wire.ChannelStatus, err error) {
	err = row.Scan(&c.Name, &c.Tenant, &c.Inherited, &c.Kind, &c.Events, &c.UpdatedAt, &c.UpdatedBy, &c.Secret, &c.URL,
		&c.To, &c.Waiting, &c.Tests, &c.DeliveredAt, &c.FailingSince, &c.FailedAt, &c.Error)
	return c, err
}

// List returns a page of the channels of a tenant and of the tenants above it, by name, and the cursor of the next
// page.
func (d *Channels) List(ctx context.Context, tenant berth.TenantID,
	p Paging) (list []wire.ChannelStatus, next string, err error) {
	var name, of string
	if _, err := p.after(&name, &of); err != nil {
		return nil, "", err
	}
	rows, err := d.pool.Query(ctx, `
		WITH RECURSIVE `+tenantPath+readChannels+`
		WHERE (c.name, c.tenant) > (@name, @of)
		ORDER BY c.name, c.tenant
		LIMIT @limit`, namedArgs{"tenant": tenant, "name": name, "of": of, "limit": p.limit() + 1})
	if err != nil {
		return nil, "", mapError(err, "channels")
	}
	if list, err = pgx.CollectRows(rows, scanChannel); err != nil {
		return nil, "", mapError(err, "channels")
	}
	list, next = cut(p, list, func(c wire.ChannelStatus) []any { return []any{c.Name, string(c.Tenant)} })
	return list, next, nil
}

// Get returns a channel of the tenant itself.
func (d *Channels) Get(ctx context.Context, tenant berth.TenantID, name string) (wire.ChannelStatus, error) {
	rows, err := d.pool.Query(ctx, `
		WITH RECURSIVE `+tenantPath+readChannels+`
		WHERE c.name = @name AND up.depth = 0`, namedArgs{"tenant": tenant, "name": name})
	if err != nil {
		return wire.ChannelStatus{}, mapError(err, "channel "+name)
	}
	c, err := pgx.CollectExactlyOneRow(rows, scanChannel)
	return c, mapError(err, "channel "+name)
}

// Set creates a channel or replaces its settings, and returns whether it is new. A replaced channel is tried again at
// once. A channel above the limit of its tenant is refused with slug quota, and one whose secret does not exist is
// invalid.
func (d *Channels) Set(ctx context.Context, tenant berth.TenantID, name string, c spec.Channel,
	actor string) (created bool, err error) {
	err = d.tx(ctx, func(tx pgx.Tx) error {
		if err := checkChannelSecret(ctx, tx, tenant, c); err != nil {
			return err
		}
		// The limit is exact: changes of the channels of a tenant come one at a time.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('channels ' || @tenant, 0))`,
			namedArgs{"tenant": tenant}); err != nil {
			return err
		}
		// xmax of a new row is 0, so updates is 1 if the channel existed.
		var updates int
		var id int64
		err := tx.QueryRow(ctx, `
			INSERT INTO channels (tenant, name, kind, secret, url, recipients, events, updated_by)
			VALUES (@tenant, @name, @kind, @secret, @url, @to, @events, @actor)
			ON CONFLICT (tenant, name) DO UPDATE
			SET kind = @kind, secret = @secret, url = @url, recipients = @to, events = @events, updated_by = @actor,
				updated_at = now(), due_at = now(), claimed_until = NULL, failing_since = NULL, last_error = '',
				tries = 0, batch = channels.batch + 1
			RETURNING (xmax <> 0)::int, id`,
			namedArgs{"tenant": tenant, "name": name, "kind": c.Kind, "secret": c.Secret, "url": c.URL,
				"to": nonNilList(c.To), "events": nonNilList(c.Events), "actor": actor}).Scan(&updates, &id)
		if err != nil {
			return err
		}
		// A delivery that is under way goes to the former destination, so its result counts for nothing: its
		// notifications become part of the next message.
		if _, err := tx.Exec(ctx, `UPDATE notifications SET batch = NULL WHERE channel = @id AND batch IS NOT NULL`,
			namedArgs{"id": id}); err != nil {
			return err
		}
		if created = updates == 0; created {
			if err := checkChannelCount(ctx, tx, tenant); err != nil {
				return err
			}
		}
		return keepTenant(ctx, tx, tenant)
	})
	return created, mapError(err, "channel "+name)
}

// checkChannelSecret refuses a channel that names a secret which does not exist.
func checkChannelSecret(ctx context.Context, tx pgx.Tx, tenant berth.TenantID, c spec.Channel) error {
	name, field := c.Secret, "secret"
	if c.Kind == spec.ChannelWebhook {
		name, field = spec.WebhookSecret, "url"
	}
	if name == "" {
		return nil
	}
	var found bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM secrets WHERE tenant = @tenant AND name = @name)`,
		namedArgs{"tenant": tenant, "name": name}).Scan(&found)
	if err != nil || found {
		return err
	}
	return &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec, Message: "there is no secret " + name,
		Fields: []berth.FieldError{{Field: field, Detail: "there is no secret " + name,
			Allowed: "create it with berth secret set " + name}}}
}

// checkChannelCount refuses one channel too many.
func checkChannelCount(ctx context.Context, tx pgx.Tx, tenant berth.TenantID) error {
	var n int
	err := tx.QueryRow(ctx, `SELECT count(*) FROM channels WHERE tenant = @tenant`,
		namedArgs{"tenant": tenant}).Scan(&n)
	if err == nil && n > spec.MaxChannels {
		err = &berth.Error{Code: berth.CodeConflict, Slug: berth.SlugQuota,
			Message: fmt.Sprintf("tenant %s has %d channels already, and may have no more", tenant, n-1)}
	}
	return err
}

// Delete removes a channel. Its notifications that are not delivered are dropped.
func (d *Channels) Delete(ctx context.Context, tenant berth.TenantID, name string) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		var id int64
		err := tx.QueryRow(ctx, `DELETE FROM channels WHERE tenant = @tenant AND name = @name RETURNING id`,
			namedArgs{"tenant": tenant, "name": name}).Scan(&id)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `DELETE FROM notifications WHERE channel = @id`, namedArgs{"id": id})
		return err
	})
	return mapError(err, "channel "+name)
}

// Test adds a notification that reports nothing but the name of its sender. A channel that fails is tried again at
// once; one that rests after a delivery goes on resting.
func (d *Channels) Test(ctx context.Context, tenant berth.TenantID, name, actor string) error {
	tag, err := d.pool.Exec(ctx, `
		WITH c AS (
			UPDATE channels
			SET due_at = CASE WHEN failing_since IS NULL THEN due_at ELSE least(due_at, now()) END
			WHERE tenant = @tenant AND name = @name
			RETURNING id
		)
		INSERT INTO notifications (channel, type, body)
		SELECT c.id, @type::text, jsonb_build_object('type', @type::text, 'timestamp', clock_timestamp(), 'data',
			jsonb_build_object('tenant', @tenant::text, 'channel', @name::text, 'by', @actor::text))
		FROM c`,
		namedArgs{"tenant": tenant, "name": name, "type": spec.EventTest, "actor": actor})
	if err == nil && tag.RowsAffected() == 0 {
		err = pgx.ErrNoRows
	}
	return mapError(err, "channel "+name)
}

// CheckNames returns an error if notify names a channel that neither the tenant nor a tenant above it has. It is for
// calls of users: fires of schedules and retries go on without a channel that was deleted meanwhile.
func (d *Channels) CheckNames(ctx context.Context, tenant berth.TenantID, notify []spec.Notify) error {
	if !slices.ContainsFunc(notify, func(n spec.Notify) bool { return n.Channel != "" }) {
		return nil
	}
	rows, err := d.pool.Query(ctx, `
		WITH RECURSIVE `+tenantPath+`
		SELECT DISTINCT c.name
		FROM up
		JOIN channels c ON c.tenant = up.id
		ORDER BY c.name`, namedArgs{"tenant": tenant})
	if err != nil {
		return mapError(err, "channels")
	}
	known, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return mapError(err, "channels")
	}
	e := &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec}
	for i, n := range notify {
		if n.Channel == "" || slices.Contains(known, n.Channel) {
			continue
		}
		e.Message = "there is no notification channel " + n.Channel
		allowed := "create it with berth channel set " + n.Channel
		if len(known) > 0 {
			allowed = strings.Join(known, ", ")
		}
		e.Fields = append(e.Fields, berth.FieldError{Field: fmt.Sprintf("notify[%d].channel", i), Detail: e.Message,
			Allowed: allowed})
	}
	if len(e.Fields) == 0 {
		return nil
	}
	return e
}

// GuardSecret reports whether a channel of the tenant that gets events of machines has this secret as its address. Only
// admins may change such a secret: another address would receive events that concern all tenants.
func (d *Channels) GuardSecret(ctx context.Context, tenant berth.TenantID, secret string) (guarded bool, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM channels WHERE tenant = @tenant AND secret = @secret AND events && @events::text[])`,
		namedArgs{"tenant": tenant, "secret": secret,
			"events": spec.Channel{Events: spec.ChannelEvents}.OfMachines()}).Scan(&guarded)
	return guarded, mapError(err, "channels")
}
