package scheduler

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
)

// This file removes objects and uploads without a row that signed addresses can leave in the object store
// (docs/adr/0086-machines-move-objects-by-signed-addresses.md, docs/adr/0092-large-objects-go-by-parts.md).

// jobsFolder has the objects of all jobs.
const jobsFolder = "tenants"

// abortFailures ends a pass after so many uploads that could not be aborted: the store itself is at fault then.
const abortFailures = 100

// abortUploads aborts the uploads of parts of attempts whose members can no longer complete them. The store's own list
// names the uploads, so no crash hides one. An upload that a late call opens is aborted by the next pass. An upload
// that cannot be aborted does not stop the others; the error names the first ones.
func (t *objectGC) abortUploads(ctx context.Context) error {
	var batch []blob.Upload
	var failures []error
	abort := func() error {
		list := batch
		batch = nil
		failed, err := t.abortEnded(ctx, list)
		if failures = append(failures, failed...); err == nil && len(failures) >= abortFailures {
			err = fmt.Errorf("%d uploads cannot be aborted, the rest waits for the next pass", len(failures))
		}
		return err
	}
	err := t.Objects.Uploads(ctx, jobsFolder, func(u blob.Upload) error {
		if batch = append(batch, u); len(batch) < tidyBatch {
			return nil
		}
		return abort()
	})
	if err == nil {
		err = abort()
	}
	return errors.Join(append(slices.Clip(failures[:min(len(failures), stuckInRow)]), err)...)
}

// abortEnded aborts the uploads of a list whose attempts have ended, and returns the failed aborts.
func (t *objectGC) abortEnded(ctx context.Context, list []blob.Upload) (failed []error, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	var attempts []db.AttemptOf
	of := map[db.AttemptOf][]blob.Upload{}
	for _, u := range list {
		place, err := blob.ParseKey(u.Key)
		if err != nil {
			continue // of a folder that Berth does not use
		}
		a := db.AttemptOf{Job: place.Job, Attempt: place.Attempt}
		if of[a] == nil {
			attempts = append(attempts, a)
		}
		of[a] = append(of[a], u)
	}
	ended, err := t.DB.Objects.EndedAttempts(ctx, attempts)
	if err != nil {
		return nil, err
	}
	aborted := 0
	for _, a := range attempts {
		if !ended[a] {
			continue
		}
		for _, u := range of[a] {
			if ctx.Err() != nil {
				return failed, ctx.Err()
			}
			if err := t.Objects.AbortUpload(ctx, u); err != nil {
				failed = append(failed, fmt.Errorf("abort the upload of %s: %w", u.Key, err))
				continue
			}
			aborted++
		}
	}
	t.did("uploads_aborted", aborted)
	return failed, nil
}

// sweepProofs deletes the objects of proofs of signed addresses that a crash cut off.
func (t *objectGC) sweepProofs(ctx context.Context) error {
	n, err := t.Objects.SweepProofs(ctx, blob.ProofAge)
	t.did("objects_swept", n)
	return err
}

// sweepSteps deletes the objects in the folders of an attempt's verified steps that their manifests do not list. All
// addresses of the attempt have expired, so no further object appears. A manifest that is not as registered deletes
// nothing: the next restore finds the damage.
func (t *objectGC) sweepSteps(ctx context.Context, a db.ClosedAttempt) (removed int, err error) {
	list, err := t.DB.Objects.VerifiedManifests(ctx, a.Job, a.Attempt)
	if err != nil {
		return 0, err
	}
	for _, m := range list {
		folder := berth.CheckpointKey(a.Tenant, a.Job, a.Attempt, m.Rank, m.Step)
		names, err := t.Objects.Names(ctx, folder)
		if err != nil {
			return removed, fmt.Errorf("list %s: %w", folder, err)
		}
		body, err := t.Objects.ReadAll(ctx, folder+"/"+berth.ManifestName, blob.MaxManifest)
		switch {
		case berth.CodeOf(err) == berth.CodeNotFound, berth.CodeOf(err) == berth.CodeInvalid:
			continue
		case ctx.Err() != nil:
			return removed, ctx.Err()
		case err != nil:
			// An error here would stop the sweep of all later attempts at each pass, since an object can stay
			// unreadable, as in an archive class of the store.
			t.Logger.Warn("cannot read the manifest of a verified step, its extra objects stay", "job_id", a.Job,
				"folder", folder, "err", err)
			continue
		}
		if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != m.SHA256 {
			continue
		}
		files, err := blob.ManifestFiles(body, folder)
		if err != nil {
			continue // of an agent of an earlier version, or of a liar
		}
		for _, name := range names {
			if _, listed := files[name]; listed || name == berth.ManifestName {
				continue
			}
			if err := t.Objects.Delete(ctx, folder+"/"+name); err != nil {
				return removed, fmt.Errorf("delete %s/%s: %w", folder, name, err)
			}
			removed++
		}
	}
	return removed, nil
}
