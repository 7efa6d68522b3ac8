package agent_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/wire"
)

// onChunks lets the machines of a site store checkpoints by chunks.
func onChunks(s *site) *site {
	s.chunks = true
	s.serves()
	return s
}

// fresh is content that no other step has.
func fresh(t *testing.T, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

// savesFiles writes a complete step, and waits until it is verified.
func (m *machine) savesFiles(id berth.JobID, attempt int, step int64, files map[string][]byte) {
	m.s.t.Helper()
	dir := m.folder(id, attempt, fmt.Sprintf("checkpoint/step-%d", step))
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			m.s.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			m.s.t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "DONE"), nil, 0o644); err != nil {
		m.s.t.Fatal(err)
	}
	m.saved(id, step)
}

// trainsKeeping is trains for a job that keeps this many checkpoints.
func (m *machine) trainsKeeping(keep int) (berth.JobID, *waiter) {
	m.s.t.Helper()
	id := m.s.submit(checkpointed(keep), "sleep", "1h")
	req, w := m.run(id)
	m.running(req)
	return id, w
}

// storedBytes returns the bytes of all objects in the store.
func (s *site) storedBytes() (bytes int64) {
	s.t.Helper()
	if err := s.blobs.Walk(s.t.Context(), func(o blob.Object) error {
		if strings.HasPrefix(o.Key, "tenants/") {
			bytes += o.Size
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	return bytes
}

// counted returns the bytes of checkpoints that the tenant is counted for.
func (s *site) counted() (bytes int64) {
	s.t.Helper()
	amounts, err := s.db.Storage.Amounts(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, a := range amounts {
		if a.Kind == db.StoredCheckpoints {
			bytes += a.Amount
		}
	}
	return bytes
}

// chunkSites runs a test on a store in a folder, and on a bucket with signed addresses.
func chunkSites(t *testing.T, test func(t *testing.T, s *site, b *bucket)) {
	t.Run("folder", func(t *testing.T) {
		t.Parallel()
		test(t, onChunks(newSite(t)), nil)
	})
	t.Run("bucket", func(t *testing.T) {
		t.Parallel()
		s, b := newBucketSite(t)
		test(t, onChunks(s), b)
	})
}

// TestTenCheckpointsOfAFrozenBaseStoreItOnce is the promise of adr/0098 at a part of the size: ten checkpoints of a
// base of 1 GiB, and of 50 MiB that change, need at most 1.6 GiB.
func TestTenCheckpointsOfAFrozenBaseStoreItOnce(t *testing.T) {
	t.Parallel()
	chunkSites(t, func(t *testing.T, s *site, b *bucket) {
		const part = 32
		m := s.machine("m1")
		id, w := m.trainsKeeping(10)
		base := fresh(t, 1<<30/part)
		var adapter []byte
		for step := int64(1); step <= 10; step++ {
			adapter = fresh(t, 50<<20/part)
			m.savesFiles(id, 1, step, map[string][]byte{"base/weights": base, "adapter": adapter, "config": []byte("{}")})
		}
		stored := s.storedBytes()
		if limit := int64(16<<30/10) / part; stored > limit {
			t.Errorf("ten checkpoints need %d bytes, want at most %d", stored, limit)
		}
		t.Logf("ten checkpoints: %.3f of the plain copies, %.3f of one", float64(stored)/float64(10*(len(base)+len(adapter))),
			float64(stored)/float64(len(base)+len(adapter)))
		newBytes := int64(0)
		for _, c := range s.job(id).Checkpoints {
			if c.Stored == nil {
				t.Fatalf("checkpoint %+v has no stored bytes", c)
			}
			newBytes += *c.Stored
		}
		if counted := s.counted(); counted != newBytes || counted > stored {
			t.Errorf("%d bytes are counted, %d of the checkpoints were new, %d are stored", counted, newBytes, stored)
		}
		if b != nil {
			if put := b.throughPut.Load(); put > 1<<20 {
				t.Errorf("%d bytes passed the control plane", put)
			}
		}
		m.restoresFiles(id, w, 10, map[string][]byte{"base/weights": base, "adapter": adapter, "config": []byte("{}")})
	})
}

// restoresFiles ends the present attempt, runs the next one, and compares the restored files.
func (m *machine) restoresFiles(id berth.JobID, w *waiter, step int64, files map[string][]byte) {
	m.s.t.Helper()
	m.runtime.Exit(berth.ContainerName(id, 0, 1), 1)
	w.exit()
	if j := m.s.settle(id); j.Status != berth.Retrying {
		m.s.t.Fatalf("job is %s, %+v", j.Status, j.Reason)
	}
	req, _ := m.run(id)
	m.running(req)
	for name, content := range files {
		got, err := os.ReadFile(m.folder(id, 2, fmt.Sprintf("checkpoint/step-%d/%s", step, name)))
		if err != nil || !bytes.Equal(got, content) {
			m.s.t.Errorf("%s is not restored as it was saved: %d bytes, %v", name, len(got), err)
		}
	}
}

// Training in which everything changes costs no more than plain copies, apart from the lists of chunks.
func TestCheckpointsOfFullTrainingCostNoMoreThanCopies(t *testing.T) {
	t.Parallel()
	chunkSites(t, func(t *testing.T, s *site, _ *bucket) {
		m := s.machine("m1")
		id, _ := m.trainsKeeping(10)
		plain := int64(0)
		for step := int64(1); step <= 3; step++ {
			files := map[string][]byte{"weights": fresh(t, 8<<20), "optimizer": fresh(t, 5<<20+7)}
			for _, content := range files {
				plain += int64(len(content))
			}
			m.savesFiles(id, 1, step, files)
		}
		if stored := s.storedBytes(); stored < plain || float64(stored) > 1.02*float64(plain) {
			t.Errorf("the checkpoints need %d bytes, plain copies %d", stored, plain)
		}
	})
}

// A header of another length before the base moves its content, which is shared all the same.
func TestMovedContentIsShared(t *testing.T) {
	t.Parallel()
	s := onChunks(newSite(t))
	m := s.machine("m1")
	id, w := m.trainsKeeping(5)
	base := fresh(t, 24<<20)
	var file []byte
	for step := int64(1); step <= 3; step++ {
		file = append(fresh(t, 1000+int(step)), base...)
		m.savesFiles(id, 1, step, map[string][]byte{"model": file})
	}
	// Each further step changes the first chunks of the file alone.
	if stored := s.storedBytes(); stored > int64(len(base))+2*8<<20 {
		t.Errorf("three checkpoints need %d bytes", stored)
	}
	m.restoresFiles(id, w, 3, map[string][]byte{"model": file})
}

// A retry in a new job restores the chunks of the job before, and need not send them again.
func TestARetrySharesTheChunksOfTheJobBefore(t *testing.T) {
	t.Parallel()
	s := onChunks(newSite(t))
	m := s.machine("m1")
	source, w := m.trainsKeeping(2)
	base := fresh(t, 12<<20)
	m.savesFiles(source, 1, 5, map[string][]byte{"base": base})
	m.runtime.Exit(berth.ContainerName(source, 0, 1), 1)
	w.exit()
	if j := s.settle(source); j.Status != berth.Retrying {
		t.Fatalf("job is %s, %+v", j.Status, j.Reason)
	}
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", source, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	retry, _, err := s.db.Retries.Retry(t.Context(), "", source, db.RetryOptions{}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	other := s.machine("m2")
	req, _ := other.run(retry.ID)
	other.running(req)
	got, err := os.ReadFile(other.folder(retry.ID, 1, "checkpoint/step-5/base"))
	if err != nil || !bytes.Equal(got, base) {
		t.Fatalf("the base is not restored: %d bytes, %v", len(got), err)
	}
	other.savesFiles(retry.ID, 1, 6, map[string][]byte{"base": base, "adapter": fresh(t, 1<<20)})
	for _, c := range s.job(retry.ID).Checkpoints {
		if c.Stored == nil || *c.Stored > 2<<20 {
			t.Errorf("checkpoint %+v is stored with its base", c)
		}
	}
}

// Chunks that the server no longer has at the registration are sent again, and the report is repeated.
func TestChunksThatAreGoneAtTheReportAreSentAgain(t *testing.T) {
	t.Parallel()
	s := onChunks(newSite(t))
	m := s.machine("m1")
	id, w := m.trainsKeeping(2)
	var refused atomic.Int64
	around := func(next http.Handler, rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, wire.ChunkedCheckpoints) && refused.Add(1) == 1 {
			for _, table := range []string{"chunk_loads", "chunks"} {
				if _, err := s.db.Pool().Exec(r.Context(), `DELETE FROM `+table); err != nil {
					t.Error(err)
				}
			}
		}
		next.ServeHTTP(rw, r)
	}
	s.gate.around.Store(&around)
	content := fresh(t, 5<<20)
	m.savesFiles(id, 1, 5, map[string][]byte{"weights": content})
	if n := refused.Load(); n != 2 {
		t.Errorf("the step was reported %d times, want 2", n)
	}
	m.restoresFiles(id, w, 5, map[string][]byte{"weights": content})
}

// A damaged chunk makes the steps bad that name it, and the restore goes on with an older one.
func TestADamagedChunkMakesItsStepBad(t *testing.T) {
	t.Parallel()
	chunkSites(t, func(t *testing.T, s *site, _ *bucket) {
		m := s.machine("m1")
		id, w := m.trainsKeeping(5)
		base, adapter := fresh(t, 6<<20), fresh(t, 2<<20)
		m.savesFiles(id, 1, 1, map[string][]byte{"base": base, "adapter": adapter})
		m.savesFiles(id, 1, 2, map[string][]byte{"base": base, "adapter": fresh(t, 2<<20)})
		var sum, random string
		if err := s.db.Pool().QueryRow(t.Context(), `
			SELECT encode(r.sha256, 'hex'), c.copy FROM chunk_refs r JOIN chunks c USING (tenant, sha256)
			WHERE r.job = $1 AND r.step = 2 AND c.refs = 1 LIMIT 1`, id).Scan(&sum, &random); err != nil {
			t.Fatal(err)
		}
		key := wire.ChunkCopy{Tenant: "default", Job: id, Attempt: 1, SHA256: sum, Random: random}.Key()
		if _, err := s.blobs.Put(t.Context(), key, strings.NewReader("damage"), 6); err != nil {
			t.Fatal(err)
		}
		m.restoresFiles(id, w, 1, map[string][]byte{"base": base, "adapter": adapter})
		if !s.hasEvent(id, wire.EventCheckpointRejected, "a chunk is missing or damaged") {
			t.Errorf("events: %+v", s.events(id))
		}
		if got := s.verified(id); len(got) != 1 || got[0] != 1 {
			t.Errorf("verified steps are %v", got)
		}
	})
}

// A server of the version before gets whole files, also if one of this version has offered chunks before.
func TestAServerWithoutChunksGetsWholeFiles(t *testing.T) {
	t.Parallel()
	s := onChunks(newSite(t))
	m := s.machine("m1")
	id, w := m.trainsKeeping(2)
	around := func(next http.Handler, rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/agent/v1/chunks") {
			rw.Header().Set("Content-Type", "application/problem+json")
			rw.WriteHeader(http.StatusNotFound)
			_, _ = rw.Write([]byte(`{"code":"not_found"}`))
			return
		}
		next.ServeHTTP(rw, r)
	}
	s.gate.around.Store(&around)
	content := fresh(t, 3<<20)
	m.savesFiles(id, 1, 5, map[string][]byte{"weights": content})
	if _, err := os.Stat(filepath.Join(s.blobDir, berth.CheckpointKey("default", id, 1, 0, 5), "file-000001")); err != nil {
		if _, err := os.Stat(filepath.Join(s.blobDir, berth.CheckpointKey("default", id, 1, 0, 5), "file-000000")); err != nil {
			t.Error(err)
		}
	}
	m.restoresFiles(id, w, 5, map[string][]byte{"weights": content})
}

// A member that is about to store chunks when the operator switches them off stores whole files, and so it does with the
// next steps.
func TestChunksAreSwitchedOffDuringAStep(t *testing.T) {
	t.Parallel()
	s := onChunks(newSite(t))
	m := s.machine("m1")
	id, w := m.trainsKeeping(2)
	var calls atomic.Int64
	around := func(next http.Handler, rw http.ResponseWriter, r *http.Request) {
		first := strings.HasPrefix(r.URL.Path, "/agent/v1/chunks") && calls.Add(1) == 1
		next.ServeHTTP(rw, r)
		if first { // the member has asked, and will store next
			s.chunks = false
			s.serves()
		}
	}
	s.gate.around.Store(&around)
	m.savesFiles(id, 1, 5, map[string][]byte{"weights": fresh(t, 3<<20)})
	if calls.Load() < 2 {
		t.Errorf("the member made %d calls about chunks, and did not begin to store any", calls.Load())
	}
	content := fresh(t, 3<<20)
	m.savesFiles(id, 1, 6, map[string][]byte{"weights": content})
	m.restoresFiles(id, w, 6, map[string][]byte{"weights": content})
}

// A store that a machine cannot use by signed addresses gets chunks through the server.
func TestChunksGoThroughTheServerWhereTheStoreIsOutOfReach(t *testing.T) {
	t.Parallel()
	s, b := newBucketSite(t)
	onChunks(s)
	m := s.machine("m1")
	id, w := m.trainsKeeping(2)
	refuse := func(_ http.Handler, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }
	b.disturb.Store(&refuse)
	content := fresh(t, 4<<20)
	m.savesFiles(id, 1, 5, map[string][]byte{"weights": content})
	if b.throughPut.Load() < int64(len(content)) {
		t.Errorf("%d bytes passed the control plane", b.throughPut.Load())
	}
	m.restoresFiles(id, w, 5, map[string][]byte{"weights": content})
}

// A lost chunk that a running job still has is stored again with its next checkpoint, which heals the ones before.
func TestALostChunkIsStoredAgainWithTheNextStep(t *testing.T) {
	t.Parallel()
	chunkSites(t, func(t *testing.T, s *site, _ *bucket) {
		m := s.machine("m1")
		id, w := m.trainsKeeping(5)
		base := fresh(t, 6<<20)
		m.savesFiles(id, 1, 1, map[string][]byte{"base": base})
		rows, err := s.db.Pool().Query(t.Context(), `SELECT encode(sha256, 'hex'), copy FROM chunks`)
		if err != nil {
			t.Fatal(err)
		}
		copies, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c wire.ChunkCopy, err error) {
			c = wire.ChunkCopy{Tenant: "default", Job: id, Attempt: 1}
			err = row.Scan(&c.SHA256, &c.Random)
			return c, err
		})
		if err != nil || len(copies) < 2 {
			t.Fatalf("%d chunks are stored, %v", len(copies), err)
		}
		for _, c := range copies[1:] {
			if err := s.blobs.Delete(t.Context(), c.Key()); err != nil {
				t.Fatal(err)
			}
			if _, err := s.db.Chunks.Broken(t.Context(), c); err != nil { // as the leader does
				t.Fatal(err)
			}
		}
		before := s.storedBytes()
		m.savesFiles(id, 1, 2, map[string][]byte{"base": base})
		if grown := s.storedBytes() - before; grown < int64(len(base))/2 {
			t.Errorf("step 2 has stored %d bytes, and %d chunks were lost", grown, len(copies)-1)
		}
		if _, err := s.db.Pool().Exec(t.Context(), `UPDATE checkpoints SET state = 'bad' WHERE step = 2`); err != nil {
			t.Fatal(err)
		}
		m.restoresFiles(id, w, 1, map[string][]byte{"base": base})
	})
}
