package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/wire"
)

// objectGC compares the object store with the rows: row 14 of the table of repairs. Listings serve
// only to remove leftover objects, never to choose a checkpoint for a restore.
type objectGC struct {
	*Scheduler
	term db.Term
}

// tidyBatch bounds the rows of one read.
const tidyBatch = 500

// guard compares the store with the cluster's.
func (t *objectGC) guard() blob.Guard { return blob.Guard{Store: t.Objects, IDs: t.DB.Cluster} }

// run makes a pass every TidyEvery until the term ends. A failed step does not stop the others. No step runs on another
// store than the cluster's: it would miss the objects that the rows name, and delete objects only there.
func (t *objectGC) run(ctx context.Context) error {
	for {
		for _, step := range []struct {
			name string
			do   func(context.Context) error
		}{
			{"uploads that nobody uses", t.doomUploads},
			{"outputs past their retention", t.pruneOutputs},
			{"logs past their retention", t.pruneLogs},
			{"acts past their retention", t.pruneActs},
			{"expired leases of followed members", t.pruneFollowed},
			{"chunks that no checkpoint names", t.collectChunks},
			{"objects of archived jobs", t.removeDoomed},
			{"objects of closed attempts", t.sweepClosed},
			{"uploads of parts of closed attempts", t.abortUploads},
			{"objects of proofs", t.sweepProofs},
			{"lost checkpoints", t.rejectLost},
			{"lost chunks", t.lookForChunks},
		} {
			err := t.guard().Check(ctx)
			if !errors.Is(err, blob.ErrOtherStore) { // of a store that does not answer, each step says more
				err = step.do(ctx)
			}
			if err != nil && ctx.Err() == nil {
				t.Logger.Error("object store cleanup failed", "step", step.name, "err", err)
			}
		}
		if !sleep(ctx, t.TidyEvery) {
			return ctx.Err()
		}
	}
}

// doomUploads marks archives for removal that no live job needs and no call has named
// for a long time.
func (t *objectGC) doomUploads(ctx context.Context) error {
	for {
		n, err := t.DB.Uploads.Doom(ctx, t.term, t.Ages.Uploads, tidyBatch)
		if err != nil || n == 0 {
			return err
		}
		t.did("uploads_removed", n)
	}
}

// pruneOutputs removes outputs of jobs that ended long ago, if an operator has set
// a retention.
func (t *objectGC) pruneOutputs(ctx context.Context) error {
	for t.OutputRetention > 0 {
		n, err := t.DB.Objects.PruneOutputs(ctx, t.term, t.OutputRetention, tidyBatch)
		if err != nil || n == 0 {
			return err
		}
		t.did("outputs_removed", n)
	}
	return nil
}

// pruneLogs gives up the logs of jobs that ended long ago, if an operator has set a
// retention for logs.
func (t *objectGC) pruneLogs(ctx context.Context) error {
	for t.LogRetention > 0 {
		n, err := t.DB.Logs.Prune(ctx, t.term, t.LogRetention, tidyBatch)
		if err != nil || n == 0 {
			return err
		}
		t.did("logs_removed", n)
	}
	return nil
}

// pruneFollowed deletes the leases of followers that have left, with the unfinished lines, which must not outlive the
// logs of their jobs.
func (t *objectGC) pruneFollowed(ctx context.Context) error {
	return inBatches(func(limit int) (int, error) {
		return t.DB.Logs.PruneFollowed(ctx, t.term, time.Minute, limit)
	})
}

// pruneActs gives up records of sessions that are old, if an operator has set a retention.
func (t *objectGC) pruneActs(ctx context.Context) error {
	for t.ActRetention > 0 {
		n, err := t.DB.JobSessions.PruneActs(ctx, t.term, t.ActRetention, actBatch)
		if err != nil || n == 0 {
			return err
		}
		t.did("acts_removed", n)
	}
	return nil
}

// actBatch is the greatest number of acts that one transaction deletes.
const actBatch = 1000

// stuckPause is the time until the deletion of a folder is retried. A pass ends after
// stuckInRow failures in a row: then the store itself is at fault.
const (
	stuckPause = time.Hour
	stuckInRow = 3
)

// removeDoomed deletes the folders, outputs and chunks that no row refers
// to. One that cannot be deleted does not hold up the others.
func (t *objectGC) removeDoomed(ctx context.Context) error {
	var failures []error
	for {
		list, err := t.DB.Objects.Doomed(ctx, tidyBatch)
		if err != nil || len(list) == 0 {
			return errors.Join(append(failures, err)...)
		}
		removed, stuck, inRow, failed := t.remove(ctx, list)
		failures = append(failures, failed...)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := t.DB.Objects.ForgetDoomed(ctx, t.term, removed, stuck, stuckPause); err != nil {
			return errors.Join(append(failures, err)...)
		}
		t.did("objects_removed", len(removed))
		if inRow >= stuckInRow {
			return errors.Join(failures...)
		}
	}
}

