package db

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// uploadLimit is how long an upload may take. Until then its folder is not
// removed; after it, one that no row leads to is.
const uploadLimit = 24 * time.Hour

// Begin takes a folder of the object store for an upload. Should whoever
// writes there die, it is removed all the same.
func (d *Uploads) Begin(ctx context.Context, tenant berth.TenantID, a berth.Address) (folder string, err error) {
	folder = berth.UploadFolder(tenant, a, berth.NewSecret()[:16])
	_, err = d.pool.Exec(ctx,
		`INSERT INTO doomed_objects (prefix, since) VALUES (@folder, clock_timestamp() + @limit::interval)`,
		pgx.NamedArgs{"folder": folder, "limit": uploadLimit})
	return folder, mapError(err, "upload")
}

// Abandon gives a folder up, whatever is in it.
func (d *Uploads) Abandon(ctx context.Context, folder string) error {
	_, err := d.pool.Exec(ctx, `UPDATE doomed_objects SET since = clock_timestamp()
		WHERE prefix = @folder`, pgx.NamedArgs{"folder": folder})
	return mapError(err, "upload")
}

// End makes what lies in the folder the tenant's upload. Where the same
// content was stored meanwhile, that one stays, created is false and the folder
// is given up. A tenant that was deleted meanwhile is not_found. An upload that
// exceeds one of the limits is refused with slug storage_quota, however many arrive
// at once.
func (d *Uploads) End(
	ctx context.Context, tenant berth.TenantID, u wire.Upload, folder string, limits ...StorageLimit,
) (stored wire.Upload, created bool, err error) {
	err = d.tx(ctx, func(tx pgx.Tx) error {
		args := pgx.NamedArgs{
			"tenant": tenant, "address": u.Address, "folder": folder,
			"files": u.Files, "bytes": u.Bytes, "stored": u.Stored,
		}
		if err := lockStorage(ctx, tx, limits, StoredUploads); err != nil {
			return err
		}
		var kept string
		err := tx.QueryRow(ctx, `
			INSERT INTO uploads (tenant, address, folder, files, bytes, stored_bytes)
			VALUES (@tenant, @address, @folder, @files, @bytes, nullif(@stored::bigint, 0))
			ON CONFLICT (tenant, address) DO UPDATE SET used_at = now()
			RETURNING folder, files, bytes, coalesce(stored_bytes, 0), created_at`, args).
			Scan(&kept, &stored.Files, &stored.Bytes, &stored.Stored, &stored.CreatedAt)
		if err != nil {
			return err
		}
		stored.Address, created = u.Address, kept == folder
		if created {
			if err := checkStorage(ctx, tx, limits, StoredUploads, 0, cmp.Or(u.Stored, u.Bytes)); err != nil {
				return err
			}
		}
		sql := `UPDATE doomed_objects SET since = clock_timestamp() WHERE prefix = @folder`
		if created {
			sql = `DELETE FROM doomed_objects WHERE prefix = @folder`
		}
		tag, err := tx.Exec(ctx, sql, args)
		if err == nil && created && tag.RowsAffected() == 0 {
			return berth.Errorf(berth.CodeUnavailable, "the upload took longer than %s", uploadLimit)
		}
		if err != nil {
			return err
		}
		return keepTenant(ctx, tx, tenant)
	})
	return stored, created, mapError(err, "upload")
}

// Get returns a tenant's upload, and keeps it from being removed for a while.
func (d *Uploads) Get(ctx context.Context, tenant berth.TenantID, a berth.Address) (wire.Upload, error) {
	u := wire.Upload{Address: a}
	err := d.pool.QueryRow(ctx, `
		UPDATE uploads
		SET used_at = now()
		WHERE tenant = @tenant AND address = @address
		RETURNING files, bytes, coalesce(stored_bytes, 0), created_at`,
		pgx.NamedArgs{"tenant": tenant, "address": a}).Scan(&u.Files, &u.Bytes, &u.Stored, &u.CreatedAt)
	return u, mapError(err, "upload "+string(a))
}

// bindUploads has a new job hold on to the uploads that it names, which must
// exist. The rows are locked, so that none is removed meanwhile.
func bindUploads(ctx context.Context, tx pgx.Tx, tenant berth.TenantID, named []spec.NamedUpload) error {
	if len(named) == 0 {
		return nil
	}
	addresses := addressesOf(named)
	rows, err := tx.Query(ctx, `
		SELECT address FROM uploads
		WHERE tenant = @tenant AND address = ANY(@addresses::text[])
		ORDER BY address
		FOR NO KEY UPDATE`, pgx.NamedArgs{"tenant": tenant, "addresses": addresses})
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[berth.Address])
	if err != nil {
		return err
	}
	for _, n := range named {
		if a := n.Address; !slices.Contains(found, a) {
			return &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec,
				Message: "there is no upload " + string(a),
				Fields: []berth.FieldError{{Field: n.Field, Detail: fmt.Sprintf("there is no upload %s of yours, "+
					"or none any more", a), Allowed: "what was sent to POST /v1/uploads before; berth submit sends " +
					"the folder again"}}}
		}
	}
	_, err = tx.Exec(ctx, `UPDATE uploads SET used_at = now()
		WHERE tenant = @tenant AND address = ANY(@addresses::text[])`,
		pgx.NamedArgs{"tenant": tenant, "addresses": addresses})
	return err
}

func holdUploads(ctx context.Context, tx pgx.Tx, job berth.JobID, named []spec.NamedUpload) error {
	if len(named) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `INSERT INTO job_uploads (job, address) SELECT @job, unnest(@addresses::text[])`,
		pgx.NamedArgs{"job": job, "addresses": addressesOf(named)})
	return err
}

// addressesOf lists the addresses, each once.
func addressesOf(named []spec.NamedUpload) []string {
	var out []string
	for _, n := range named {
		if !slices.Contains(out, string(n.Address)) {
			out = append(out, string(n.Address))
		}
	}
	return out
}

// Doom removes uploads that nobody has used for so long, and that no
// live job and no schedule needs. It returns how many.
func (d *Uploads) Doom(ctx context.Context, term Term, idle time.Duration, limit int) (int, error) {
	var n int
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			WITH needed AS MATERIALIZED ( -- from the jobs that live: OFFSET keeps the planner from turning it round
				SELECT j.tenant, n.address
				FROM jobs j
				CROSS JOIN LATERAL (
					SELECT x.address
					FROM job_uploads x
					WHERE x.job = j.id
					OFFSET 0
				) n
				WHERE j.state NOT IN ('succeeded', 'failed', 'canceled')
			), idle AS (
				SELECT u.tenant, u.address
				FROM uploads u
				WHERE u.used_at < now() - @idle::interval
				  AND NOT EXISTS (SELECT 1 FROM schedule_uploads s WHERE s.tenant = u.tenant AND s.address = u.address)
				  AND NOT EXISTS (SELECT 1 FROM needed n WHERE n.tenant = u.tenant AND n.address = u.address)
				ORDER BY u.tenant, u.address
				LIMIT @limit
				FOR UPDATE OF u SKIP LOCKED
			), gone AS (
				DELETE FROM uploads u
				USING idle
				WHERE u.tenant = idle.tenant AND u.address = idle.address
				RETURNING u.folder
			)
			INSERT INTO doomed_objects (prefix, since)
			SELECT folder, clock_timestamp() FROM gone
			ON CONFLICT (prefix) DO UPDATE SET since = excluded.since`,
			pgx.NamedArgs{"idle": idle, "limit": limit})
		n = int(tag.RowsAffected())
		return err
	})
	return n, mapError(err, "uploads")
}
