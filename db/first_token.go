package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// firstTokenLock is the advisory lock that stops two processes from each creating a first
// token.
const firstTokenLock = 0x6265727468 // "berth"

// CreateFirst creates an admin token if no usable one exists, and returns the new token's
// secret, else "". The secret is not stored and cannot be read again.
func (d *Tokens) CreateFirst(ctx context.Context, tenant berth.TenantID, name string) (secret string, err error) {
	err = d.tx(ctx, func(tx pgx.Tx) error {
		id, text, sum := mintToken(tokenPrefix)
		secret = ""
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(@lock)`,
			pgx.NamedArgs{"lock": int64(firstTokenLock)}); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO tokens (id, tenant, name, role, sha256)
			SELECT @id, @tenant, @name, @role, @sha256
			WHERE NOT EXISTS (
				SELECT 1 FROM tokens
				WHERE role = @role AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()))`,
			pgx.NamedArgs{"id": id, "tenant": tenant, "name": name, "role": spec.RoleAdmin, "sha256": sum})
		if err == nil && tag.RowsAffected() == 1 {
			secret = text
		}
		return err
	})
	if err != nil {
		return "", mapError(err, "first token")
	}
	return secret, nil
}
