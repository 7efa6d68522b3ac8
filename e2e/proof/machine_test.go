package proof_test

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"berth"
	"berth/activities/node/runtimetest"
	"berth/activities/node/runtimetest/prog"
	"berth/spec"
	"berth/wire"
)

// trainSave is after how many steps the training below saves.
const trainSave = 5

func TestALostMachinesTrainingResumesElsewhereFromItsCheckpoint(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.machines = 2
	s.image = "berth-proof:1"
	s.flags = []string{"--engines", "private", "--agents", "2", "--cpus", "4", "--memory", "4GiB",
		"--image", s.image + "=" + rootFilesystem(t, s.dir)}
	s.start()

	jobSpec := s.job("training", "train", "/checkpoint", "100000", "250ms", fmt.Sprint(trainSave)) // it does not end before the test is ready
	jobSpec.Entrypoint = []string{"/testprog"}
	jobSpec.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint"}
	jobSpec.LostAfter = spec.Duration(patience) // a killed agent is back by then
	id := s.submit(jobSpec)
	f := s.follow(id)
	s.killAgentOf(id, f)
	var job wire.Job
	until(t, "a checkpoint is verified", func(ctx context.Context) (err error) {
		job, err = s.api.Job(ctx, id)
		if err == nil && !slices.ContainsFunc(job.Checkpoints, func(c berth.Checkpoint) bool { return c.State == berth.CheckpointVerified }) {
			err = fmt.Errorf("the job is %s, its checkpoints are %+v", job.Status, job.Checkpoints)
		}
		return err
	})
	// The next attempt comes to an end, which this one will not reach.
	trainSteps := int(slices.MaxFunc(job.Checkpoints, func(a, b berth.Checkpoint) int { return cmp.Compare(a.Step, b.Step) }).Step) + 400
	s.query(`UPDATE job_specs SET spec = jsonb_set(jsonb_set(spec, '{command,2}', to_jsonb($2::text)), '{command,3}', '"5ms"') WHERE job = $1`, id, fmt.Sprint(trainSteps))
	lost := job.Attempts[0].Machines[0]
	if out, err := exec.CommandContext(t.Context(), program(t, "berth-dev"), "kill-machine", string(lost), "--dir", s.dir).CombinedOutput(); err != nil {
		t.Fatalf("kill machine %s: %v: %s", lost, err, out)
	}
	s.loseAfter(partLost, id)
	s.placedAgain(id)
	s.loseAfter(patience, id)

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
	if second.ResumeFrom == nil || *second.ResumeFrom <= 0 || *second.ResumeFrom >= int64(trainSteps) || *second.ResumeFrom%trainSave != 0 {
		t.Fatalf("the second attempt resumed from %v", second.ResumeFrom)
	}
	lines := s.log(id)
	if want := fmt.Sprintf("restored step %d", *second.ResumeFrom); !slices.Contains(lines, want) {
		t.Errorf("the log does not say %q: %q", want, lines)
	}
	if want := prog.TrainResult(trainSteps); len(lines) == 0 || lines[len(lines)-1] != want {
		t.Errorf("the last line is not %q, as without the loss: %q", want, lines)
	}
	whole := trainLog(trainSteps)
	rest := whole[slices.Index(whole, fmt.Sprintf("step %d", *second.ResumeFrom+1)):]
	f.want([][]string{whole, slices.Concat([]string{fmt.Sprintf("restored step %d", *second.ResumeFrom)}, rest)})
}

// trainLog is the output of the training without interruption.
func trainLog(steps int) (lines []string) {
	for i := 1; i <= steps; i++ {
		lines = append(lines, fmt.Sprintf("step %d", i))
		if i%trainSave == 0 {
			lines = append(lines, fmt.Sprintf("saved step %d", i))
		}
	}
	return append(lines, prog.TrainResult(steps))
}

// killAgentOf kills the agent of a job's machine in the middle of its log, and returns when the
// lines printed since have come.
func (s *stack) killAgentOf(id berth.JobID, f *follower) {
	s.t.Helper()
	f.await(3)
	job := s.becomes(id, berth.Running)
	file := filepath.Join(s.dir, "machines", string(job.Attempts[0].Machines[0]), "agent.pid")
	text, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		s.t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	until(s.t, "another agent is there", func(context.Context) error {
		if now, err := os.ReadFile(file); err != nil || string(now) == string(text) {
			return errors.Join(err, errNotYet)
		}
		return nil
	})
	f.await(f.count() + 5)
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
