package agent_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// flock are three machines that share an engine.
type flock struct {
	*site
	engine *fakeruntime.Fake
	on     []*machine
}

func (s *site) flock() *flock {
	s.t.Helper()
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	s.t.Cleanup(engine.Shutdown)
	f := &flock{site: s, engine: engine}
	for _, id := range []berth.MachineID{"m1", "m2", "m3"} {
		f.on = append(f.on, s.machineOn(id, engine))
	}
	return f
}

// begins places the next attempt of a job, and waits until all its members run.
func (f *flock) begins(id berth.JobID, members int) (attempt int) {
	f.t.Helper()
	f.until("the backoff is over", func() bool {
		at := f.job(id).EligibleAt
		return at == nil || time.Now().After(*at)
	})
	attempt = f.placeGang(id, f.on[:members]...)
	f.until("the members run", func() bool {
		for rank := range members {
			c, err := f.engine.Inspect(f.t.Context(), berth.ContainerName(id, rank, attempt))
			if err != nil || c.State != node.ContainerRunning {
				return false
			}
		}
		return true
	})
	return attempt
}

// step is the path of a file in a step in a member's folder.
func (f *flock) step(id berth.JobID, rank, attempt int, step int64, name string) string {
	return filepath.Join(f.on[rank].cfg.StateDir, "ranks", berth.ContainerName(id, rank, attempt),
		fmt.Sprintf("checkpoint/step-%d", step), name)
}

// save lets each member save a step with one file, and waits until the step is verified.
func (f *flock) save(id berth.JobID, attempt int, step int64, contents ...[]byte) {
	f.t.Helper()
	for rank, content := range contents {
		weights := f.step(id, rank, attempt, step, "model/weights")
		if err := os.MkdirAll(filepath.Dir(weights), 0o755); err != nil {
			f.t.Fatal(err)
		}
		done := f.step(id, rank, attempt, step, "DONE")
		if err := errorsJoin(os.WriteFile(weights, content, 0o644), os.WriteFile(done, nil, 0o644)); err != nil {
			f.t.Fatal(err)
		}
	}
	f.on[0].saved(id, step)
}

// fails ends the attempt of a job by its last member.
func (f *flock) fails(id berth.JobID, attempt, members int) {
	f.t.Helper()
	f.engine.Exit(berth.ContainerName(id, members-1, attempt), 1)
	f.until("the others are stopped", func() bool {
		stopped, err := f.db.Attempts.Stop(f.t.Context(), id, attempt)
		return members == 1 || err == nil && stopped
	})
	f.db.Hub().Publish(db.TopicMachine, "m1", "m2", "m3")
	f.gangEnds(id, attempt)
	if j := f.settle(id); j.Status != berth.Retrying {
		f.t.Fatalf("job is %s, %+v", j.Status, j.Reason)
	}
}

// printsRestored is a program that lists the restored files, and then runs on.
var printsRestored = []string{"do", "env BERTH_RESTORED_STEP BERTH_RESTORED_MEMBERS", "sleep 1h"}

// sharded is a gang of two members that has saved step 7 and was canceled.
func (f *flock) sharded(contents ...[]byte) berth.JobID {
	f.t.Helper()
	id := f.submit(func(j *spec.Job) { checkpointed(3)(j); j.Members = len(contents) }, printsRestored...)
	attempt := f.begins(id, len(contents))
	f.save(id, attempt, 7, contents...)
	f.cancel(id)
	f.db.Hub().Publish(db.TopicMachine, "m1", "m2", "m3")
	f.gangEnds(id, attempt)
	f.settle(id)
	return id
}

// resharded is a job of other members that starts from step 7 of another job.
func (f *flock) resharded(source berth.JobID, members int) berth.JobID {
	f.t.Helper()
	step := int64(7)
	return f.submit(func(j *spec.Job) {
		checkpointed(3)(j)
		j.Members, j.Checkpoint.Reshard = members, spec.ReshardAll
		j.Checkpoint.From = spec.StepRef{Job: source, Step: &step}.String()
	}, printsRestored...)
}

// prints waits for the first lines of member 0.
func (f *flock) prints(id berth.JobID, attempt int, want ...string) {
	f.t.Helper()
	f.until("member 0 prints", func() bool { return len(f.log(id, attempt)) >= len(want) })
	if got := f.log(id, attempt)[:len(want)]; !slices.Equal(got, want) {
		f.t.Errorf("attempt %d prints %q, want %q", attempt, got, want)
	}
}

func TestEachMemberGetsThePartsOfAllMembers(t *testing.T) {
	t.Parallel()
	sites := map[string]func(t *testing.T) *site{
		"files":        newSite,
		"bucket":       func(t *testing.T) *site { s, _ := newBucketSite(t); return s },
		"chunks":       func(t *testing.T) *site { return onChunks(newSite(t)) },
		"bucket chunk": func(t *testing.T) *site { s, _ := newBucketSite(t); return onChunks(s) },
	}
	for name, site := range sites {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := site(t).flock()
			parts := [][]byte{fresh(t, 3<<20), fresh(t, 3<<20+1)}
			source := f.sharded(parts...)
			for _, members := range []int{3, 1} {
				f.trainsResharded(source, parts, members)
			}
		})
	}
}

