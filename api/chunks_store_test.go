package api_test

import (
	"net/http"
	"strings"
	"testing"

	"berth"
	"berth/spec"
	"berth/wire"
)

// Another store than the cluster's lacks the chunks, and may not record that they are lost, nor copies of its own.
func TestAnotherStoreChangesNoChunk(t *testing.T) {
	t.Parallel()
	s := onChunks(t)
	a, b := s.joinMachine("m1"), s.joinMachine("m2")
	job, other := s.submit("alice", keeps), s.submit("alice", keeps)
	a.take(job.ID)
	b.take(other.ID)
	a.stores(job, 5, "base")
	if got := a.reports(job, 5, "base"); got.status != http.StatusNoContent {
		t.Fatalf("report: %d %s", got.status, got.body)
	}
	kept := s.inForce("base")
	if err := s.blobs.Delete(t.Context(), kept.Key()); err != nil {
		t.Fatal(err)
	}
	s.exec(`UPDATE cluster SET store_id = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ'`)
	if got := a.readsChunk(job, 5, "base"); got.status != http.StatusServiceUnavailable {
		t.Errorf("a reader gets %d %s", got.status, got.body)
	}
	for _, content := range []string{"base", "more"} {
		var answer wire.ChunkAnswer
		b.post("chunks", b.asks(other, 5, wire.ChunkStore, content), &answer)
		got := b.call("m2", "PUT", "/agent/v1/objects/"+answer.Chunks[0].Key, content)
		if got.status != http.StatusServiceUnavailable {
			t.Errorf("a writer of %s gets %d %s", content, got.status, got.body)
		}
	}
	var rows, broken int
	if err := s.db.Pool().QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE broken) FROM chunks`).
		Scan(&rows, &broken); err != nil || rows != 1 || broken != 0 || s.inForce("base") != kept {
		t.Errorf("%d chunks, %d broken, %v: another store has changed them", rows, broken, err)
	}
	s.exec(`UPDATE cluster SET store_id = NULL`)
	b.stores(other, 5, "base", "more")
	if got := b.reports(other, 5, "base", "more"); got.status != http.StatusNoContent {
		t.Errorf("report to the right store: %d %s", got.status, got.body)
	}
}

// A quota counts the chunks of a refused step while the store may have them: the next step cannot send as much again.
func TestAQuotaCountsChunksOfARefusedStep(t *testing.T) {
	t.Parallel()
	s := onChunks(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	limits := spec.StorageLimits{Checkpoints: new(spec.MiB(1))}
	if _, err := s.as("admin").SetQuota(t.Context(), spec.Quota{Tenant: job.Tenant, Storage: &limits}); err != nil {
		t.Fatal(err)
	}
	refuses := func(step int64, content string) {
		t.Helper()
		got := a.post("chunks", a.asks(job, step, wire.ChunkStore, content), nil)
		if got.status != http.StatusRequestEntityTooLarge || !strings.Contains(got.body, berth.SlugStorageQuota) {
			t.Errorf("step %d: %d %s", step, got.status, got.body)
		}
	}
	some := func(letter string) string { return strings.Repeat(letter, 700_000) }
	a.stores(job, 5, some("a"))
	refuses(5, some("b"))
	refuses(6, some("c"))
	var soon bool
	if err := s.db.Pool().QueryRow(t.Context(), `SELECT at < now() - interval '22 hours' FROM chunk_loads`).
		Scan(&soon); err != nil || !soon {
		t.Errorf("the chunks of the refused step are kept for a day: %v", err)
	}
	s.exec(`DELETE FROM chunk_loads`)
	a.stores(job, 7, some("d"))
	if got := a.reports(job, 7, some("d")); got.status != http.StatusNoContent {
		t.Errorf("a step after the collection: %d %s", got.status, got.body)
	}
}
