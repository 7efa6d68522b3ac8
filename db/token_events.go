package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth/wire"
)

// Events of tokens, in token_events.event.
const (
	tokenCreated = "created"
	tokenRevoked = "revoked"
)

// recordTokens records an event of tokens in the transaction that changes them. A change of tokens
// without its event cannot be committed.
func recordTokens(ctx context.Context, tx pgx.Tx, ids []string, event, actor string) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO token_events (token, name, tenant, role, event, actor)
		SELECT id, name, tenant, `+shownRole+`, @event, @actor
		FROM tokens t
		WHERE id = ANY(@ids)
		ORDER BY created_at, id`,
		namedArgs{"ids": ids, "event": event, "actor": actor})
	return err
}

// Events returns a page of the creations and revocations of tokens, oldest first. An event repeats the
// name, tenant and role of its token, so it can be read without the token.
func (d *Tokens) Events(ctx context.Context, p Paging) (events []wire.TokenEvent, next string, err error) {
	var after int64 // ids are positive
	if _, err := p.after(&after); err != nil {
		return nil, "", err
	}
	rows, err := d.pool.Query(ctx, `
		SELECT id, at, token, name, tenant, role, event, actor
		FROM token_events
		WHERE id > @after
		ORDER BY id
		LIMIT @limit`, namedArgs{"after": after, "limit": p.limit() + 1})
	if err != nil {
		return nil, "", mapError(err, "token events")
	}
	events, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e wire.TokenEvent, err error) {
		err = row.Scan(&e.ID, &e.At, &e.Token, &e.Name, &e.Tenant, &e.Role, &e.Event, &e.Actor)
		return e, err
	})
	if err != nil {
		return nil, "", mapError(err, "token events")
	}
	events, next = cut(p, events, func(e wire.TokenEvent) []any { return []any{e.ID} })
	return events, next, nil
}
