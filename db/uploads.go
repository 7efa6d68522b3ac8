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

// uploadLimit is the longest time of an upload. Its folder is not removed before that time,
// and is removed afterwards if no row refers to it.
const uploadLimit = 24 * time.Hour

// Begin reserves a folder of the object store for an upload. Begin already marks the folder
// for removal after uploadLimit, so that the folder does not stay if the uploading process
// dies.
func (d *Uploads) Begin(ctx context.Context, tenant berth.TenantID, a berth.Address) (folder string, err error) {
	folder = berth.UploadFolder(tenant, a, berth.NewSecret()[:16])
	_, err = d.pool.Exec(ctx,
		`INSERT INTO doomed_objects (prefix, since) VALUES (@folder, clock_timestamp() + @limit::interval)`,
		namedArgs{"folder": folder, "limit": uploadLimit})
	return folder, mapError(err, "upload")
}

// Abandon marks a folder for immediate removal, with all its contents.
func (d *Uploads) Abandon(ctx context.Context, folder string) error {
	_, err := d.pool.Exec(ctx, `UPDATE doomed_objects SET since = clock_timestamp()
		WHERE prefix = @folder`, namedArgs{"folder": folder})
	return mapError(err, "upload")
}

// End turns the contents of the folder into the tenant's upload. If the same content was
// stored meanwhile, the earlier upload stays, created is false, and the folder is marked
// for removal. A tenant that was deleted meanwhile is not_found. An upload that exceeds one
// of the limits is refused with slug storage_quota, also when many uploads end at once.
func (d *Uploads) End(
	ctx context.Context, tenant berth.TenantID, u wire.Upload, folder string, limits ...StorageLimit,
) (stored wire.Upload, created bool, err error) {
	err = d.tx(ctx, func(tx pgx.Tx) error {
		args := namedArgs{
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
		// Begin's mark is deleted only together with the insert of the upload's row. A
		// missing mark means that the folder was removed after uploadLimit.
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

// Get returns a tenant's upload and restarts the idle time after which the upload is
// removed.
func (d *Uploads) Get(ctx context.Context, tenant berth.TenantID, a berth.Address) (wire.Upload, error) {
	u := wire.Upload{Address: a}
	err := d.pool.QueryRow(ctx, `
		UPDATE uploads
		SET used_at = now()
		WHERE tenant = @tenant AND address = @address
		RETURNING files, bytes, coalesce(stored_bytes, 0), created_at`,
		namedArgs{"tenant": tenant, "address": a}).Scan(&u.Files, &u.Bytes, &u.Stored, &u.CreatedAt)
	return u, mapError(err, "upload "+string(a))
}

// bindUploads checks that the uploads that a new job names exist, restarts their idle time,
// and locks their rows, so that none is removed before the job's rows are committed.
func bindUploads(ctx context.Context, tx pgx.Tx, tenant berth.TenantID, named []spec.NamedUpload) error {
	if len(named) == 0 {
		return nil
	}
	addresses := addressesOf(named)
	rows, err := tx.Query(ctx, `
		SELECT address FROM uploads
		WHERE tenant = @tenant AND address = ANY(@addresses::text[])
		ORDER BY address
		FOR NO KEY UPDATE`, namedArgs{"tenant": tenant, "addresses": addresses})
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
				Message: "upload " + string(a) + " does not exist",
				Fields: []berth.FieldError{{Field: n.Field, Detail: fmt.Sprintf("upload %s does not exist, "+
					"or has expired", a), Allowed: "content uploaded to POST /v1/uploads; berth submit uploads " +
					"the folder again"}}}
		}
	}
	_, err = tx.Exec(ctx, `UPDATE uploads SET used_at = now()
		WHERE tenant = @tenant AND address = ANY(@addresses::text[])`,
		namedArgs{"tenant": tenant, "addresses": addresses})
	return err
}

// holdUploads records the uploads that a job needs, which Doom keeps while the job is live.
func holdUploads(ctx context.Context, tx pgx.Tx, job berth.JobID, named []spec.NamedUpload) error {
	if len(named) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `INSERT INTO job_uploads (job, address) SELECT @job, unnest(@addresses::text[])`,
		namedArgs{"job": job, "addresses": addressesOf(named)})
	return err
}

// addressesOf returns the distinct addresses.
func addressesOf(named []spec.NamedUpload) []string {
	var out []string
	for _, n := range named {
		if !slices.Contains(out, string(n.Address)) {
			out = append(out, string(n.Address))
		}
	}
	return out
}

// Doom removes uploads that were not used for longer than idle and that no live job and no
// schedule needs, at most limit. It returns the number of removed uploads; their folders
// are marked for removal.
func (d *Uploads) Doom(ctx context.Context, term Term, idle time.Duration, limit int) (int, error) {
	var n int
	err := d.pruneTx(ctx, term, func(tx pgx.Tx) error {
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
			namedArgs{"idle": idle, "limit": limit})
		n = int(tag.RowsAffected())
		return err
	})
	return n, mapError(err, "uploads")
}
