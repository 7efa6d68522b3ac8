package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/wire"
)

// addParts stores a step of another job with the parts of several members, and returns it with the bytes of one
// manifest. Each part lists empty files that the store does not have.
func (s *stepStore) addParts(t *testing.T, members, files int) (p wire.RestorePoint, bytes int) {
	t.Helper()
	p = wire.RestorePoint{Job: "other", Step: 1, Attempt: 1, Parts: make([]wire.RestorePart, members)}
	for rank := range members {
		folder := berth.CheckpointKey("default", p.Job, p.Attempt, rank, p.Step)
		m := wire.CheckpointManifest{Job: p.Job, Attempt: p.Attempt, Step: p.Step, Rank: rank}
		for i := range files {
			m.Files = append(m.Files, wire.CheckpointFile{Path: fmt.Sprintf("%06d-%s", i, strings.Repeat("x", 200)),
				Object: fmt.Sprintf("%s/file-%06d", folder, i), SHA256: strings.Repeat("0", 64)})
		}
		body, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(body)
		p.Parts[rank] = wire.RestorePart{Manifest: folder + "/" + berth.ManifestName, SHA256: hex.EncodeToString(sum[:])}
		s.objects[p.Parts[rank].Manifest] = body
		bytes = len(body)
	}
	return p, bytes
}

// heap returns the bytes of live objects.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // frees pools, which the first one only ages
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A restore of many parts keeps one manifest in memory, since users choose the number and the size of the manifests.
// Other tests of the package would disturb the measurement, so this one is not parallel.
func TestARestoreKeepsOneManifestInMemory(t *testing.T) {
	const members = 16
	store := newStepStore(t)
	r := store.restores(t)
	point, bytes := store.addParts(t, members, 8000)
	before, during := heap(), int64(0)
	store.refuse = func(key string, _ int) bool {
		if path.Base(key) == berth.ManifestName {
			return false
		}
		if during == 0 {
			during = heap()
		}
		return true
	}
	if err := r.restore(t.Context(), point); err == nil || during == 0 {
		t.Fatalf("the restore asked for no file, or did not need it: %v", err)
	}
	if used := during - before; used > 4*int64(bytes) {
		t.Errorf("%d parts with manifests of %d bytes use %d bytes", members, bytes, used)
	}
}

// All restores of an agent share the room for manifests.
func TestARestoreWaitsForRoomForItsManifest(t *testing.T) {
	t.Parallel()
	store := newStepStore(t)
	r := store.restores(t, own(1, 0))
	r.manifests = newManifestRoom()
	if !r.manifests.small.TryAcquire(smallManifests) {
		t.Fatal("new room is full")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.restore(ctx, r.claim.Restore[0]); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a restore without room for its manifest: %v", err)
	}
	r.manifests.small.Release(smallManifests)
	r.goesOnFrom(1)
	if !r.manifests.small.TryAcquire(smallManifests) {
		t.Error("the restore has kept room")
	}
}

// Large manifests wait for one another. Small ones do not wait for them.
func TestLargeManifestsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		room := newManifestRoom()
		held := make([]*manifestPlace, largeManifests/maxManifest)
		for i := range held {
			held[i] = &manifestPlace{room: room}
			for range 2 { // a place that has its room asks for no more
				if !held[i].try(maxManifest) {
					t.Fatalf("manifest %d has no room", i)
				}
			}
		}
		next, small := &manifestPlace{room: room}, &manifestPlace{room: room}
		if next.try(maxManifest) || !small.try(smallManifest) {
			t.Error("a large manifest has room, or a small one has none")
		}
		entered := make(chan error, 1)
		go func() { entered <- next.wait(t.Context(), maxManifest) }()
		synctest.Wait()
		select {
		case <-entered:
			t.Error("a manifest entered while there was no room")
		default:
		}
		held[0].leave()
		if err := <-entered; err != nil {
			t.Error(err)
		}
	})
}