// remove deletes folders and objects until stuckInRow failures in a row, and returns the length
// of the failures at the end. A store that is away thus ends a pass early.
func (t *objectGC) remove(ctx context.Context, list []string) (removed, stuck []string, inRow int, failures []error) {
	for _, prefix := range list {
		remove := t.Objects.DeleteFolder
		if strings.HasSuffix(prefix, berth.OutputSuffix) || strings.HasSuffix(prefix, wire.ChunkSuffix) {
			remove = t.Objects.Delete
		}
		if err := remove(ctx, prefix); err != nil {
			failures = append(failures, fmt.Errorf("delete %s: %w", prefix, err))
			stuck = append(stuck, prefix)
			if inRow++; inRow >= stuckInRow {
				return removed, stuck, inRow, failures
			}
			continue
		}
		removed, inRow = append(removed, prefix), 0
	}
	return removed, stuck, inRow, failures
}

// sweepClosed deletes objects without a row that attempts ended long ago have left: cut-off
// uploads, and shards of pruned or bad steps.
func (t *objectGC) sweepClosed(ctx context.Context) error {
	for {
		list, err := t.DB.Objects.ClosedAttempts(ctx, t.Ages.Objects, tidyBatch)
		if err != nil || len(list) == 0 {
			return err
		}
		removed := 0
		for _, a := range list {
			n, err := t.sweep(ctx, a)
			if err != nil {
				return err
			}
			removed += n
			// Only now: a crash before repeats the sweep, which deletes nothing twice. The next
			// pass deletes unregistered outputs, which MarkSwept marks.
			if err := t.DB.Objects.MarkSwept(ctx, t.term, a.Job, a.Attempt); err != nil {
				return err
			}
		}
		t.did("objects_swept", removed)
	}
}

// sweep deletes the steps of one attempt that no row names.
func (t *objectGC) sweep(ctx context.Context, a db.ClosedAttempt) (removed int, err error) {
	if !a.Saves {
		return 0, nil
	}
	for _, rank := range a.Ranks {
		folder := berth.CheckpointsPrefix(a.Tenant, a.Job, a.Attempt, rank)
		// The listing also shows leftovers without a row, such as the files of a cut-off
		// upload.
		names, err := t.Objects.Folders(ctx, folder)
		if err != nil {
			return removed, fmt.Errorf("list %s: %w", folder, err)
		}
		for _, name := range names {
			digits, ok := strings.CutPrefix(name, "step-")
			step, err := strconv.ParseInt(digits, 10, 64)
			// Other names are no steps of Berth's, and steps with a row may be restored.
			if !ok || err != nil || slices.Contains(a.Steps, step) {
				continue
			}
			if err := t.Objects.DeleteFolder(ctx, folder+"/"+name); err != nil {
				return removed, fmt.Errorf("delete %s/%s: %w", folder, name, err)
			}
			removed++
		}
	}
	extra, err := t.sweepSteps(ctx, a)
	if err != nil {
		return removed + extra, err
	}
	chunks, err := t.sweepChunks(ctx, a)
	return removed + extra + chunks, err
}

// rejectLost marks checkpoints as bad if the store has lost their manifest, so that no
// restore starts from a lost checkpoint. A store without a single manifest is probably
// another store, or an empty mount: then no checkpoint is marked, and an error is logged.
func (t *objectGC) rejectLost(ctx context.Context) error {
	var lost []db.Shard
	found := 0
	for after := (db.Shard{}); ; {
		list, err := t.DB.Objects.VerifiedShards(ctx, after, tidyBatch)
		if err != nil {
			return err
		}
		for _, s := range list {
			ok, err := t.Objects.Exists(ctx, s.Manifest)
			if err != nil {
				return err
			}
			if ok {
				found++
			} else {
				lost = append(lost, s)
			}
		}
		if len(list) < tidyBatch {
			break
		}
		after = list[len(list)-1]
	}
	if len(lost) > 0 && found == 0 {
		t.Logger.Error("object store has none of the recorded checkpoints, marking none", "lost", len(lost))
		return nil
	}
	marked := 0
	for _, s := range lost {
		did, err := t.DB.Objects.RejectMissing(ctx, t.term, s)
		if err != nil {
			return err
		}
		if did {
			marked++
			t.Logger.Error("checkpoint missing from the object store", "job_id", s.Job, "attempt", s.Attempt,
				"step", s.Step)
		}
	}
	t.did("checkpoint_lost", marked)
	return nil
}
