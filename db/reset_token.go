package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// TokenReset is the result of Tokens.Reset.
type TokenReset struct {
	ID      string   // of the new token
	Text    string   // of the new token; stored nowhere
	Revoked []string // ids of the tokens that the new one replaces, oldest first
	Others  int      // valid admin tokens with another name or tenant, which stay valid
}

// Reset replaces the admin tokens of one name: it revokes every valid admin token of that
// name and tenant, and creates one. It serves an operator who has the credential of the
// database and no token. given means that the text is kept in a file that Ensure reads at
// each start of berthd.
//
// The states of the tokens of one name, and their changes:
//
//	before             CreateFirst        Reset                     Ensure of a text
//	no valid one       one is created     one is created            created, unless it was revoked
//	one is valid       nothing            revoked; one is created   created as well, or nothing
//	several are valid  nothing            all revoked; one created  created as well, or nothing
//
// Invariants:
//   - A token that was revoked never becomes valid again in this database.
//   - Revocation, creation and their events are one transaction: a reset that fails has
//     changed nothing, and may be repeated.
//   - CreateFirst and Reset exclude each other by a lock. Of two resets at once the later one
//     revokes the token of the earlier one, so that one valid token of the name is left.
//
// Replicas learn of the revocation as of one by another replica: they accept the old token
// for a second at most, and its open streams end within 5 s.
//
// A restored database has the tokens of the time of its backup: tokens that were revoked
// since are valid again, and tokens that were created since are unknown. A reset after the
// restore ends both.
func (d *Tokens) Reset(
	ctx context.Context, tenant berth.TenantID, name, actor string, given bool,
) (r TokenReset, err error) {
	id, text, sum := mintToken(tokenPrefix)
	err = d.tx(ctx, func(tx pgx.Tx) error {
		r = TokenReset{ID: id, Text: text}
		if err := requireTokenEvents(ctx, tx); err != nil {
			return err
		}
		if err := lockAdminTokens(ctx, tx); err != nil {
			return err
		}
		if err := ensureTenant(ctx, tx, tenant); err != nil {
			return err
		}
		args := namedArgs{"id": id, "tenant": tenant, "name": name, "role": spec.RoleAdmin, "sha256": sum,
			"given": given}
		if r.Revoked, err = revokeNamed(ctx, tx, args); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `
			SELECT count(*)
			FROM tokens
			WHERE role = @role AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())`,
			args).Scan(&r.Others); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			INSERT INTO tokens (id, tenant, name, role, sha256, given)
			VALUES (@id, @tenant, @name, @role, @sha256, @given)`, args); err != nil {
			return err
		}
		if err := recordTokens(ctx, tx, r.Revoked, tokenRevoked, actor); err != nil {
			return err
		}
		return recordTokens(ctx, tx, []string{id}, tokenCreated, actor)
	})
	if err != nil {
		return TokenReset{}, mapError(err, "token reset")
	}
	return r, nil
}

// requireTokenEvents refuses a database that berthd of this version has not migrated: a reset
// must not change the schema under running replicas of another version.
func requireTokenEvents(ctx context.Context, tx pgx.Tx) error {
	var ready bool
	err := tx.QueryRow(ctx, `SELECT to_regclass('public.token_events') IS NOT NULL`).Scan(&ready)
	if err == nil && !ready {
		err = berth.Errorf(berth.CodeConflict, "the database has no table token_events: start berthd once, of this "+
			"version or a later one, which creates the schema")
	}
	return err
}

// revokeNamed revokes the valid tokens of a name, tenant and role and returns their ids,
// oldest first.
func revokeNamed(ctx context.Context, tx pgx.Tx, args namedArgs) ([]string, error) {
	rows, err := tx.Query(ctx, `
		WITH old AS (
			UPDATE tokens
			SET revoked_at = now()
			WHERE tenant = @tenant AND name = @name AND role = @role
			  AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
			RETURNING id, created_at
		)
		SELECT id
		FROM old
		ORDER BY created_at, id`, args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
