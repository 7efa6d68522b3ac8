package db

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// SealedSecret is a secret in its stored form, encrypted with a key that this package does
// not have.
type SealedSecret struct {
	Tenant  berth.TenantID
	Name    string
	Key     string // id of the key that sealed the value
	Sealed  []byte
	Version int64 // incremented by each Set; Reseal keeps it
}

// Set creates a secret or replaces its value. A tenant that does not exist is not_found. A
// new secret that exceeds one of the limits is refused with slug quota.
func (d *Secrets) Set(
	ctx context.Context, s SealedSecret, limits ...StorageLimit,
) (out wire.Secret, created bool, err error) {
	var version int64
	out.Name = s.Name
	err = d.tx(ctx, func(tx pgx.Tx) error {
		if err := lockStorage(ctx, tx, limits, StoredSecrets); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `
			INSERT INTO secrets (tenant, name, key_id, sealed)
			VALUES (@tenant, @name, @key, @sealed)
			ON CONFLICT (tenant, name) DO UPDATE
			SET key_id = @key, sealed = @sealed, version = secrets.version + 1, updated_at = now()
			RETURNING version, created_at, updated_at`,
			namedArgs{"tenant": s.Tenant, "name": s.Name, "key": s.Key, "sealed": s.Sealed}).Scan(&version,
			&out.CreatedAt, &out.UpdatedAt)
		if err != nil {
			return err
		}
		// Only a new row changes the count. The row is already inserted, so the amount to
		// add is 0.
		if version == 1 {
			if err := checkStorage(ctx, tx, limits, StoredSecrets, 0, 1); err != nil {
				return err
			}
		}
		return keepTenant(ctx, tx, s.Tenant)
	})
	return out, version == 1, mapError(err, "secret "+s.Name)
}

// List returns a page of a tenant's secrets by name, without values.
func (d *Secrets) List(ctx context.Context, tenant berth.TenantID,
	p Paging) (list []wire.Secret, next string, err error) {
	var name string
	if _, err := p.after(&name); err != nil {
		return nil, "", err
	}
	rows, err := d.pool.Query(ctx, `
		SELECT name, created_at, updated_at
		FROM secrets
		WHERE tenant = @tenant AND name > @name
		ORDER BY name
		LIMIT @limit`, namedArgs{"tenant": tenant, "name": name, "limit": p.limit() + 1})
	if err != nil {
		return nil, "", mapError(err, "secrets")
	}
	if list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[wire.Secret]); err != nil {
		return nil, "", mapError(err, "secrets")
	}
	list, next = cut(p, list, func(s wire.Secret) []any { return []any{s.Name} })
	return list, next, nil
}

// Delete removes a secret. Jobs that name the secret and have not started will fail.
func (d *Secrets) Delete(ctx context.Context, tenant berth.TenantID, name string) error {
	tag, err := d.pool.Exec(ctx, `DELETE FROM secrets WHERE tenant = @tenant AND name = @name`,
		namedArgs{"tenant": tenant, "name": name})
	if err == nil && tag.RowsAffected() == 0 {
		err = pgx.ErrNoRows
	}
	return mapError(err, "secret "+name)
}

const sealedSecret = `SELECT tenant, name, key_id, sealed, version FROM secrets`

// Sealed returns the tenant's secrets with these names; names without a secret are left
// out.
func (d *Secrets) Sealed(ctx context.Context, tenant berth.TenantID, names []string) ([]SealedSecret, error) {
	rows, err := d.pool.Query(ctx, sealedSecret+` WHERE tenant = @tenant AND name = ANY(@names)`,
		namedArgs{"tenant": tenant, "names": names})
	if err != nil {
		return nil, mapError(err, "secrets")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[SealedSecret])
	return list, mapError(err, "secrets")
}

// NotUnder returns secrets that are sealed with another key than key, in order of tenant
// and name, starting behind after. The zero SealedSecret starts at the beginning.
func (d *Secrets) NotUnder(ctx context.Context, key string, after SealedSecret, limit int) ([]SealedSecret, error) {
	rows, err := d.pool.Query(ctx, sealedSecret+`
		WHERE key_id <> @key AND (tenant, name) > (@tenant, @name)
		ORDER BY tenant, name
		LIMIT @limit`, namedArgs{"key": key, "tenant": after.Tenant, "name": after.Name, "limit": limit})
	if err != nil {
		return nil, mapError(err, "secrets")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[SealedSecret])
	return list, mapError(err, "secrets")
}

// Reseal stores the same value under another key. It does nothing if the secret was set or
// resealed meanwhile.
func (d *Secrets) Reseal(ctx context.Context, old, sealed SealedSecret) error {
	_, err := d.pool.Exec(ctx, `
		UPDATE secrets
		SET key_id = @key, sealed = @sealed
		WHERE tenant = @tenant AND name = @name AND version = @version AND key_id = @old`,
		namedArgs{"tenant": old.Tenant, "name": old.Name, "version": old.Version, "old": old.Key,
			"key": sealed.Key, "sealed": sealed.Sealed})
	return mapError(err, "secret "+old.Name)
}

// checkSecrets refuses a new job that names secrets which do not exist, with one field
// error per name.
func checkSecrets(ctx context.Context, tx pgx.Tx, tenant berth.TenantID, n needs) error {
	names := n.allSecrets()
	if len(names) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, `SELECT name FROM secrets WHERE tenant = @tenant AND name = ANY(@names)`,
		namedArgs{"tenant": tenant, "names": names})
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	e := &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec}
	unknown := func(field, name string) {
		if name != "" && !slices.Contains(found, name) {
			e.Message = "there is no secret " + name
			e.Fields = append(e.Fields, berth.FieldError{Field: field,
				Detail:  fmt.Sprintf("there is no secret %s", name),
				Allowed: "create it with berth secret set " + name})
		}
	}
	for i, name := range n.secrets {
		unknown(fmt.Sprintf("secrets[%d]", i), name)
	}
	unknown("image_auth", n.imageAuth)
	for i, name := range n.logins {
		unknown(fmt.Sprintf("inputs[%d].secret", i), name)
	}
	if n.webhooks {
		unknown("notify", spec.WebhookSecret)
	}
	if len(e.Fields) > 0 {
		return e
	}
	return nil
}
