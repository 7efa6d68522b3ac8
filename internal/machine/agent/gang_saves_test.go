package agent_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// holdsReports refuses the reports of stored checkpoints of one rank until the returned function is called.
func (s *site) holdsReports(rank int) (release func()) {
	var free atomic.Bool
	s.gate.around.Store(ptr(func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		if !free.Load() && strings.HasSuffix(r.URL.Path, "/checkpoints") {
			body, err := io.ReadAll(r.Body)
			var p wire.CheckpointReport
			if err != nil || json.Unmarshal(body, &p) != nil {
				panic(http.ErrAbortHandler)
			}
			if p.Rank == rank {
				http.Error(w, "{}", http.StatusServiceUnavailable)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		next.ServeHTTP(w, r)
	}))
	return func() { free.Store(true) }
}

// manifests returns a function that counts the different manifests that a rank has sent so far, by folder.
func (s *site) manifests(rank int) func() map[string]int {
	var mu sync.Mutex
	sent := map[string]map[string]bool{}
	s.gate.watch.Store(ptr(func(body []byte) func() {
		var m wire.CheckpointManifest
		if json.Unmarshal(body, &m) == nil && m.Rank == rank && len(m.Files) > 0 {
			mu.Lock()
			defer mu.Unlock()
			folder := path.Dir(m.Files[0].Object)
			if sent[folder] == nil {
				sent[folder] = map[string]bool{}
			}
			sent[folder][string(body)] = true
		}
		return nil
	}))
	return func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		counts := map[string]int{}
		for folder, contents := range sent {
			counts[folder] = len(contents)
		}
		return counts
	}
}

// shards returns the hashes of the registered manifests of one rank in the first attempt, by step.
func (s *site) shards(id berth.JobID, rank int) map[int64]string {
	s.t.Helper()
	rows, err := s.db.Pool().Query(s.t.Context(), `SELECT step, sha256 FROM checkpoint_shards WHERE job = $1 AND attempt = 1 AND rank = $2`, id, rank)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	sums := map[int64]string{}
	for rows.Next() {
		var step int64
		var sum string
		if err := rows.Scan(&step, &sum); err != nil {
			s.t.Fatal(err)
		}
		sums[step] = sum
	}
	if rows.Err() != nil {
		s.t.Fatal(rows.Err())
	}
	return sums
}

// A member has registered its part of a step that others have not stored yet. A new process of its agent stores the
// part no second time: the manifest in the store stays the registered one.
func TestAPartOfAnUnfinishedStepStaysAsRegistered(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, m := s.meeting()
	id := s.submit(func(j *spec.Job) {
		j.Members, j.Checkpoint = 2, &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 100}
	}, "descend", "/checkpoint", "100000", "5ms", "20")
	release := s.holdsReports(1)
	written := s.manifests(0)
	attempt := s.placeGang(id, m[0], m[1])
	s.until("a part is registered", func() bool { return len(s.shards(id, 0)) > 0 })
	if err := m[0].stop(); err != nil {
		t.Fatal(err)
	}
	before := s.shards(id, 0)
	m[0].start()
	s.until("the new process registers a newer part", func() bool { return len(s.shards(id, 0)) > len(before) })
	for folder, n := range written() {
		if n > 1 {
			t.Errorf("the processes wrote %d different manifests in %s", n, folder)
		}
	}
	for step, sum := range before {
		key := berth.CheckpointKey("default", id, 1, 0, step) + "/" + berth.ManifestName
		body, err := os.ReadFile(filepath.Join(s.blobDir, filepath.FromSlash(key)))
		if err != nil {
			t.Fatal(err)
		}
		if got := sha256.Sum256(body); hex.EncodeToString(got[:]) != sum {
			t.Errorf("the manifest of step %d has the SHA-256 %x, and %s is registered", step, got, sum)
		}
	}
	release()
	s.until("a step is whole", func() bool { return len(s.verified(id)) > 0 })
	s.cancel(id)
	s.gangEnds(id, attempt)
}

// The store returns the newest step to one member of a gang and not to the other. Once the step is passed over, both
// members go on from the older one.
func TestAGangGoesOnTogetherFromTheStepBeforeOneThatIsPassedOver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	engine, m := s.meeting()
	m[1].impatient()
	id := s.submit(func(j *spec.Job) {
		j.Members, j.Checkpoint = 2, &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 3}
		j.Retry.MaxAttempts = 5
	}, "descend", "/checkpoint", "100000", "5ms", "20")
	attempt := s.placeGang(id, m[0], m[1])
	s.until("two steps are whole", func() bool { return len(s.verified(id)) >= 2 })
	if err := engine.Signal(t.Context(), berth.ContainerName(id, 1, attempt), "SIGKILL"); err != nil {
		t.Fatal(err)
	}
	s.gangEnds(id, attempt)
	if j := s.settle(id); j.Status != berth.Retrying {
		t.Fatalf("the gang is %s: %+v", j.Status, j.Reason)
	}
	steps := s.verified(id)
	s.answers(http.StatusServiceUnavailable, http.MethodGet, berth.CheckpointKey("default", id, 1, 1, steps[0])+"/")
	for try := range 3 {
		if s.hasEvent(id, wire.EventCheckpointPassedOver, "") {
			t.Fatalf("the step is passed over after %d attempts", try)
		}
		s.eligible(id)
		attempt = s.placeGang(id, m[0], m[1])
		s.until("the other member is stopped", func() bool {
			stopped, err := s.db.Attempts.Stop(t.Context(), id, attempt)
			return err == nil && stopped
		})
		s.db.Hub().Publish(db.TopicMachine, "m1", "m2")
		s.gangEnds(id, attempt)
		if j := s.settle(id); j.Status != berth.Retrying || j.Losses != try+1 {
			t.Fatalf("the gang is %s with %d losses: %+v", j.Status, j.Losses, j.Reason)
		}
		if log := s.log(id, attempt); len(log) != 0 {
			t.Errorf("a member began without the other: %q", log)
		}
	}
	if !s.hasEvent(id, wire.EventCheckpointPassedOver, fmt.Sprintf("step %d of attempt 1", steps[0])) {
		t.Errorf("events: %+v", s.events(id))
	}
	s.eligible(id)
	attempt = s.placeGang(id, m[0], m[1])
	s.until("the gang goes on", func() bool { return len(s.log(id, attempt)) > 0 })
	if got, want := s.log(id, attempt)[0], fmt.Sprintf("together at step %d", steps[1]); got != want {
		t.Errorf("the gang goes on %q, want %q; checkpoints were %v", got, want, steps)
	}
	s.cancel(id)
	s.gangEnds(id, attempt)
}