// trainsResharded runs a job of other members in three attempts: two restore all parts of the source, and the third one
// the step that the second one has saved.
func (f *flock) trainsResharded(source berth.JobID, parts [][]byte, members int) {
	f.t.Helper()
	id := f.resharded(source, members)
	attempt := 0
	for range 2 {
		if attempt > 0 {
			f.fails(id, attempt, members)
		}
		attempt = f.begins(id, members)
		f.prints(id, attempt, "BERTH_RESTORED_STEP=7", "BERTH_RESTORED_MEMBERS=2")
		for rank := range members {
			for of, want := range parts {
				got, err := os.ReadFile(f.step(id, rank, attempt, 7, fmt.Sprintf("member-%d/model/weights", of)))
				if err != nil || !bytes.Equal(got, want) {
					f.t.Errorf("member %d of %d has %d bytes of the part of member %d: %v", rank, members, len(got), of, err)
				}
			}
			for _, name := range []string{"DONE", "member-0/DONE", "member-1/DONE"} {
				if _, err := os.Stat(f.step(id, rank, attempt, 7, name)); err != nil {
					f.t.Error(err)
				}
			}
		}
	}
	if !f.hasEvent(id, wire.EventRestored, fmt.Sprintf("of job %s with the parts of 2 members", source)) {
		f.t.Errorf("events: %+v", f.events(id))
	}
	own := make([][]byte, members)
	for rank := range own {
		own[rank] = fmt.Appendf(nil, "part %d", rank)
	}
	f.save(id, attempt, 8, own...)
	f.fails(id, attempt, members)
	attempt = f.begins(id, members)
	f.prints(id, attempt, "BERTH_RESTORED_STEP=8", "BERTH_RESTORED_MEMBERS=")
	for rank := range members {
		if got, err := os.ReadFile(f.step(id, rank, attempt, 8, "model/weights")); err != nil || !bytes.Equal(got, own[rank]) {
			f.t.Errorf("member %d has %q of its own step: %v", rank, got, err)
		}
	}
	if got := f.verified(id); !slices.Equal(got, []int64{8}) {
		f.t.Errorf("verified steps are %v; the restored one is none of the job", got)
	}
	f.cancel(id)
	f.db.Hub().Publish(db.TopicMachine, "m1", "m2", "m3")
	f.gangEnds(id, attempt)
	f.settle(id)
}

// partFiles lists the stored files of a member's part of step 7.
func (f *flock) partFiles(id berth.JobID, rank int) []string {
	f.t.Helper()
	files, err := filepath.Glob(filepath.Join(f.blobDir, filepath.FromSlash(berth.CheckpointKey("default", id, 1, rank, 7)), "file-*"))
	if err != nil || len(files) == 0 {
		f.t.Fatal(files, err)
	}
	return files
}

// endsWithoutRestore runs a job of one member, which must end before its container starts.
func (f *flock) endsWithoutRestore(source berth.JobID) wire.Job {
	f.t.Helper()
	id := f.resharded(source, 1)
	f.gangEnds(id, f.placeGang(id, f.on[0]))
	return f.settle(id)
}

func (f *flock) stepState(id berth.JobID) berth.CheckpointState {
	return f.job(id).Checkpoints[0].State
}

func TestADamagedPartOfAnotherMemberIsNamed(t *testing.T) {
	t.Parallel()
	for says, damage := range map[string]func(string) error{
		"part of member 1: model/weights: the sha256": func(path string) error { return os.WriteFile(path, []byte("PART 1"), 0o600) },
		"part of member 1: model/weights is missing":  os.Remove,
	} {
		f := newSite(t).flock()
		source := f.sharded([]byte("part 0"), []byte("part 1"))
		for _, path := range f.partFiles(source, 1) {
			if b, err := os.ReadFile(path); err != nil || string(b) != "part 1" {
				continue
			}
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
		}
		j := f.endsWithoutRestore(source)
		if j.Status != berth.Failed || j.Reason.Code != berth.ReasonCheckpointCorrupt || !strings.Contains(j.Reason.Message, says) {
			t.Errorf("job is %s, %+v, want %q", j.Status, j.Reason, says)
		}
		if got := f.stepState(source); got != berth.CheckpointBad {
			t.Errorf("the step is %s", got)
		}
	}
}

// A server of the version before lets a machine read the part of its own number alone. Its refusal proves no damage.
func TestARefusedPartOfAnotherMemberIsNoDamage(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"manifest": berth.ManifestName, "file": "file-"} {
		f := newSite(t).flock()
		source := f.sharded([]byte("part 0"), []byte("part 1"))
		f.on[0].impatient()
		around := func(next http.Handler, w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/rank-1/") && strings.Contains(r.URL.Path, path) {
				r.URL.Path = strings.Replace(r.URL.Path, "/rank-1/", "/rank-7/", 1) // a part that no claim names
			}
			next.ServeHTTP(w, r)
		}
		f.gate.around.Store(&around)
		j := f.endsWithoutRestore(source)
		if j.Status != berth.Retrying || j.Reason.Code != berth.ReasonMachineError || !strings.Contains(j.Reason.Message, "part of member 1") {
			t.Errorf("%s: job is %s, %+v", name, j.Status, j.Reason)
		}
		if got := f.stepState(source); got != berth.CheckpointVerified {
			t.Errorf("%s: the step is %s", name, got)
		}
	}
}

func TestPartsWithoutRoomAreNotFetched(t *testing.T) {
	t.Parallel()
	f := newSite(t).flock()
	source := f.sharded([]byte("part 0"), []byte("part 1"))
	f.on[0].cfg.DiskReserve = 100
	f.on[0].restart()
	j := f.endsWithoutRestore(source)
	if j.Status != berth.Retrying || j.Reason.Code != berth.ReasonMachineError ||
		!strings.Contains(j.Reason.Message, "the parts of 2 members have 12 bytes, and the machine has ") {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	if got := f.stepState(source); got != berth.CheckpointVerified {
		t.Errorf("the step is %s", got)
	}
}
