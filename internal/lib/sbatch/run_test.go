package sbatch_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/lib/sbatch"
)

// runs runs a translated script as a container would: entrypoint and command in the
// environment of one member. It returns the standard output and the exit code.
func runs(t *testing.T, text string, args []string, env ...string) (out, messages string, code int) {
	t.Helper()
	s, err := sbatch.Parse("job.sh", text)
	if err != nil {
		t.Fatal(err)
	}
	r := sbatch.Translate(s, sbatch.Settings{Image: "debian:12", Args: args, Now: now})
	if len(r.Wrong) > 0 {
		t.Fatal(says(r.Wrong))
	}
	list := slices.Concat(r.Job.Entrypoint, r.Job.Command)
	cmd := exec.CommandContext(t.Context(), list[0], list[1:]...)
	cmd.Dir = t.TempDir()
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir(), "BERTH_JOB_ID=0190b5a0", "BERTH_ATTEMPT=1",
		"BERTH_MEMBER=0", "BERTH_MEMBERS=1", "BERTH_PEERS=127.0.0.1:29500"}, env...)
	for name, value := range r.Job.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return stdout.String(), stderr.String(), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), 0
}

func TestTheScriptRunsWithItsArgumentsAndVariables(t *testing.T) {
	t.Parallel()
	out, messages, code := runs(t, `#!/bin/bash
#SBATCH --job-name="It's one" --ntasks=2 --cpus-per-task=3 --mem=1G --gpus=2 --export=LR=0.1 --array=10-20:5
[[ $BASH_VERSION ]] && echo "bash, $1, $2, $#"
echo "$SLURM_JOB_ID/$SLURM_JOB_NAME/$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT/$SLURM_ARRAY_TASK_MIN/$SLURM_ARRAY_TASK_STEP"
echo "$SLURM_NTASKS/$SLURM_CPUS_PER_TASK/$SLURM_CPUS_ON_NODE/$SLURM_MEM_PER_NODE/$SLURM_GPUS_ON_NODE/$LR/$SLURM_RESTART_COUNT"
echo "$SLURM_NNODES/$SLURM_NODEID/$SLURM_PROCID/$SLURM_JOB_NODELIST"
[ "$SLURM_SUBMIT_DIR" = "$PWD" ] && exit 7
`, []string{"a b", "c'd"}, "BERTH_ARRAY_INDEX=1", "BERTH_ARRAY_SIZE=3", "BERTH_ATTEMPT=3")
	want := "bash, a b, c'd, 2\n0190b5a0/It's one/15/3/10/5\n2/3/6/1024/2/0.1/2\n1/0/0/127.0.0.1\n"
	if diff := cmp.Diff(want, out); diff != "" || code != 7 {
		t.Errorf("exit code %d, %s\n(-want +got)\n%s", code, messages, diff)
	}
}

func TestTheScriptRunsWithItsOwnInterpreter(t *testing.T) {
	t.Parallel()
	out, messages, code := runs(t, "#!/usr/bin/env -S awk -f\nBEGIN { print ENVIRON[\"SLURM_JOB_NAME\"] }\n", nil)
	if out != "job.sh\n" || code != 0 {
		t.Errorf("exit code %d, output %q, %s", code, out, messages)
	}
}

// srun starts each task once, with its number and its GPUs, and returns the highest exit code.
func TestSrunStartsTheTasksOfItsMember(t *testing.T) {
	t.Parallel()
	const script = `#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=3 --gpus-per-task=2 --mem=1G
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --label sh -c 'echo "$0 $SLURM_PROCID of $SLURM_NTASKS, $SLURM_LOCALID: $CUDA_VISIBLE_DEVICES"; exit $SLURM_LOCALID' "$head"
`
	out, messages, code := runs(t, script, nil, "BERTH_MEMBER=1", "BERTH_MEMBERS=2", "BERTH_PEERS=10.0.0.4:1,10.0.0.5:2")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	want := []string{"10.0.0.4 3 of 6, 0: 0,1", "10.0.0.4 4 of 6, 1: 2,3", "10.0.0.4 5 of 6, 2: 4,5"}
	if diff := cmp.Diff(want, lines); diff != "" || code != 2 {
		t.Errorf("exit code %d, %s\n(-want +got)\n%s", code, messages, diff)
	}
}

