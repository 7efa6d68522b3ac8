package proof_test

import (
	"archive/tar"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/activities/node/runtimetest"
	"berth/activities/node/runtimetest/prog"
)

// The training below: its steps, and after how many it saves.
const (
	trainSteps = 60
	trainSave  = 5
)

func TestALostMachinesTrainingResumesElsewhereFromItsCheckpoint(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.machines = 2
	s.image = "berth-proof:1"
	s.flags = []string{"--engines", "private", "--agents", "2", "--cpus", "4", "--memory", "4GiB",
		"--image", s.image + "=" + rootFilesystem(t, s.dir)}
	s.start()

	spec := s.job("training", "train", "/checkpoint", fmt.Sprint(trainSteps), "200ms", fmt.Sprint(trainSave))
	spec.Entrypoint = []string{"/testprog"}
	spec.Checkpoint = &berth.CheckpointPolicy{Path: "/checkpoint"}
	spec.LostAfter = berth.Duration(5 * time.Second)
	id := s.submit(spec)
	var job berth.Job
	until(t, "a checkpoint is verified", func(ctx context.Context) (err error) {
		job, err = s.api.Job(ctx, id)
		if err == nil && !slices.ContainsFunc(job.Checkpoints, func(c berth.Checkpoint) bool { return c.State == berth.CheckpointVerified }) {
			err = fmt.Errorf("the job is %s, its checkpoints are %+v", job.Status, job.Checkpoints)
		}
		return err
	})
	lost := job.Attempts[0].Machines[0]
	if out, err := exec.CommandContext(t.Context(), program(t, "berth-dev"), "kill-machine", string(lost), "--dir", s.dir).CombinedOutput(); err != nil {
		t.Fatalf("kill machine %s: %v: %s", lost, err, out)
	}

	job = s.becomes(id, berth.Succeeded)
	if len(job.Attempts) != 2 || job.Failures != 0 {
		t.Fatalf("attempts are %+v, %d failures", job.Attempts, job.Failures)
	}
	first, second := job.Attempts[0], job.Attempts[1]
	if first.Outcome == nil || first.Outcome.Code != berth.ReasonMachineLost {
		t.Errorf("the first attempt ended by %+v, want %s", first.Outcome, berth.ReasonMachineLost)
	}
	if second.Machines[0] == lost {
		t.Errorf("the second attempt ran on %s, which is dead", lost)
	}
	if second.ResumeFrom == nil || *second.ResumeFrom <= 0 || *second.ResumeFrom >= trainSteps || *second.ResumeFrom%trainSave != 0 {
		t.Fatalf("the second attempt resumed from %v", second.ResumeFrom)
	}
	lines := s.log(id)
	if want := fmt.Sprintf("restored step %d", *second.ResumeFrom); !slices.Contains(lines, want) {
		t.Errorf("the log does not say %q: %q", want, lines)
	}
	if want := prog.TrainResult(trainSteps); len(lines) == 0 || lines[len(lines)-1] != want {
		t.Errorf("the last line is not %q, as without the loss: %q", want, lines)
	}
}

// rootFilesystem writes the test program as an image's root filesystem, which
// is how berth-dev takes images for its private engines.
func rootFilesystem(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "rootfs.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	program := runtimetest.Program(t)
	w := tar.NewWriter(f)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "testprog", Mode: 0o755, Size: int64(len(program))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(program); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}
