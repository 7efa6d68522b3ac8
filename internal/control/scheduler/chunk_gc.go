package scheduler

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/wire"
)

const (
	// lookBatch is the number of chunks that one pass looks for in the object store: 300 a minute. Above some 400,000
	// chunks, the time between two looks at one grows beyond Ages.Looked.
	lookBatch = 3000
	// looksAbreast is the number of look-ups at the same time.
	looksAbreast = 8
)

// collectChunks gives up chunks that no checkpoint names. Their objects are deleted as all others without an owner.
func (t *objectGC) collectChunks(ctx context.Context) error {
	return inBatches(func(limit int) (int, error) {
		n, err := t.DB.Chunks.Collect(ctx, t.term, t.Ages.Chunks, limit)
		t.did("chunks_removed", n)
		return n, err
	})
}

// lookForChunks looks for chunks in the object store, the longest unseen first. A lost or damaged one is marked as
// broken, so a running job that has the content stores it again with its next checkpoint. A broken one that is intact
// was in doubt: the database was restored, or the store was incomplete for a time.
func (t *objectGC) lookForChunks(ctx context.Context) error {
	for range lookBatch / tidyBatch {
		list, err := t.DB.Chunks.Unseen(ctx, t.Ages.Looked, tidyBatch)
		if err != nil || len(list) == 0 {
			return err
		}
		failures := t.look(ctx, list)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if len(failures) >= stuckInRow { // the store itself is at fault
			return errors.Join(failures[:stuckInRow]...)
		}
		broken, intact, err := t.DB.Chunks.Looked(ctx, t.term, list)
		if err != nil {
			return err
		}
		t.did("chunks_lost", broken)
		t.did("chunks_intact", intact)
		if broken > 0 {
			t.Logger.Error("chunks of checkpoints are missing or damaged", "count", broken, "key", firstLost(list))
		}
		if len(failures) > 0 || len(list) < tidyBatch {
			return errors.Join(failures...)
		}
	}
	return nil
}

// look fills in which chunks are lost. A chunk of which the store says nothing stays as it was.
func (t *objectGC) look(ctx context.Context, list []db.ChunkLook) []error {
	failures := make([]error, len(list))
	var all errgroup.Group
	all.SetLimit(looksAbreast)
	for i := range list {
		all.Go(func() error {
			l := &list[i]
			intact, err := t.intact(ctx, *l)
			if l.Lost = !intact; err != nil {
				l.Lost = l.Broken
				failures[i] = fmt.Errorf("look for %s: %w", l.Key(), err)
			}
			return nil
		})
	}
	_ = all.Wait()
	return slices.DeleteFunc(failures, func(err error) bool { return err == nil })
}

// intact reports whether the store has a chunk. A broken one must be read: the store's own checksum may be older than
// the damage.
func (t *objectGC) intact(ctx context.Context, l db.ChunkLook) (bool, error) {
	sum, err := blob.ParseSHA256(l.SHA256)
	if err != nil {
		return false, err
	}
	if !l.Broken {
		return t.Objects.Holds(ctx, l.Key(), l.Bytes, sum)
	}
	body, err := t.Objects.ReadAll(ctx, l.Key(), wire.MaxChunkBytes)
	if code := berth.CodeOf(err); code == berth.CodeNotFound || code == berth.CodeInvalid { // missing, or too long
		return false, nil
	}
	return err == nil && sha256.Sum256(body) == sum, err
}

// firstLost returns the key of the first chunk that a look has found lost.
func firstLost(list []db.ChunkLook) string {
	for _, l := range list {
		if l.Lost && !l.Broken {
			return l.Key()
		}
	}
	return ""
}

// sweepChunks deletes the chunks of a closed attempt that no row names: uploads that were not finished, and chunks that
// a restored database does not know. The members of the attempt store nothing more.
func (t *objectGC) sweepChunks(ctx context.Context, a db.ClosedAttempt) (removed int, err error) {
	for _, rank := range a.Ranks {
		folder := wire.ChunksPrefix(a.Tenant, a.Job, a.Attempt, rank)
		names, err := t.Objects.Names(ctx, folder)
		if err != nil {
			return removed, fmt.Errorf("list %s: %w", folder, err)
		}
		var copies []wire.ChunkCopy
		for _, name := range names {
			if sum, random, ok := wire.ParseChunkName(name); ok {
				copies = append(copies, wire.ChunkCopy{Tenant: a.Tenant, Job: a.Job, Attempt: a.Attempt, Rank: rank,
					SHA256: sum, Random: random})
			}
		}
		if len(copies) == 0 {
			continue
		}
		unlisted, err := t.DB.Chunks.Unlisted(ctx, copies)
		if err != nil {
			return removed, err
		}
		for _, c := range unlisted {
			if err := t.Objects.Delete(ctx, c.Key()); err != nil {
				return removed, fmt.Errorf("delete %s: %w", c.Key(), err)
			}
			removed++
		}
	}
	return removed, nil
}
