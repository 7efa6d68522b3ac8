package scheduler_test

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/internal/control/blob"
	"berth/internal/control/scheduler"
	"berth/wire"
)

// chunk stores the object of a chunk of this hash, of the first attempt of a job.
func (r *rig) chunk(b *blob.Store, id berth.JobID, digit, random string) wire.ChunkCopy {
	r.t.Helper()
	c := wire.ChunkCopy{Tenant: "default", Job: id, Attempt: 1, SHA256: strings.Repeat(digit, 64), Random: random}
	if _, err := b.Put(r.t.Context(), c.Key(), strings.NewReader("chunk"), 5); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// row makes a copy the one of its tenant, which no checkpoint has named for a time.
func (r *rig) row(c wire.ChunkCopy, unused time.Duration) {
	r.t.Helper()
	r.exec(`INSERT INTO chunks (tenant, sha256, bytes, job, attempt, rank, copy, unused_since)
		VALUES ($1, decode($2, 'hex'), 5, $3, $4, $5, $6, now() - $7::interval)`,
		string(c.Tenant), c.SHA256, c.Job, c.Attempt, c.Rank, c.Random, unused)
}

func TestUnusedChunksAreCollectedWithTheirObjects(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	r.machine("m0", 4, 0)
	id, _ := r.trained(b, time.Hour, map[int64]string{10: "verified"})
	old, young, used := r.chunk(b, id, "a", "1"), r.chunk(b, id, "b", "2"), r.chunk(b, id, "c", "3")
	r.row(old, 2*time.Hour)
	r.row(young, time.Minute)
	r.row(used, 2*time.Hour)
	r.exec(`INSERT INTO chunk_refs (job, step, attempt, rank, tenant, sha256) VALUES ($1, 10, 1, 0, 'default', decode($2, 'hex'))`,
		id, used.SHA256)
	r.lead(func(o *scheduler.Options) { o.Objects, o.TidyEvery = b, 20*time.Millisecond })
	r.await("the unused chunk is given up", func() bool { return value[int](r, `SELECT count(*) FROM doomed_objects`) == 1 })
	if !exists(t, b, old.Key()) {
		t.Error("the chunk is deleted while addresses to write it may be in use")
	}
	r.exec(`UPDATE doomed_objects SET since = now() - interval '1 second'`)
	r.await("the unused chunk is deleted", func() bool { return !exists(t, b, old.Key()) })
	for _, c := range []wire.ChunkCopy{young, used} {
		if !exists(t, b, c.Key()) {
			t.Errorf("%s is deleted", c.Key())
		}
	}
}

func TestChunksWithoutARowAreSweptWithTheirAttempt(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	r.machine("m0", 4, 0)
	id, key := r.trained(b, 25*time.Hour, map[int64]string{10: "verified"})
	unfinished, replaced, listed := r.chunk(b, id, "a", "1"), r.chunk(b, id, "b", "2"), r.chunk(b, id, "b", "3")
	r.row(listed, time.Minute)
	r.lead(func(o *scheduler.Options) { o.Objects, o.TidyEvery = b, 20*time.Millisecond })
	r.await("the attempt is swept", func() bool { return !exists(t, b, unfinished.Key()) && !exists(t, b, replaced.Key()) })
	if !exists(t, b, listed.Key()) || !exists(t, b, key(10)) {
		t.Error("a chunk with a row, or the checkpoint, is deleted")
	}
}
