package sbatch_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/lib/sbatch"
	"berth/spec"
)

// now is the time of all translations.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// translate translates a script of one line of options, with an image.
func translate(t testing.TB, options string) sbatch.Result {
	t.Helper()
	return translateText(t, "#!/bin/sh\n#SBATCH "+options+"\nsrun true\n")
}

func translateText(t testing.TB, text string) sbatch.Result {
	t.Helper()
	s, err := sbatch.Parse("job.sh", text)
	if err != nil {
		t.Fatal(err)
	}
	return sbatch.Translate(s, sbatch.Settings{Image: "debian:12", Now: now, Lookup: func(string) (string, bool) { return "", false }})
}

// says returns the findings as lines.
func says(list []sbatch.Finding) string {
	var b strings.Builder
	for _, f := range list {
		fmt.Fprintf(&b, "%d %s: %s\n", f.Line, f.What, f.Text)
	}
	return b.String()
}

func TestTimeLimitsOfSlurm(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"90": "1h30m", "10:30": "11m", "10:00": "10m", "1:30:00": "1h30m", "36:00:00": "36h", "0:00:01": "1m",
		"2-0": "48h", "1-12": "36h", "1-12:30": "36h30m", "1-00:00:01": "24h1m", "0-00:05": "5m",
		"0": "0s", "INFINITE": "0s", "unlimited": "0s",
	} {
		r := translate(t, "--time="+text)
		if len(r.Wrong) > 0 || r.Job.TimeLimit.String() != want {
			t.Errorf("--time=%s is %s, want %s; %s", text, r.Job.TimeLimit, want, says(r.Wrong))
		}
	}
	for _, text := range []string{"", "x", "1-", "-1", "1:2:3:4", "1-1:2:3:4", "1h", "1:", ":1", "+1", "1.5", "999999"} {
		if r := translate(t, "'--time="+text+"'"); len(r.Wrong) != 1 || r.Wrong[0].Line != 2 {
			t.Errorf("--time=%s is %s; faults: %s", text, r.Job.TimeLimit, says(r.Wrong))
		}
	}
}

func TestAmountsOfMemory(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]spec.MiB{
		"--mem=100": 100, "--mem=100M": 100, "--mem=16G": 16384, "--mem=16g": 16384, "--mem=1T": 1 << 20, "--mem=1500K": 2,
		"--mem=4GB": 4096, "--mem-per-cpu=2G --ntasks=4 --cpus-per-task=2": 16384, "--mem-per-gpu=10G --gres=gpu:3": 30720,
		"--mem-per-cpu=1G -N2 --ntasks-per-node=4": 4096, "--mem-per-cpu=1G --cpus-per-gpu=6 --gpus=2": 12288,
	} {
		r := translate(t, options)
		if len(r.Wrong) > 0 || r.Job.Resources.Memory == nil || *r.Job.Resources.Memory != want {
			t.Errorf("%s: memory is %v, want %v; %s", options, r.Job.Resources.Memory, want, says(r.Wrong))
		}
	}
	for _, options := range []string{"--mem=1.5G", "--mem=G", "--mem=-1", "--mem=1X", "--mem=9999T", "--mem=1G --mem-per-cpu=1G", "--mem-per-gpu=1G"} {
		if r := translate(t, options); len(r.Wrong) == 0 {
			t.Errorf("%s: no fault", options)
		}
	}
	if r := translate(t, "--mem=0"); len(r.Refused) != 1 {
		t.Errorf("--mem=0, which is all memory of the node: %s", says(r.Refused))
	}
}

