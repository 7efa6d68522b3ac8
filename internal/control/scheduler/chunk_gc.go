package scheduler

import (
	"context"
	"fmt"
	"time"

	"berth/db"
	"berth/wire"
)

// chunkAge is the time for which a chunk stays that no checkpoint names: a member that was allowed to leave it out may
// register a checkpoint with it until then.
const chunkAge = time.Hour

// collectChunks gives up chunks that no checkpoint names. Their objects are deleted as all others without an owner.
func (t *objectGC) collectChunks(ctx context.Context) error {
	return inBatches(func(limit int) (int, error) {
		n, err := t.DB.Chunks.Collect(ctx, t.term, chunkAge, limit)
		t.did("chunks_removed", n)
		return n, err
	})
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
