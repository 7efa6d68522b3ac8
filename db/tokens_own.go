package db

import (
	"context"

	"berth/spec"
	"berth/wire"
)

// own is the condition of the tokens of a caller: its name in its tenant. The name is the
// caller's identity in events, so a caller with two tokens of one name is one person, or one
// program, to all others too.
const own = `tenant = @tenant AND name = @name AND machine_id IS NULL`

// ownToEnd is the condition of the tokens that a caller may revoke or sign out: the own ones, but tokens of role admin
// for admins alone. A leaked token of a lesser role must not lock the operators out.
const ownToEnd = `(role <> @admin OR @is_admin) AND ` + own

// ownArgs returns the arguments of own and ownToEnd.
func ownArgs(of Principal) namedArgs {
	return namedArgs{"tenant": of.Tenant, "name": of.Name, "admin": spec.RoleAdmin,
		"is_admin": of.Role == spec.RoleAdmin}
}

// ListOwn returns a page of the tokens that have the name and the tenant of p, oldest first.
func (d *Tokens) ListOwn(ctx context.Context, of Principal, p Paging) (tokens []wire.Token, next string, err error) {
	return tokenPage(ctx, d.core, "tokens t", tokenDocument, tokensOf{
		Paging: p, condition: own, args: namedArgs{"tenant": of.Tenant, "name": of.Name},
	}, func(t wire.Token) []any { return []any{t.CreatedAt, t.ID} })
}

// RevokeOwn is Revoke for a token with the name and the tenant of the caller. Any other token is
// not_found, like one that does not exist. A token of role admin can be revoked by an admin alone.
func (d *Tokens) RevokeOwn(ctx context.Context, of Principal, id string) error {
	args := ownArgs(of)
	args["id"] = id
	return d.revoke(ctx, args, `id = @id AND `+ownToEnd, "user:"+of.Name)
}
