package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/api"
	"berth/internal/lib/poll"
	"berth/spec"
	"berth/wire"
)

// The copy of the tenant is lost, as after the restore of a backup. The next copy with the same content is not deleted as
// a second one: it takes the place of the lost one, for all checkpoints.
func TestANewCopyReplacesOneThatTheStoreHasLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		site func(t *testing.T) *site
		send func(a *agent, job wire.Job, step int64, contents ...string)
	}{
		"through the server": {onChunks, (*agent).stores},
		"by signed addresses": {func(t *testing.T) *site {
			store := chunkBuckets["s3"](t)
			t.Cleanup(func() { _ = store.Close() })
			s := newSite(t, func(d *api.Deps) {
				d.Agent = api.AgentDeps{Blobs: store, Direct: true, Chunks: true, ProofLimit: 10 * time.Minute}
			})
			s.blobs = store
			return s
		}, (*agent).sendsDirect},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := c.site(t)
			a, b := s.joinMachine("m1"), s.joinMachine("m2")
			job, other := s.submit("alice", keeps), s.submit("alice", keeps)
			a.take(job.ID)
			b.take(other.ID)
			c.send(a, job, 5, "base", "more")
			if got := a.reports(job, 5, "base", "more"); got.status != http.StatusNoContent {
				t.Fatalf("report: %d %s", got.status, got.body)
			}
			lost, kept := s.inForce("base"), s.inForce("more")
			if err := s.blobs.Delete(t.Context(), lost.Key()); err != nil {
				t.Fatal(err)
			}
			c.send(b, other, 5, "base", "more")
			if now := s.inForce("base"); now == lost || now.Job != other.ID {
				t.Errorf("the copy in force is %+v, which the store has lost", now)
			}
			if now := s.inForce("more"); now != kept {
				t.Errorf("the copy in force is %+v, and %+v is intact", now, kept)
			}
			if got := b.reports(other, 5, "base", "more"); got.status != http.StatusNoContent {
				t.Fatalf("report: %d %s", got.status, got.body)
			}
			for _, content := range []string{"base", "more"} {
				if got := a.readsChunk(job, 5, content); got.status != http.StatusOK || got.body != content {
					t.Errorf("the first job reads %d %q", got.status, got.body)
				}
			}
		})
	}
}

// A chunk whose announcement is gone is not the member's fault: after the restore of a backup all are gone. The member
// asks for addresses again, and an answer of another code would end its checkpoints.
func TestAChunkWithoutItsAnnouncementIsRepeated(t *testing.T) {
	t.Parallel()
	s := onChunks(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	var answer wire.ChunkAnswer
	a.post("chunks", a.asks(job, 5, wire.ChunkStore, "base"), &answer)
	if _, err := s.db.Pool().Exec(t.Context(), `DELETE FROM chunk_loads`); err != nil {
		t.Fatal(err)
	}
	got := a.call("m1", "PUT", "/agent/v1/objects/"+answer.Chunks[0].Key, "base")
	if got.status != http.StatusServiceUnavailable {
		t.Errorf("%d %s, want an answer that the machine repeats", got.status, got.body)
	}
	a.stores(job, 5, "base")
	if got := a.reports(job, 5, "base"); got.status != http.StatusNoContent {
		t.Errorf("report: %d %s", got.status, got.body)
	}
}

// A reader finds a copy missing while another copy replaces it: the chunk is not damaged, and the reader gets it.
func TestAReaderOfAReplacedCopyReadsTheNextOne(t *testing.T) {
	t.Parallel()
	s := onChunks(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	a.stores(job, 5, "base")
	if got := a.reports(job, 5, "base"); got.status != http.StatusNoContent {
		t.Fatalf("report: %d %s", got.status, got.body)
	}
	first := s.inForce("base")
	second := first
	second.Random = "0123456789abcdef"
	if _, err := s.blobs.Put(t.Context(), second.Key(), strings.NewReader("base"), 4); err != nil {
		t.Fatal(err)
	}
	if err := s.blobs.Delete(t.Context(), first.Key()); err != nil {
		t.Fatal(err)
	}
	replace, err := s.beside().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = replace.Rollback(t.Context()) }()
	if _, err := replace.Exec(t.Context(), `UPDATE chunks SET copy = $1`, second.Random); err != nil {
		t.Fatal(err)
	}
	got := make(chan answer, 1)
	go func() { got <- a.readsChunk(job, 5, "base") }()
	if !poll.Until(time.Minute, 10*time.Millisecond, func() bool {
		var n int
		err := s.beside().QueryRow(t.Context(), `
			SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
		return err == nil && n > 0
	}) {
		t.Fatal("the reader never marks the first copy as broken")
	}
	if err := replace.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-got; got.status != http.StatusOK || got.body != "base" {
		t.Errorf("the reader gets %d %s", got.status, got.body)
	}
	var broken bool
	if err := s.db.Pool().QueryRow(t.Context(), `SELECT broken FROM chunks`).Scan(&broken); err != nil || broken {
		t.Errorf("the second copy is broken: %v, %v", broken, err)
	}
}

// Before an upload, a quota counts the content that the tenant does not have. A step that would exceed the quota with
// it is refused.
func TestAQuotaCountsNewChunksAloneBeforeAnUpload(t *testing.T) {
	t.Parallel()
	s := onChunks(t)
	a, b := s.joinMachine("m1"), s.joinMachine("m2")
	job, other := s.submit("alice", keeps), s.submit("alice", keeps)
	a.take(job.ID)
	b.take(other.ID)
	base, own, large := strings.Repeat("b", 700_000), strings.Repeat("o", 200_000), strings.Repeat("l", 400_000)
	a.stores(job, 5, base)
	if got := a.reports(job, 5, base); got.status != http.StatusNoContent {
		t.Fatalf("report: %d %s", got.status, got.body)
	}
	limits := spec.StorageLimits{Checkpoints: new(spec.MiB(1))}
	if _, err := s.as("admin").SetQuota(t.Context(), spec.Quota{Tenant: job.Tenant, Storage: &limits}); err != nil {
		t.Fatal(err)
	}
	over := b.asks(other, 4, wire.ChunkStore, base, large)
	if got := b.post("chunks", over, nil); got.status != http.StatusRequestEntityTooLarge || !strings.Contains(got.body, berth.SlugStorageQuota) {
		t.Errorf("a step over the quota: %d %s", got.status, got.body)
	}
	within := b.asks(other, 5, wire.ChunkStore, base, own)
	within.Rest = int64(len(base) + len(own))
	if got := b.post("chunks", within, nil); got.status != http.StatusOK {
		t.Errorf("a step whose new content fits: %d %s", got.status, got.body)
	}
	b.stores(other, 5, base, own)
	if got := b.reports(other, 5, base, own); got.status != http.StatusNoContent {
		t.Errorf("report: %d %s", got.status, got.body)
	}
}