// A node becomes a member, and the tasks of a node share the resources of the member.
func TestNodesAndTasks(t *testing.T) {
	t.Parallel()
	for options, want := range map[string][3]int{ // members, CPUs, GPUs
		"":                                    {0, 1, 0},
		"--ntasks=4":                          {0, 4, 0},
		"-n4 -c2":                             {0, 8, 0},
		"-N2":                                 {2, 1, 0},
		"-N2 --ntasks=8":                      {2, 4, 0},
		"--nodes=2-2 --tasks-per-node=4 -c 3": {2, 12, 0},
		"--ntasks=8 --ntasks-per-node=4":      {2, 4, 0},
		"--gres=gpu":                          {0, 1, 1},
		"--gres=gpu:2":                        {0, 1, 2},
		"--gres=gpu:h100":                     {0, 1, 1},
		"--gres=gpu:h100:4":                   {0, 1, 4},
		"--gres=none":                         {0, 1, 0},
		"-G 8 -N2":                            {2, 1, 4},
		"--gpus=h100:8 -N 4":                  {4, 1, 2},
		"--gpus-per-node=2 -N2 --gpus=4":      {2, 1, 2},
		"--gpus-per-task=2 -N2 --ntasks-per-node=4":   {2, 4, 8},
		"--gpus-per-node=h100:8 --gres=gpu:H100:8 -n": {}, // -n needs a value
	} {
		r := translate(t, options)
		if want == [3]int{} {
			if len(r.Wrong) != 1 {
				t.Errorf("%s: faults are %s", options, says(r.Wrong))
			}
			continue
		}
		j := r.Job
		if got := [3]int{j.Members, int(*j.Resources.CPUs) / 1000, j.Resources.GPUs.Devices()}; got != want || len(r.Wrong) > 0 {
			t.Errorf("%s: members, CPUs and GPUs are %v, want %v; %s", options, got, want, says(r.Wrong))
		}
	}
	if j := translate(t, "--gres=gpu:h100:4").Job; !slices.Equal(j.Resources.GPUType, []string{"h100"}) {
		t.Errorf("the type is %v", j.Resources.GPUType)
	}
	for _, options := range []string{"-N2-4", "-N2 -n3", "-n1 -N2", "-N0", "-c0", "--gpus=3 -N2", "--gres=gpu:2 --gpus-per-node=4",
		"--gres=gpu:a:1 --gpus=b:1", "--gres=gpu:a:b", "--gpus=:2", "--cpus-per-gpu=2", "--cpus-per-gpu=2 -c1 --gpus=1"} {
		if r := translate(t, options); len(r.Wrong) == 0 {
			t.Errorf("%s: no fault; the job is %+v", options, r.Job.Resources)
		}
	}
	for _, options := range []string{"--gres=nvme:1", "--gres=gpu:1,nvme:1", "--gres=shard:2", "--gres=gpu:a:1:2"} {
		if r := translate(t, options); len(r.Refused) != 1 {
			t.Errorf("%s is not refused", options)
		}
	}
}

func TestArraysKeepTheirIndexes(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]spec.Array{
		"-a 0-3":         {Size: 4},
		"--array=0-15%4": {Size: 16, Parallel: 4},
		"--array=5":      {Size: 1},
		"-a0-20:5":       {Size: 5},
		"--array=4,2,6":  {Size: 3},
		"--array=1,1,2":  {Size: 2},
		"--array=1,2,9%1": {Parallel: 1, Each: []map[string]string{{"SLURM_ARRAY_TASK_ID": "1"}, {"SLURM_ARRAY_TASK_ID": "2"},
			{"SLURM_ARRAY_TASK_ID": "9"}}},
	} {
		r := translate(t, options)
		if r.Job.Array == nil || len(r.Wrong) > 0 {
			t.Errorf("%s: no array; %s", options, says(r.Wrong))
			continue
		}
		if diff := cmp.Diff(want, *r.Job.Array); diff != "" {
			t.Errorf("%s (-want +got):\n%s", options, diff)
		}
	}
	for _, text := range []string{"", "a", "3-1", "1-", "-1", "1:2", "1-9:0", "0-9%0", "0-9%x", "0-200000", "1,,2", "0-3999999:1", "99999999"} {
		if r := translate(t, "'--array="+text+"'"); len(r.Wrong) != 1 || r.Job.Array != nil {
			t.Errorf("--array=%s: %+v; %s", text, r.Job.Array, says(r.Wrong))
		}
	}
}

