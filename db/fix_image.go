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

// imageDigest matches the digests of registries, whose algorithm is nearly always sha256.
var imageDigest = regexp.MustCompile(`^[a-z0-9]{1,32}:[0-9a-f]{32,128}$`)

// FixImage fixes the image digest of a member's job, unless a digest is fixed already, and returns
// the fixed digest. The digest applies to all members and all attempts of the job. All elements of
// an array share one digest, which is in the row of the array.
//
// One statement compares and sets the digest, so all callers get the same answer, however many
// members report at once. A caller whose session is not current gets ErrStaleEpoch. A member that
// is no longer current gets CodeConflict. These errors change nothing.
func (d *Agents) FixImage(
	ctx context.Context, machine berth.MachineID, req wire.ImageReport,
) (fixed wire.FixedImage, err error) {
	if !imageDigest.MatchString(req.Digest) {
		return fixed, berth.Errorf(berth.CodeInvalid, "allocation %d: %.100q is not the digest of an image: write "+
			"sha256: and 64 hexadecimal digits", req.Alloc, req.Digest)
	}
	if _, err := berth.ParseJobID(string(req.Job)); err != nil {
		return fixed, berth.Errorf(berth.CodeInvalid, "allocation %d: %v", req.Alloc, err)
	}
	args := pgx.NamedArgs{
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
		args["owner"] = owner
		fixed.Digest = req.Digest
		set, err := tx.Exec(ctx, `
			UPDATE jobs
			SET image_digest = @digest
			WHERE id = @owner AND coalesce(image_digest, '') = ''`, args)
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
