package scheduler_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
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

// chunkOf returns the copy of a chunk with some content.
func chunkOf(content string) wire.ChunkCopy {
	sum := sha256.Sum256([]byte(content))
	return wire.ChunkCopy{Tenant: "default", Job: "018f0000-0000-7000-8000-000000000000", Attempt: 1,
		SHA256: hex.EncodeToString(sum[:]), Random: "a"}
}

// hasChunk adds the row of a chunk that was seen before age, and its object with the stored content; "": without one.
func (r *rig) hasChunk(b *blob.Store, content, stored string, broken bool, age time.Duration) {
	r.t.Helper()
	c := chunkOf(content)
	if stored != "" {
		if err := b.Create(r.t.Context(), c.Key(), []byte(stored)); err != nil {
			r.t.Fatal(err)
		}
	}
	r.exec(`INSERT INTO chunks (tenant, sha256, bytes, refs, job, attempt, rank, copy, broken, looked_at)
		VALUES ('default', decode($1, 'hex'), $2, 1, $3, 1, 0, 'a', $4, now() - $5::interval)`,
		c.SHA256, len(content), c.Job, broken, age)
}

// broken reports whether a chunk is marked as broken.
func (r *rig) broken(content string) bool {
	r.t.Helper()
	return value[bool](r, `SELECT broken FROM chunks WHERE sha256 = decode('`+chunkOf(content).SHA256+`', 'hex')`)
}

// looks starts the looks at chunks that nothing has seen for 30 minutes.
func (r *rig) looks(s scheduler.Objects) {
	r.lead(func(o *scheduler.Options) {
		o.Objects, o.TidyEvery, o.Ages.Looked = s, 20*time.Millisecond, 30*time.Minute
	})
}

// holdless answers no look at some objects.
type holdless struct {
	*blob.Store
	keys []string
}

func (s holdless) Holds(ctx context.Context, key string, bytes int64, sum [32]byte) (bool, error) {
	if slices.Contains(s.keys, key) {
		return false, errors.New("access denied")
	}
	return s.Store.Holds(ctx, key, bytes, sum)
}

// The leader looks for chunks before a restore needs them. A broken one is read, and is no longer broken if it is
// intact.
func TestLostChunksAreFoundByLooks(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	for content, c := range map[string]struct {
		stored string
		broken bool
		age    time.Duration
	}{
		"sound":   {"sound", false, time.Hour},
		"lost":    {"", false, time.Hour},
		"short":   {"shor", false, time.Hour},
		"young":   {"", false, 0},
		"doubted": {"doubted", true, time.Hour},
		"changed": {"chanced", true, time.Hour},
		"missing": {"", true, time.Hour},
		"denied":  {"denied", false, 2 * time.Hour},
	} {
		r.hasChunk(b, content, c.stored, c.broken, c.age)
	}
	r.lead(func(o *scheduler.Options) {
		o.Objects, o.TidyEvery = holdless{b, []string{chunkOf("denied").Key()}}, 20*time.Millisecond
		o.Ages.Looked = 30 * time.Minute
	})
	r.await("all old chunks are looked for", func() bool {
		return value[int](r, `SELECT count(*) FROM chunks WHERE looked_at < now() - interval '30 minutes'`) == 0
	})
	for content, broken := range map[string]bool{"sound": false, "lost": true, "short": true, "young": false, "doubted": false,
		"changed": true, "missing": true, "denied": false} {
		if got := r.broken(content); got != broken {
			t.Errorf("chunk %s is broken: %v, want %v", content, got, broken)
		}
	}
}

// A store that has none of the chunks may be another one: then the leader marks none. One chunk that the store has shows
// that it is the right one, also if nothing is due but lost chunks.
func TestChunksOfAnotherStoreAreNotMarked(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	r.hasChunk(b, "lost", "", false, time.Hour)
	r.hasChunk(b, "other", "", false, time.Hour)
	r.looks(b)
	r.await("the leader has looked", func() bool {
		return strings.Contains(r.log.String(), "object store has none of the chunks of checkpoints, marking none")
	})
	if r.broken("lost") || r.broken("other") {
		t.Error("chunks of another store are marked as broken")
	}
	r.hasChunk(b, "young", "young", false, 0)
	r.await("the lost chunks are marked", func() bool { return r.broken("lost") && r.broken("other") })
	if r.broken("young") {
		t.Error("the chunk that the store has is marked as broken")
	}
}

