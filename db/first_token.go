package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// adminTokenLock is the advisory lock of CreateFirst and Reset: two processes that start at
// once must not each create a first token, and one reset follows another.
const adminTokenLock = 0x6265727468 // "berth"

// lockAdminTokens holds adminTokenLock until the end of the transaction.
func lockAdminTokens(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(@lock)`, namedArgs{"lock": int64(adminTokenLock)})
	return err
}

// CreateFirst creates an admin token if no valid one exists, and returns the new token's
// text, else "". The text is not stored and cannot be read again.
//
// keep, if not nil, stores the text for the operator, before the transaction commits: a token
// that the operator cannot get is not created. keep may be called again with the same text.
// If the commit then fails, the kept text belongs to no token; Ensure can create the token.
func (d *Tokens) CreateFirst(
	ctx context.Context, tenant berth.TenantID, name, actor string, keep func(text string) error,
) (text string, err error) {
	id, minted, sum := mintToken(tokenPrefix)
	err = d.tx(ctx, func(tx pgx.Tx) error {
		text = ""
		if err := lockAdminTokens(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO tokens (id, tenant, name, role, sha256, given)
			SELECT @id, @tenant, @name, @role, @sha256, @given
			WHERE NOT EXISTS (
				SELECT 1 FROM tokens
				WHERE role = @role AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()))`,
			namedArgs{"id": id, "tenant": tenant, "name": name, "role": spec.RoleAdmin, "sha256": sum,
				"given": keep != nil})
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		text = minted
		if err := recordTokens(ctx, tx, []string{id}, tokenCreated, actor); err != nil || keep == nil {
			return err
		}
		return keep(text)
	})
	if err != nil {
		return "", mapError(err, "first token")
	}
	return text, nil
}
