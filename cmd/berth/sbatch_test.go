package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/lib/golden"
	"berth/internal/lib/jobfile"
	"berth/internal/lib/sbatch"
)

// sbatchRun runs berth sbatch without a server, in a shell with one variable.
func sbatchRun(t testing.TB, args ...string) (out, messages string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	a := &app{config: config{Output: "table", URL: "http://127.0.0.1:1"}, in: strings.NewReader(""), out: &stdout,
		err: &stderr, home: "/home/ada",
		now: func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) },
		lookup: func(name string) (string, bool) {
			return "of the shell", name == "FROM_SHELL"
		}}
	code = run(context.Background(), a, append([]string{"sbatch"}, args...))
	return stdout.String(), stderr.String(), code
}

// Each script of testdata/sbatch has a golden job file, and a golden list of messages. The
// job file is one that the decoder of berth submit reads.
func TestScriptsOfSlurmBecomeJobFiles(t *testing.T) {
	t.Parallel()
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	scripts := append(glob(t, "testdata/sbatch", "*.sh"), glob(t, "testdata/sbatch", "*.py")...)
	if len(scripts) < 12 {
		t.Errorf("found %d scripts; want at least 12", len(scripts))
	}
	for _, script := range scripts {
		name := strings.TrimSuffix(filepath.Base(script), filepath.Ext(script))
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, messages, code := sbatchRun(t, "--print", script, "--lr", "0.1")
			fails := name == "wrong" || name == "refused"
			if (code != 0) != fails {
				t.Errorf("exit code %d, messages:\n%s", code, messages)
			}
			golden.Check(t, filepath.Join("testdata/sbatch", name+".messages"), messages)
			if fails {
				return
			}
			if _, err := jobfile.Parse("job.yaml", []byte(out)); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			golden.Check(t, filepath.Join("testdata/sbatch", name+".yaml"), strings.ReplaceAll(out, here, "/home/ada/project"))
		})
	}
}

// The options of the command line win over the script's, also by another name for the same.
func TestTheCommandLineWinsOverTheScript(t *testing.T) {
	t.Parallel()
	script := write(t, "job.sh", "#!/bin/sh\n#SBATCH --mem-per-cpu=1G -c4 --time=10 --gres=gpu:2 --no-requeue --chdir=/nowhere\n"+
		"#BERTH --image=debian:12 --set priority=low\ntrue\n")
	folder := t.TempDir()
	out, messages, code := sbatchRun(t, "--print", "--image=alpine:3", "--mem=3G", "-t", "1-0", "--gpus=1", "--requeue", "-D", folder,
		"--set", "priority=high", "--export=A=1,FROM_SHELL", "--secret=KEY", script, "--time=99")
	if code != 0 {
		t.Fatalf("exit code %d:\n%s", code, messages)
	}
	file, err := jobfile.Parse("job.yaml", []byte(out))
	if err != nil {
		t.Fatal(err)
	}
	got := file.Spec
	if got.Image != "alpine:3" || *got.Resources.Memory != 3072 || got.TimeLimit.Std() != 24*time.Hour || got.Resources.GPUs != 1000 ||
		got.Preemptible != nil || got.Workdir != folder || *got.Priority != 800 || got.Env["A"] != "1" ||
		got.Env["FROM_SHELL"] != "of the shell" || got.Secrets[0] != "KEY" || *got.Resources.CPUs != 4000 {
		t.Errorf("the job is\n%s", out)
	}
	if last := got.Command[len(got.Command)-1]; last != "--time=99" {
		t.Errorf("the last argument of the script is %q", last)
	}
}

// Refused lines stop a submit, unless the user accepts their loss. Faults stop it in any case.
func TestUnsupportedLinesAreRefusedUnlessIgnored(t *testing.T) {
	t.Parallel()
	script := write(t, "job.sh", "#!/bin/sh\n#SBATCH --licenses=matlab --mem=1G --export=NONE\n#BERTH --image=debian:12\ntrue\n")
	out, messages, code := sbatchRun(t, "--print", "--no-workdir", script)
	if code != int(exitWrong) || out != "" || !strings.Contains(messages, "job.sh:2: --licenses=matlab: Berth counts no licenses") ||
		!strings.Contains(messages, "hint: change the script, or pass --ignore-unsupported") {
		t.Errorf("exit code %d, output %q, messages:\n%s", code, out, messages)
	}
	out, messages, code = sbatchRun(t, "--print", "--no-workdir", "--ignore-unsupported", script)
	if code != 0 || !strings.Contains(messages, "job.sh:2: ignored: --licenses=matlab") || !strings.Contains(out, "# "+script+":2: ignored: --licenses") {
		t.Errorf("exit code %d, output\n%s, messages:\n%s", code, out, messages)
	}
	_, messages, code = sbatchRun(t, "--print", "--no-workdir", "--ignore-unsupported", "--mem=much", script)
	if code != int(exitWrong) || !strings.Contains(messages, "berth: --mem=much: is not an amount") {
		t.Errorf("exit code %d, messages:\n%s", code, messages)
	}
}

