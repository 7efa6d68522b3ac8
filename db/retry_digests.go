package db

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// keptDigest is the content that a job was submitted with, for the job that retries it.
type keptDigest struct {
	image  string // as the job's file names it; a file with another image runs that one
	digest string
	at     *time.Time // when the digest was found; nil: unknown
}

// keepDigest makes the new job run the digest that the control plane found at the submit of the old one, or of the
// first job in a row of retries. A changed spec resolves the name of its image, as a submit does, and so does the retry
// of a job whose digest a machine found.
func (r *retrying) keepDigest(ctx context.Context, row submitRow) error {
	if r.o.FreshImage || r.o.Spec != nil {
		return nil
	}
	old := r.old
	if old.ImageDigest == "" && old.ArrayIndex != nil {
		// An element gets the digest of its array with the first report of a machine. This one had none.
		err := r.tx.QueryRow(ctx, `
			SELECT coalesce(j.image_digest, ''), coalesce(j.image_digest_by, ''), j.image_digest_at
			FROM jobs j
			WHERE j.id = @array
			UNION ALL
			SELECT coalesce(a.job ->> 'image_digest', ''), coalesce(a.job ->> 'image_digest_by', ''),
				(a.job ->> 'image_digest_at')::timestamptz
			FROM archived_jobs a
			WHERE a.id = @array`, namedArgs{"array": old.Parent}).
			Scan(&old.ImageDigest, &old.ImageDigestBy, &old.ImageDigestAt)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
	}
	if old.ImageDigestBy == wire.DigestBySubmit || old.ImageDigestBy == wire.DigestByRetry {
		row.keepDigest(old.ImageDigest, old.ImageDigestAt)
	}
	return nil
}

// stepDigests returns the digests of the steps of a pipeline that were found at the submit, see keepDigest: of live and
// archived steps, at every depth, by path, as succeededSteps returns them.
func stepDigests(ctx context.Context, tx pgx.Tx, id berth.JobID) (map[string]keptDigest, error) {
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE inside (id, path, image, digest, by, at) AS (
			SELECT @id::uuid, '', '', '', '', NULL::timestamptz
			UNION ALL
			SELECT s.id, CASE i.path WHEN '' THEN s.step ELSE i.path || '.' || s.step END, s.image, s.digest, s.by,
				s.at
			FROM inside i
			CROSS JOIN LATERAL (
				SELECT j.id, j.step, coalesce(f.spec ->> 'image', '') AS image, coalesce(j.image_digest, '') AS digest,
					coalesce(j.image_digest_by, '') AS by, j.image_digest_at AS at
				FROM jobs j
				JOIN job_specs f ON f.job = j.id
				WHERE j.parent = i.id AND j.step IS NOT NULL
				UNION ALL
				SELECT a.id, a.job ->> 'step', coalesce(a.job #>> '{spec,image}', ''),
					coalesce(a.job ->> 'image_digest', ''), coalesce(a.job ->> 'image_digest_by', ''),
					(a.job ->> 'image_digest_at')::timestamptz
				FROM archived_jobs a
				WHERE a.parent = i.id AND a.job ->> 'step' IS NOT NULL
			) s
		)
		SELECT path, image, digest, at
		FROM inside
		WHERE digest <> '' AND by IN ('submit', 'retry')`, namedArgs{"id": id})
	if err != nil {
		return nil, err
	}
	digests := map[string]keptDigest{}
	var path string
	var kept keptDigest
	_, err = pgx.ForEachRow(rows, []any{&path, &kept.image, &kept.digest, &kept.at}, func() error {
		digests[path] = kept
		kept.at = nil // the next row is scanned into the same variable
		return nil
	})
	return digests, err
}
