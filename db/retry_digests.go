package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// keptDigest is the content that a job ran, for the job that retries it.
type keptDigest struct {
	image  string // as the job's file names it; a file with another image runs that one
	digest string
	at     *time.Time // when the digest was found; nil: unknown
}

// keepDigest makes the new job run the digest of the old one, unless it names another image.
func (r *retrying) keepDigest(row submitRow) {
	if r.o.FreshImage || r.old.Spec == nil || row.args["image"] != r.old.Spec.Image {
		return
	}
	row.keepDigest(r.old.ImageDigest, r.old.ImageDigestAt)
}

// stepDigests returns the digests that the steps of a pipeline ran, live and archived, at every depth, by path, as
// succeededSteps returns them.
func stepDigests(ctx context.Context, tx pgx.Tx, id berth.JobID) (map[string]keptDigest, error) {
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE inside (id, path, image, digest, at) AS (
			SELECT @id::uuid, '', '', '', NULL::timestamptz
			UNION ALL
			SELECT s.id, CASE i.path WHEN '' THEN s.step ELSE i.path || '.' || s.step END, s.image, s.digest, s.at
			FROM inside i
			CROSS JOIN LATERAL (
				SELECT j.id, j.step, coalesce(f.spec ->> 'image', '') AS image, coalesce(j.image_digest, '') AS digest,
					j.image_digest_at AS at
				FROM jobs j
				JOIN job_specs f ON f.job = j.id
				WHERE j.parent = i.id AND j.step IS NOT NULL
				UNION ALL
				SELECT a.id, a.job ->> 'step', coalesce(a.job #>> '{spec,image}', ''),
					coalesce(a.job ->> 'image_digest', ''), (a.job ->> 'image_digest_at')::timestamptz
				FROM archived_jobs a
				WHERE a.parent = i.id AND a.job ->> 'step' IS NOT NULL
			) s
		)
		SELECT path, image, digest, at FROM inside WHERE digest <> ''`, pgx.NamedArgs{"id": id})
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
