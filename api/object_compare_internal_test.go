package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"berth"
	"berth/internal/control/blob"
	"berth/wire"
)

// TestManifestsAreComparedWithinTheirRoom fills the room: a further manifest waits, and is refused for a while if its
// call ends before.
func TestManifestsAreComparedWithinTheirRoom(t *testing.T) {
	t.Parallel()
	store, err := blob.Open(t.Context(), "file://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	const text = `{"files":[]}`
	sum := sha256.Sum256([]byte(text))
	p := wire.CheckpointReport{Step: 5, Manifest: "a/step-5/" + berth.ManifestName, SHA256: hex.EncodeToString(sum[:])}
	if _, err := store.Put(t.Context(), p.Manifest, strings.NewReader(text), -1); err != nil {
		t.Fatal(err)
	}
	h := &agentObjectHandlers{blobStore: blobStore{store}, manifests: newManifests()}
	for range manifestRoom / leastWeight { // a small manifest counts, too: its folder may be large
		if _, _, err := h.readManifest(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if h.manifests.TryAcquire(1) {
		t.Error("the room is not full")
	}
	if _, _, err := h.readManifest(over, p); err == nil {
		t.Error("a manifest is read without room")
	}
	h.manifests.Release(leastWeight)
	_, free, err := h.readManifest(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	free()
	if !h.manifests.TryAcquire(leastWeight) {
		t.Error("the room of a read manifest is not free again")
	}
	p.SHA256 = strings.Repeat("0", 64)
	h.manifests.Release(leastWeight)
	if _, _, err := h.readManifest(t.Context(), p); !berth.IsSlug(err, wire.SlugObjectMissing) {
		t.Errorf("another manifest: %v", err)
	}
	if !h.manifests.TryAcquire(leastWeight) {
		t.Error("the room of a refused manifest is not free again")
	}
}

// TestReadersOfChunksLeaveRoomForReports fills the room of each of the two kinds of calls in turn.
func TestReadersOfChunksLeaveRoomForReports(t *testing.T) {
	t.Parallel()
	h := &agentObjectHandlers{manifests: newManifests(), chunkReads: newChunkReads()}
	for range chunkReads {
		if _, err := h.roomToSend(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.roomToSend(over); berth.CodeOf(err) != berth.CodeUnavailable {
		t.Errorf("a chunk is sent without room: %v", err)
	}
	if !h.manifests.TryAcquire(manifestRoom) {
		t.Error("chunks that are sent take room of manifests")
	}
	h.chunkReads.Release(1)
	free, err := h.roomToSend(t.Context())
	if err != nil {
		t.Fatalf("reports take room of chunks: %v", err)
	}
	free()
	if !h.chunkReads.TryAcquire(1) {
		t.Error("the room of a sent chunk is not free again")
	}
}