// In a job of one node srun may start another number of tasks. With -K the failure of one task
// ends the others, which would sleep for longer than the test runs.
func TestSrunTakesOptions(t *testing.T) {
	t.Parallel()
	out, messages, code := runs(t, `#!/bin/sh
#SBATCH --mem=1G
srun -n 2 --cpu-bind=none -c4 sh -c 'echo "$SLURM_CPUS_PER_TASK"'
srun -N1 -n1 echo one
srun -K -n3 sh -c '[ "$SLURM_LOCALID" = 1 ] && exit 9; exec sleep 3600'
echo "$?"
`, nil)
	if out != "4\n4\none\n143\n" || code != 0 {
		t.Errorf("exit code %d, output %q, %s", code, out, messages)
	}
}

// Each task reads the standard input of srun, as in Slurm.
func TestTasksReadTheInputOfSrun(t *testing.T) {
	t.Parallel()
	out, messages, code := runs(t, "#!/bin/sh\n#SBATCH -n 3 --mem=1G\nsrun cat <<EOF\ntext\nEOF\nsrun -n1 cat <<EOF\none\nEOF\n", nil)
	if out != "text\ntext\ntext\none\n" || code != 0 {
		t.Errorf("exit code %d, output %q, %s", code, out, messages)
	}
}

// Options that one container cannot honour end srun with an error, also where the submit could
// not see the option.
func TestSrunRefusesOtherOptions(t *testing.T) {
	t.Parallel()
	differs := map[string]string{
		"-N1":          "srun: -N 1 differs from the job's 2 nodes\n",
		"-n1":          "srun: -n 1 differs from the job's 2 tasks\n",
		"--gres=gpu:1": "srun: --gres gpu:1 differs from the member's 2 GPUs\n",
	}
	for _, options := range []string{"-w node1", "--nodelist=node1", "--pty", "--exclusive", "--multi-prog", "--mpi=pmix", "-N1", "-n1",
		"--export=NONE", "--gres=gpu:1"} {
		out, messages, code := runs(t, "#!/bin/bash\n#SBATCH -N2 --gpus-per-node=2 --mem=1G\noptions='"+options+"'\nsrun $options echo started\n", nil, "BERTH_MEMBERS=2")
		want, ok := differs[options]
		if !ok {
			want = "srun: option " + options[:2]
		}
		if code != 2 || out != "" || !strings.Contains(messages, want) {
			t.Errorf("srun %s: exit code %d, output %q, messages %q; want %q", options, code, out, messages, want)
		}
	}
}

// A job with --no-requeue fails where Berth starts it again after the loss of its machine.
func TestNoRequeueRunsOnce(t *testing.T) {
	t.Parallel()
	const script = "#!/bin/sh\n#SBATCH --no-requeue --mem=1G\necho runs\n"
	if out, messages, code := runs(t, script, nil); out != "runs\n" || code != 0 {
		t.Errorf("first attempt: exit code %d, output %q, %s", code, out, messages)
	}
	if out, messages, code := runs(t, script, nil, "BERTH_ATTEMPT=2"); out != "" || code != 1 || !strings.Contains(messages, "--no-requeue") {
		t.Errorf("second attempt: exit code %d, output %q, %s", code, out, messages)
	}
}

// Variables lists exactly the variables that a preamble sets.
func TestVariablesMatchThePreamble(t *testing.T) {
	t.Parallel()
	r := translateText(t, "#!/bin/sh\n#SBATCH -N2 --gpus-per-task=1 --mem=1G -a 0-3 -A a -p b -q c\nsrun true\n")
	rest := translate(t, "--mem-per-cpu=1G").Job.Entrypoint[2] + translate(t, "--mem-per-gpu=1G --gpus=1").Job.Entrypoint[2]
	for _, name := range sbatch.Variables {
		if !strings.Contains(r.Job.Entrypoint[2]+rest, name+"=") {
			t.Errorf("no preamble sets %s", name)
		}
	}
	if !slices.IsSorted(sbatch.Variables) {
		t.Error("Variables is not in order")
	}
}
