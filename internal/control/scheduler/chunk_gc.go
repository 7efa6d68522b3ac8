package scheduler

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/wire"
)

const (
	// lookBatch is the number of chunks that one pass looks for in the object store without Options.Looks.
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
//
// If the store has none of the chunks, it may be another one, and nothing is marked: copies that replace sound chunks
// would go to the wrong store. If only lost chunks are due, younger ones show whether the store has any.
//
// A pass looks for all chunks that are due, as far as Options.Looks allows: above as many chunks as it allows within
// Ages.Looked, the time between two looks at one grows.
func (t *objectGC) lookForChunks(ctx context.Context) error {
	most := lookBatch
	if t.Looks > 0 {
		most = max(1, int(t.Looks*t.TidyEvery.Seconds()))
	}
	for _, age := range []time.Duration{t.Ages.Looked, 0} {
		list, err := t.DB.Chunks.Unseen(ctx, age, most)
		if err != nil || len(list) == 0 {
			return err
		}
		found := t.look(ctx, list)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failed := errors.Join(found.failures...)
		switch {
		case found.lost > 0 && found.intact == 0 && age > 0:
			continue
		case found.lost > 0 && found.intact == 0:
			t.Logger.Error("object store has none of the chunks of checkpoints, marking none", "lost", found.lost)
			return failed
		case found.answered == 0: // the store itself is at fault
			return failed
		}
		// After the looks: a bucket that was emptied meanwhile has lost its id too.
		if err := t.guard().Check(ctx); err != nil {
			return errors.Join(err, failed)
		}
		return errors.Join(t.looked(ctx, found.list), failed)
	}
	return nil
}

// looked records looks.
func (t *objectGC) looked(ctx context.Context, list []db.ChunkLook) error {
	for batch := range slices.Chunk(list, tidyBatch) {
		broken, intact, err := t.DB.Chunks.Looked(ctx, t.term, batch)
		if err != nil {
			return err
		}
		t.did("chunks_lost", broken)
		t.did("chunks_intact", intact)
		if broken > 0 {
			t.Logger.Error("chunks of checkpoints are missing or damaged", "count", broken, "key", firstLost(batch))
		}
	}
	return nil
}

// looks is the result of looks at some chunks.
type looks struct {
	list     []db.ChunkLook // chunks without an answer are as they were
	answered int
	lost     int // of the ones that were not broken
	intact   int
	failures []error
}

// look looks at chunks until stuckInRow failures in a row: then it leaves out the ones after the present batch.
func (t *objectGC) look(ctx context.Context, list []db.ChunkLook) (found looks) {
	for batch := range slices.Chunk(list, tidyBatch) {
		inRow, most := 0, 0
		for i, err := range t.lookAbreast(ctx, batch) {
			if err != nil {
				inRow++
				most = max(most, inRow)
				found.failures = append(found.failures, err)
				continue
			}
			inRow = 0
			found.answered++
			switch l := batch[i]; {
			case !l.Lost:
				found.intact++
			case !l.Broken:
				found.lost++
			}
		}
		found.list = append(found.list, batch...)
		if most >= stuckInRow || ctx.Err() != nil {
			break
		}
	}
	found.failures = found.failures[:min(len(found.failures), stuckInRow)]
	return found
}

// lookAbreast fills in which chunks are lost, and returns one error for each chunk. A chunk of which the store says
// nothing stays as it was.
func (t *objectGC) lookAbreast(ctx context.Context, list []db.ChunkLook) []error {
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
	return failures
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