func TestDependencies(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]spec.Job{
		"afterok:a:b,afterok:a": {Needs: []string{"job:a", "job:b"}},
		"AfterAny:sweep[3]":     {Needs: []string{"job:sweep[3]"}, When: "always"},
		"afternotok:a":          {Needs: []string{"job:a"}, When: "failure"},
	} {
		r := translate(t, "-d "+text)
		got := spec.Job{Needs: r.Job.Needs, When: r.Job.When}
		if diff := cmp.Diff(want, got); diff != "" || len(r.Refused) > 0 {
			t.Errorf("%s (-want +got):\n%s%s", text, diff, says(r.Refused))
		}
	}
	for _, text := range []string{"singleton", "after:1", "aftercorr:1", "afterok:1?afterok:2", "afterok:1,afterany:2", "afterok",
		"afterok:1+5", "afterok:1_4", "afternotok:a:b", "expand:1"} {
		if r := translate(t, "-d "+text); len(r.Refused) != 1 {
			t.Errorf("%s is not refused", text)
		}
	}
}

func TestSignalsBeforeTheLimit(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]string{
		"--signal=B:TERM@120 --time=60": "58m 2m", "--signal=B:15@60 -t10": "9m 1m", "--signal=b:SIGTERM -t 10": "9m 1m",
	} {
		r := translate(t, options)
		if r.Job.StopGrace == nil || r.Job.TimeLimit.String()+" "+r.Job.StopGrace.String() != want {
			t.Errorf("%s: %s %v; %s", options, r.Job.TimeLimit, r.Job.StopGrace, says(append(r.Refused, r.Wrong...)))
		}
	}
	for _, options := range []string{"--signal=USR1@60 -t10", "--signal=B:USR1@60 -t10", "--signal=TERM@60 -t10", "--signal=B:TERM@60"} {
		if r := translate(t, options); len(r.Refused) != 1 {
			t.Errorf("%s is not refused", options)
		}
	}
	if r := translate(t, "--signal=B:TERM@600 -t10"); len(r.Wrong) != 1 {
		t.Errorf("a signal at the start: %s", says(r.Wrong))
	}
}

func TestBeginnings(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Time{
		"now": now, "now+60": now.Add(time.Minute), "now+1hour": now.Add(time.Hour), "now+2weeks": now.Add(14 * 24 * time.Hour),
		"2026-05-01": time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC), "2026-05-01T10:30": time.Date(2026, 5, 1, 10, 30, 0, 0, time.UTC),
		"2026-05-01T10:30:15": time.Date(2026, 5, 1, 10, 30, 15, 0, time.UTC),
	} {
		if r := translate(t, "--begin="+text); !r.Begin.Equal(want) || len(r.Wrong) > 0 {
			t.Errorf("%s: %v, want %v; %s", text, r.Begin, want, says(r.Wrong))
		}
	}
	for _, text := range []string{"teatime", "16:00", "now+", "now+1year", "now1hour", "2026-13-01"} {
		if r := translate(t, "--begin="+text); len(r.Wrong) != 1 {
			t.Errorf("%s: %v", text, r.Begin)
		}
	}
}

// Words follow the rules of a shell for quotes, and # begins a comment.
func TestWordsOfALine(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]string{
		`--comment="a b" -J x`: "a b", `--comment 'a "b" #c' -J x`: `a "b" #c`, `--comment a\ b -J x`: "a b",
		`--comment "a\"b" # -J y`: `a"b`, `--comment a\#b`: "a#b", `--comment "a"#b`: "", "\t--comment\ta": "a",
	} {
		r := translate(t, options)
		if got := r.Job.Labels["comment"]; got != want || (len(r.Wrong) > 0) != (want == "") {
			t.Errorf("%s: the comment is %q, want %q; %s", options, got, want, says(r.Wrong))
		}
	}
	for _, options := range []string{`--comment="a`, "word", "-", "--", "--requeue=1", "-J", "--job-name="} {
		if r := translate(t, options); len(r.Wrong)+len(r.Refused) == 0 {
			t.Errorf("%s: nothing is said", options)
		}
	}
	if r := translate(t, "-QvJx"); r.Job.Name != "x" || len(r.Wrong) > 0 {
		t.Errorf("-QvJx names the job %s; %s", r.Job.Name, says(r.Wrong))
	}
}

