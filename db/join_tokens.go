package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/spec"
	"berth/wire"
)

// JoinTokenTTL is the default lifetime of a join token.
const JoinTokenTTL = 10 * time.Minute

// joinTokenDocument selects a row of join_tokens as a wire.JoinToken, without the secret, which no row has.
const joinTokenDocument = `jsonb_strip_nulls(jsonb_build_object(
			'id', id, 'pool', pool, 'labels', labels, 'machines', nullif(machines, ''),
			'approves', nullif(approves, false), 'most', most,
			'created_by', created_by, 'created_at', created_at,
			'expires_at', expires_at, 'used_by', used_by, 'used_at', used_at))`

// Create creates a join token and returns it with the secret. Only a hash of the secret is
// stored.
func (d *JoinTokens) Create(ctx context.Context, n spec.NewJoinToken, actor string) (wire.JoinToken, error) {
	if n.TTL == 0 {
		n.TTL = spec.Duration(JoinTokenTTL)
	}
	// Bounds without a value bound nothing, and are stored as none.
	if n.Most != nil && *n.Most == (spec.MachineBounds{}) {
		n.Most = nil
	}
	id, text, sum := mintToken(joinTokenPrefix)
	rows, err := d.pool.Query(ctx, `
		INSERT INTO join_tokens (id, sha256, pool, labels, machines, approves, most, created_by, expires_at)
		VALUES (@id, @sha256, @pool, @labels, @machines, @approves, @most, @actor,
			now() + @ttl_ms::bigint * interval '1 millisecond')
		RETURNING `+joinTokenDocument,
		namedArgs{"id": id, "sha256": sum, "pool": n.Pool, "labels": nonNil(n.Labels),
			"machines": n.Machines, "approves": n.Approves, "most": n.Most, "actor": actor,
			"ttl_ms": n.TTL.Std().Milliseconds()})
	if err != nil {
		return wire.JoinToken{}, mapError(err, "join token")
	}
	t, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[wire.JoinToken])
	if err != nil {
		return wire.JoinToken{}, mapError(err, "join token")
	}
	// The only copy: a lost secret cannot be read again, only replaced by a new token.
	t.Secret = text
	return t, nil
}

// List lists join tokens, oldest first.
func (d *JoinTokens) List(ctx context.Context, p Paging) (tokens []wire.JoinToken, next string, err error) {
	return tokenPage(ctx, d.core, "join_tokens", joinTokenDocument, tokensOf{Paging: p},
		func(t wire.JoinToken) []any { return []any{t.CreatedAt, t.ID} })
}

// Revoke makes a join token useless. One that was used stays used.
func (d *JoinTokens) Revoke(ctx context.Context, id string) error {
	tag, err := d.pool.Exec(ctx, `
		UPDATE join_tokens
		SET expires_at = least(expires_at, now())
		WHERE id = @id`,
		namedArgs{"id": id})
	if err == nil && tag.RowsAffected() == 0 {
		err = pgx.ErrNoRows
	}
	return mapError(err, "join token "+id)
}
