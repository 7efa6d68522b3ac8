package api_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"berth"
	"berth/spec"
	"berth/wire"
)

// save stores a checkpoint of the rank that the agent holds, and registers it.
func (a *agent) save(job wire.Job, step int64, files ...string) {
	a.t.Helper()
	folder := berth.CheckpointKey(job.Tenant, job.ID, a.run.Attempt, 0, step)
	m := wire.CheckpointManifest{Job: job.ID, Attempt: a.run.Attempt, Step: step}
	put := func(key, content string) {
		a.t.Helper()
		if got := a.call(string(a.machine), "PUT", "/agent/v1/objects/"+key, content); got.status >= 300 {
			a.t.Fatalf("%s: %d %s", key, got.status, got.body)
		}
	}
	for i, content := range files {
		sum := sha256.Sum256([]byte(content))
		f := wire.CheckpointFile{Path: fmt.Sprint("file", i), Object: fmt.Sprintf("%s/file-%06d", folder, i),
			Bytes: int64(len(content)), SHA256: hex.EncodeToString(sum[:]), Mode: 0o644}
		put(f.Object, content)
		m.Files = append(m.Files, f)
	}
	body, err := json.Marshal(m)
	if err != nil {
		a.t.Fatal(err)
	}
	put(folder+"/"+berth.ManifestName, string(body))
	sum := sha256.Sum256(body)
	if got := a.post("checkpoints", wire.CheckpointReport{AgentBoot: a.boot, Epoch: a.epoch, Alloc: a.run.Alloc,
		Job: job.ID, Attempt: a.run.Attempt, OfAttempt: a.run.Attempt, Step: step,
		Manifest: folder + "/" + berth.ManifestName,
		SHA256:   hex.EncodeToString(sum[:]), Bytes: 9}, nil); got.status >= 300 {
		a.t.Fatalf("%d %s", got.status, got.body)
	}
}

func TestACheckpointIsDownloadedByItsOwner(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", func(j *spec.Job) { j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint"} })
	a.take(job.ID)
	a.save(job, 5, "weights", "ok")
	c := s.as("alice")
	files, err := c.CheckpointFiles(t.Context(), job.ID, 5, 0)
	if err != nil || files.Members != 1 || files.Attempt != 1 || len(files.Files) != 2 ||
		files.Files[0].Path != "file0" || files.Files[0].Bytes != 7 {
		t.Fatalf("files are %+v, %v", files, err)
	}
	in, err := c.CheckpointFile(t.Context(), job.ID, files, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if got, err := io.ReadAll(in); err != nil || string(got) != "weights" {
		t.Errorf("downloaded %q, %v", got, err)
	}
	path := "/v1/jobs/" + string(job.ID) + "/checkpoints/5/members/0"
	for _, r := range []struct {
		who, at string
		status  int
	}{
		{"bob", path, 404}, {"bob", path + "/files/0", 404}, {"alice", path + "/files/2", 404},
		{"alice", path + "/files/0?attempt=2", 409}, {"alice", strings.Replace(path, "/5/", "/6/", 1), 404},
		{"alice", strings.Replace(path, "members/0", "members/1", 1), 404},
		{"viewer", path + "/files/1", 200},
	} {
		if got := s.call(r.who, "GET", r.at, ""); got.status != r.status {
			t.Errorf("%s gets %s: %d %s, want %d", r.who, r.at, got.status, got.body, r.status)
		}
	}
	// Objects of a registered part never change: the machine's second manifest is dropped.
	key := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5) + "/" + berth.ManifestName
	if got := a.call(string(a.machine), "PUT", "/agent/v1/objects/"+key, "{}"); got.status != http.StatusNoContent {
		t.Errorf("a second manifest: %d %s", got.status, got.body)
	}
	if _, err := c.CheckpointFiles(t.Context(), job.ID, 5, 0); err != nil {
		t.Errorf("after a second manifest: %v", err)
	}
	// A manifest that is not the registered one is not shown.
	if _, err := s.blobs.Put(t.Context(), key, strings.NewReader("{}"), 2); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CheckpointFiles(t.Context(), job.ID, 5, 0); berth.CodeOf(err) != berth.CodeConflict ||
		!strings.Contains(err.Error(), "is damaged") {
		t.Errorf("a replaced manifest: %v", err)
	}
}

