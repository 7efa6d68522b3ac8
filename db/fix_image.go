package db

import (
	"context"
	"regexp"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// claimedImage is the digest that allocation a of job j must run: the digest of the job, or else
// the digest of the job's array, or "" if no digest is fixed yet.
const claimedImage = `coalesce(nullif(j.image_digest, ''), (
		              SELECT p.image_digest
		              FROM jobs p
		              WHERE p.id = j.parent AND j.array_index IS NOT NULL), '')`

// claimedFinder is the time at which claimedImage was found, and its finder, as JSON; null if unknown. An element's row
// repeats these
// columns of its array.
const claimedFinder = `(
		              SELECT jsonb_build_object('by', f.image_digest_by, 'at', f.image_digest_at)
		              FROM jobs f
		              WHERE f.id = CASE WHEN j.image_digest = '' AND j.array_index IS NOT NULL THEN j.parent
		                ELSE j.id END
		                AND f.image_digest_by IS NOT NULL)`

// imageRequested is true while the control plane may still find the digest of job j's image.
const imageRequested = `EXISTS (SELECT 1 FROM image_requests q WHERE q.job = j.id AND ` + openRequest + `)`

// localImage is why the control plane no longer looks for the digest of a job's image.
const localImage = "a machine has run an image of this name that has no digest, as images do that came from no registry"

// endRequest is a statement that ends the request of job @job without a digest. Its row must be locked, as settle locks
// it: an answer that comes later changes nothing.
const endRequest = `
			UPDATE image_requests q
			SET state = 'unresolvable', claim = NULL, reason = '` + localImage + `'
			WHERE q.job = @job AND ` + openRequest

// foundByMachine sets who found the digest that a machine reports for a job. The digest of an element is usually the
// one of its array.
const foundByMachine = `
				image_digest_by = CASE WHEN @digest = '' THEN image_digest_by ELSE coalesce((
					SELECT p.image_digest_by
					FROM jobs p
					WHERE p.id = jobs.parent AND jobs.array_index IS NOT NULL AND p.image_digest = @digest),
					'machine') END,
				image_digest_at = CASE WHEN @digest = '' THEN image_digest_at ELSE coalesce((
					SELECT p.image_digest_at
					FROM jobs p
					WHERE p.id = jobs.parent AND jobs.array_index IS NOT NULL AND p.image_digest = @digest),
					clock_timestamp()) END`

// imageDigest matches the digests of registries, whose algorithm is nearly always sha256.
var imageDigest = regexp.MustCompile(`^[a-z0-9]{1,32}:[0-9a-f]{32,128}$`)

// FixImage fixes the image digest of a member's job, unless a digest is fixed already, and returns
// the fixed digest. The digest applies to all members and all attempts of the job. All elements of
// an array share one digest, which is in the row of the array.
//
// One statement compares and sets the digest, so all callers get the same answer, however many
// members report at once. A caller whose session is not current gets ErrStaleEpoch. A member that
// is no longer current gets CodeConflict. These errors change nothing.
//
// A report without a digest, of an image that came from no registry, ends the request to find one: the job runs the
// image of its machine.
func (d *Agents) FixImage(
	ctx context.Context, machine berth.MachineID, req wire.ImageReport,
) (fixed wire.FixedImage, err error) {
	if req.Digest != "" && !imageDigest.MatchString(req.Digest) {
		return fixed, berth.Errorf(berth.CodeInvalid, "allocation %d: %.100q is not the digest of an image: write "+
			"sha256: and 64 hexadecimal digits", req.Alloc, req.Digest)
	}
	if _, err := berth.ParseJobID(string(req.Job)); err != nil {
		return fixed, berth.Errorf(berth.CodeInvalid, "allocation %d: %v", req.Alloc, err)
	}
	args := namedArgs{
		"alloc": req.Alloc, "job": req.Job, "attempt": req.Attempt, "machine": machine, "epoch": req.Epoch,
		"digest": req.Digest,
	}
	err = d.tx(ctx, func(tx pgx.Tx) error {
		if err := checkCaller(ctx, tx, machine, Session{AgentBoot: req.AgentBoot, Epoch: req.Epoch}); err != nil {
			return err
		}
		// Most members of a wide gang, and nearly all elements of an array, take no lock.
		var owner string
		err := tx.QueryRow(ctx, `
			SELECT CASE WHEN j.array_index IS NULL THEN j.id ELSE j.parent END::text, `+claimedImage+`
			FROM allocations a
			JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
			WHERE a.id = @alloc AND a.job = @job AND a.attempt = @attempt AND a.machine_id = @machine
			  AND a.machine_epoch = @epoch AND a.state = 'active'
			  AND j.state NOT IN ('succeeded', 'failed', 'canceled')`, args).Scan(&owner, &fixed.Digest)
		if isNoRows(err) {
			return errStaleAttempt(req.Alloc)
		}
		if err != nil || fixed.Digest != "" {
			return err
		}
		if req.Digest == "" {
			fixed.Digest, err = withoutDigest(ctx, tx, owner)
			return err
		}
		args["owner"] = owner
		fixed.Digest = req.Digest
		set, err := tx.Exec(ctx, `
			WITH set AS (
				UPDATE jobs
				SET image_digest = @digest, image_digest_by = 'machine', image_digest_at = clock_timestamp()
				WHERE id = @owner AND coalesce(image_digest, '') = ''
				RETURNING id
			), ended AS (
				DELETE FROM image_requests q
				USING set
				WHERE q.job = set.id
			)
			SELECT 1 FROM set`, args)
		if err != nil || set.RowsAffected() == 1 {
			return err
		}
		// Another member was first. Thousands of elements may be second at once, so they only read.
		err = tx.QueryRow(ctx, `SELECT image_digest FROM jobs WHERE id = @owner`, args).Scan(&fixed.Digest)
		if isNoRows(err) {
			return errStaleAttempt(req.Alloc)
		}
		return err
	})
	return fixed, mapError(err, "image of job "+string(req.Job))
}

// withoutDigest ends the request of a job or an array, unless a digest was found first, which it returns.
func withoutDigest(ctx context.Context, tx pgx.Tx, owner string) (digest string, err error) {
	args := namedArgs{"job": owner}
	var requested bool
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT 1 FROM image_requests q WHERE q.job = @job AND `+openRequest+`)`, args).Scan(&requested)
	if err != nil {
		return "", err
	}
	if requested {
		if _, err := tx.Exec(ctx, `SELECT 1 FROM jobs WHERE id = @job FOR NO KEY UPDATE`, args); err != nil {
			return "", err
		}
	}
	// An answer may have come since the caller has read the digest.
	err = tx.QueryRow(ctx, `SELECT coalesce(image_digest, '') FROM jobs WHERE id = @job`, args).Scan(&digest)
	if isNoRows(err) {
		return "", nil // an element whose array is archived
	}
	if err != nil || digest != "" || !requested {
		return digest, err
	}
	_, err = tx.Exec(ctx, endRequest, args)
	return "", err
}