// Chunks that the store denies, such as archived ones, keep the leader from no other chunk.
func TestDeniedChunksStopNoLooks(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	var denied []string
	for i := range 5 {
		content := fmt.Sprint("denied", i)
		r.hasChunk(b, content, content, false, 2*time.Hour)
		denied = append(denied, chunkOf(content).Key())
	}
	r.hasChunk(b, "sound", "sound", false, time.Hour)
	r.hasChunk(b, "lost", "", false, time.Hour)
	r.looks(holdless{b, denied})
	r.await("the lost chunk is marked", func() bool { return r.broken("lost") })
	r.await("all chunks are seen", func() bool {
		return value[int](r, `SELECT count(*) FROM chunks WHERE looked_at < now() - interval '30 minutes'`) == 0
	})
	if n := value[int](r, `SELECT count(*) FROM chunks WHERE broken`); n != 1 {
		t.Errorf("%d chunks are marked as broken, want the lost one", n)
	}
}

// swapped is a store in whose place another one is after the first look.
type swapped struct {
	*blob.Store
	gone *atomic.Bool
}

func (s swapped) ID(context.Context) (string, error) {
	if s.gone.Load() {
		return "", nil
	}
	return "ABCDEFGHIJKLMNOPQRSTUVWXYZ", nil
}

func (s swapped) Holds(ctx context.Context, key string, bytes int64, sum [32]byte) (bool, error) {
	defer s.gone.Store(true)
	return s.Store.Holds(ctx, key, bytes, sum)
}

// A bucket that is emptied during the looks has lost its id at their end, and the leader marks no chunk. In passes on
// another store it deletes nothing, and forgets no object that is to be deleted in the right one.
func TestAnotherStoreChangesNoRow(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	r.hasChunk(b, "sound", "sound", false, time.Hour)
	r.hasChunk(b, "lost", "", false, time.Hour)
	s := swapped{b, &atomic.Bool{}}
	r.looks(s)
	other := func() int { return strings.Count(r.log.String(), blob.ErrOtherStore.Error()) }
	r.await("the leader has looked", func() bool { return other() > 0 })
	r.exec(`INSERT INTO doomed_objects (prefix, since) VALUES ('tenants/a/x', now() - interval '1 hour')`)
	passed := other()
	r.await("the leader has made a pass", func() bool { return other() > passed+24 })
	if r.broken("lost") {
		t.Error("a chunk that another store lacks is marked as broken")
	}
	if n := value[int](r, `SELECT count(*) FROM doomed_objects`); n != 1 {
		t.Error("an object was deleted in another store")
	}
	s.gone.Store(false)
	r.await("the object is deleted in the right store", func() bool {
		return value[int](r, `SELECT count(*) FROM doomed_objects`) == 0
	})
}

// A limit bounds the looks of one pass, and another one allows all that are due.
func TestALimitBoundsTheLooks(t *testing.T) {
	t.Parallel()
	for most, want := range map[float64]int{5: 5, 100: 8} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			r, b := newRig(t), store(t)
			for i := range 8 {
				content := fmt.Sprint("sound", i)
				r.hasChunk(b, content, content, false, time.Hour)
			}
			r.lead(func(o *scheduler.Options) {
				o.Objects, o.TidyEvery, o.Looks, o.Ages.Looked = b, time.Hour, most/3600, 30*time.Minute
			})
			r.await("the leader has looked", func() bool { // the looks of a pass are recorded at once
				return value[int](r, `SELECT count(*) FROM chunks WHERE looked_at > now() - interval '30 minutes'`) == want
			})
		})
	}
}