// The home folder is not uploaded by accident, and a folder of the cluster not in silence.
func TestTheFolderToUploadIsChecked(t *testing.T) {
	t.Parallel()
	script := write(t, "job.sh", "#!/bin/sh\n#SBATCH --chdir=/shared/project\n#BERTH --image=debian:12\ntrue\n")
	if _, messages, code := sbatchRun(t, "--print", script); code != int(exitWrong) || !strings.Contains(messages, "there is no folder /shared/project") {
		t.Errorf("exit code %d, messages:\n%s", code, messages)
	}
	if _, messages, code := sbatchRun(t, "--print", "--no-workdir", script); code != int(exitWrong) || !strings.Contains(messages, "no folder is uploaded") {
		t.Errorf("without the upload: exit code %d, messages:\n%s", code, messages)
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	f := sbatchFlags{}
	s, err := sbatch.Parse("x", "#!/bin/sh\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.folder(&app{home: here}, s); err == nil || !strings.Contains(err.Error(), "uploads the current folder") {
		t.Errorf("the home folder: %v", err)
	}
}

// A script that sbatch refuses as a whole, and a script without an image.
func TestBrokenScriptsAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                 "is empty",
		"#!/bin/sh\ncp \xdcbung.csv out\n": "is not UTF-8",
		"echo hello\n":                     "names no interpreter",
		"#! python\n":                      "names no interpreter",
		"#!/bin/sh\r\necho hello\n":        "line ends of DOS",
		"#!/bin/sh\n\x00\n":                "NUL byte",
		"#!/bin/sh\ntrue\n":                "names no container image",
		"#!/bin/sh\n" + strings.Repeat("#\n", 70_000): "limit of an argument",
	} {
		_, messages, code := sbatchRun(t, "--print", "--no-workdir", write(t, "job.sh", text))
		if code != int(exitWrong) || !strings.Contains(messages, want) {
			t.Errorf("%.40q: exit code %d, want %q, got %q", text, code, want, messages)
		}
	}
}

// --wrap and --begin are of the command line.
func TestWrapAndBegin(t *testing.T) {
	t.Parallel()
	out, messages, code := sbatchRun(t, "--print", "--no-workdir", "--image=debian:12", "--export=NONE", "--mem=1G", "--begin=now+2hours",
		"--wrap=echo 'a b'; sleep 1")
	if code != 0 || !strings.Contains(messages, "submit it with --at 2026-03-01T14:00:00Z") || !strings.Contains(out, "echo 'a b'; sleep 1") {
		t.Errorf("exit code %d, output\n%s, messages:\n%s", code, out, messages)
	}
	if _, messages, code = sbatchRun(t, "--wrap=true", "script.sh"); code != int(exitWrong) {
		t.Errorf("--wrap with a script: exit code %d, messages:\n%s", code, messages)
	}
}

// Every translation of any script survives its job file.
func FuzzSbatch(f *testing.F) {
	for _, pattern := range []string{"testdata/sbatch/*.sh", "testdata/sbatch/*.py"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(text), "a b")
		}
	}
	f.Add("#!/bin/sh\n \t# x\n\n  two\n\u0085 trailing \n", "'\"\\\n")
	f.Fuzz(func(t *testing.T, text, argument string) {
		s, err := sbatch.Parse("job.sh", text)
		if err != nil {
			return
		}
		r := sbatch.Translate(s, sbatch.Settings{Args: []string{argument}, Image: "debian:12", Folder: "/project",
			Lookup: func(string) (string, bool) { return "", false }})
		for _, list := range [][]sbatch.Finding{r.Notes, r.Refused, r.Wrong} {
			for _, f := range list {
				if f.What == "" || f.Text == "" || f.Line < 0 || f.Line > strings.Count(text, "\n")+1 {
					t.Fatalf("%+v says nothing", f)
				}
			}
		}
		if len(r.Wrong) > 0 || jobfile.Check(r.Job) != nil {
			return
		}
		want, err := json.Marshal(r.Job)
		if err != nil {
			t.Fatal(err)
		}
		printed, err := jobFileText(r.Job)
		if err != nil {
			t.Fatal(err)
		}
		if !means(printed, want) {
			t.Fatalf("the job file means another job:\n%s\nwant %s", printed, want)
		}
	})
}

// write writes a file for the test and returns its path.
func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