// Every option has exactly one effect: a job file that differs, a note, or a refusal. An
// option without any would be lost in silence.
func TestNoOptionIsLostInSilence(t *testing.T) {
	t.Parallel()
	// Options that ask for the behaviour of Berth in any case, options of the program, and
	// options that need another one.
	silent := []string{"parsable", "quiet", "verbose", "requeue", "wait", "test-only", "begin"}
	values := map[string]string{"array": "0-3", "begin": "now+1hour", "cpus-per-gpu": "2 --gpus=1", "cpus-per-task": "2",
		"dependency": "afterok:a", "export": "A=1", "gpus": "1", "gpus-per-node": "1", "gpus-per-task": "1", "gres": "gpu:1",
		"mem": "1G", "mem-per-cpu": "3G", "mem-per-gpu": "1G --gpus=1", "nodes": "2", "ntasks": "2", "ntasks-per-node": "2",
		"tasks-per-node": "2", "signal": "B:TERM@60 --time=10", "time": "10", "tmp": "1G", "container-image": "x"}
	plain, err := json.Marshal(translate(t, "").Job)
	if err != nil {
		t.Fatal(err)
	}
	usual := len(translate(t, "").Notes)
	for _, d := range sbatch.Definitions() {
		word := "--" + d.Name
		if d.Argument == sbatch.Required {
			value := values[d.Name]
			if value == "" {
				value = "value"
			}
			word += "=" + value
		}
		r := translate(t, word)
		job, err := json.Marshal(r.Job)
		if err != nil {
			t.Fatal(err)
		}
		said := len(r.Refused)+len(r.Wrong) > 0 || len(r.Notes) > usual
		if !said && string(job) == string(plain) && !slices.Contains(silent, d.Name) {
			t.Errorf("%s changes nothing, and nothing is said", word)
		}
		if d.Text == "" || strings.HasSuffix(d.Text, ".") {
			t.Errorf("%s is described by %q", d.Name, d.Text)
		}
	}
}

// Slurm's own words in the script are refused where a container lacks the variable or the
// command, and left alone in comments, and where the script has a default.
func TestTheBodyIsSearched(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"echo $SLURM_JOB_END_TIME":                 "SLURM_JOB_END_TIME",
		"echo ${SLURM_ARRAY_JOB_ID}":               "SLURM_ARRAY_JOB_ID",
		"echo ${SLURM_JOB_END_TIME:-0}":            "",
		"# echo $SLURM_JOB_END_TIME":               "",
		"echo $SLURM_JOB_ID $SLURM_ARRAY_TASK_ID":  "",
		"squeue -u me":                             "squeue",
		"if sacct -j 1; then":                      "sacct",
		"x=$(sbatch --parsable next.sh)":           "sbatch",
		"echo done; scontrol requeue $SLURM_JOBID": "scontrol",
		"scontrol show hostnames":                  "",
		"echo squeue":                              "",
		"srun -n4 ./a":                             "",
		"srun --ntasks 4 -K1 -lu ./a":              "srun -lu",
		"A=1 srun --mpi=pmix ./a":                  "srun --mpi=pmix", "srun --mpi=none ./a": "",
		"srun -w node1 ./a":          "srun -w",
		"time srun --pty bash":       "srun --pty",
		"srun --exclusive -n1 ./a &": "srun --exclusive",
		"srun ./a -w x":              "",
		"mpirun -np 4 ./a":           "",
	} {
		r := translateText(t, "#!/bin/bash\n#SBATCH --mem=1G --export=NONE\n"+line+"\n")
		got := ""
		if len(r.Refused) > 0 {
			got = r.Refused[0].What
			if r.Refused[0].Line != 3 {
				t.Errorf("%s: line %d", line, r.Refused[0].Line)
			}
		}
		if got != want || len(r.Refused) > 1 {
			t.Errorf("%s: refused %q, want %q", line, got, want)
		}
	}
	r := translateText(t, "#!/bin/bash\n#SBATCH -N2\nmpirun ./a\n")
	if len(r.Refused) != 2 || r.Refused[0].What != "--nodes=2" || r.Refused[1].What != "mpirun" {
		t.Errorf("a script for two nodes without srun: %s", says(r.Refused))
	}
}