func TestACheckpointIsPinnedAndRemoved(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", func(j *spec.Job) { j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 1} })
	a.take(job.ID)
	c := s.as("alice")
	a.save(job, 5, "a")
	for range 2 {
		if p, err := c.PinCheckpoint(t.Context(), job.ID, 5); err != nil || !p.Pinned || p.Step != 5 {
			t.Fatalf("pinned %+v, %v", p, err)
		}
	}
	a.save(job, 6, "b")
	list, err := c.Checkpoints(t.Context(), job.ID)
	if err != nil || len(list.Items) != 2 || list.Items[1].State != berth.CheckpointVerified || !list.Items[1].Pinned {
		t.Errorf("checkpoints are %+v, %v", list, err)
	}
	if err := c.RemoveCheckpoint(t.Context(), job.ID, 6); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("removed from a live job: %v", err)
	}
	s.exec(`UPDATE allocations SET state = 'released' WHERE id = $1`, int64(a.run.Alloc))
	for _, state := range []berth.State{berth.Canceling, berth.Canceled} {
		s.exec(`UPDATE jobs SET state = $2, version = version + 1 WHERE id = $1`, job.ID, state)
	}
	if err := c.RemoveCheckpoint(t.Context(), job.ID, 5); berth.CodeOf(err) != berth.CodeConflict ||
		!strings.Contains(err.Error(), "pinned") {
		t.Errorf("removed although pinned: %v", err)
	}
	if p, err := c.UnpinCheckpoint(t.Context(), job.ID, 5); err != nil || p.Pinned {
		t.Errorf("unpinned %+v, %v", p, err)
	}
	for range 2 {
		path := "/v1/jobs/" + string(job.ID) + "/checkpoints/5"
		if got := s.call("alice", "DELETE", path, ""); got.status != http.StatusNoContent {
			t.Errorf("removed: %d %s", got.status, got.body)
		}
	}
	if _, err := c.CheckpointFiles(t.Context(), job.ID, 5, 0); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("files of a removed checkpoint: %v", err)
	}
}

// TestTheIntervalIsAdvisedFromSavesAndLosses stores three checkpoints with the times that an agent measured, and a
// history of the machine, and asks for advice.
func TestTheIntervalIsAdvisedFromSavesAndLosses(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", func(j *spec.Job) { j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint"} })
	a.take(job.ID)
	for step := range int64(3) {
		a.save(job, step, "weights")
	}
	c := s.as("alice")
	if got, err := c.CheckpointInterval(t.Context(), job.ID); err != nil || got.AdvisedSeconds != 0 || got.Machines != 1 {
		t.Errorf("without measured times: %+v, %v", got, err)
	}
	s.exec(`UPDATE checkpoints SET write_ms = 40000, store_ms = 1500, created_at = now() + step * interval '2 minutes'`)
	// With the time in service before any measurement, 300 days, this is a loss in 320 / 2 days.
	s.exec(`INSERT INTO machine_events (machine_id, seq, state, at) VALUES
		('m1', -3, 'ready', now() - interval '25 days'), ('m1', -2, 'lost', now() - interval '5 days')`)
	got, err := c.CheckpointInterval(t.Context(), job.ID)
	if err != nil || got.SaveSeconds != 40 || got.StoreSeconds != 1.5 || got.PresentSeconds != 120 || got.LostMachines != 1 ||
		math.Abs(got.LossSeconds/(160*24*3600)-1) > 0.01 || math.Abs(got.AdvisedSeconds/math.Sqrt(2*40*160*24*3600)-1) > 0.01 {
		t.Errorf("advice is %+v, %v", got, err)
	}
	list, err := c.Checkpoints(t.Context(), job.ID)
	if err != nil || list.Items[0].Write == nil || *list.Items[0].Write != 40 || *list.Items[0].Store != 1.5 {
		t.Errorf("checkpoints are %+v, %v", list, err)
	}
	if got := s.call("bob", "GET", "/v1/jobs/"+string(job.ID)+"/checkpoint-interval", ""); got.status != 404 {
		t.Errorf("another tenant: %d %s", got.status, got.body)
	}
}
