package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth/spec"
	"berth/wire"
)

// own is the condition of the tokens of a caller: its name in its tenant. The name is the
// caller's identity in events, so a caller with two tokens of one name is one person, or one
// program, to all others too.
const own = `tenant = @tenant AND name = @name AND machine_id IS NULL`

// ListOwn returns a page of the tokens that have the name and the tenant of p, oldest first.
func (d *Tokens) ListOwn(ctx context.Context, of Principal, p Paging) (tokens []wire.Token, next string, err error) {
	return tokenPage(ctx, d.core, "tokens t", tokenDocument, tokensOf{
		Paging: p, condition: own, args: pgx.NamedArgs{"tenant": of.Tenant, "name": of.Name},
	}, func(t wire.Token) []any { return []any{t.CreatedAt, t.ID} })
}

// RevokeOwn is Revoke for a token with the name and the tenant of the caller. Any other token is
// not_found, like one that does not exist. A token of role admin can be revoked by an admin
// alone: a leaked token of a lesser role must not lock the operators out.
func (d *Tokens) RevokeOwn(ctx context.Context, of Principal, id string) error {
	args := pgx.NamedArgs{"id": id, "tenant": of.Tenant, "name": of.Name, "admin": spec.RoleAdmin,
		"is_admin": of.Role == spec.RoleAdmin}
	return d.revoke(ctx, args, `id = @id AND (role <> @admin OR @is_admin) AND `+own, "user:"+of.Name)
}
