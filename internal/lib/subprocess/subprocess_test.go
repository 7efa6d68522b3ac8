package subprocess_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/lib/subprocess"
)

func TestEnvironmentIsOnlyThatOfTheProgram(t *testing.T) {
	t.Setenv("BERTH_SECRET_OF_THIS_PROCESS", "leaked")
	for _, env := range [][]string{nil, {"A=1"}} {
		var out bytes.Buffer
		if err := subprocess.Run(t.Context(), subprocess.Program{Path: "/usr/bin/env", Env: env, Stdout: &out}); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "leaked") {
			t.Errorf("with the environment %q the program inherits that of this process", env)
		}
		if len(env) > 0 && out.String() != "A=1\n" {
			t.Errorf("the environment is %q", out.String())
		}
	}
}

// A program that ignores signals and has children ends with its context, with all of them.
func TestEndOfTheContextKillsTheGroup(t *testing.T) {
	t.Parallel()
	pid := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- subprocess.Run(ctx, subprocess.Program{
			Path: "/bin/sh", Args: []string{"-c", `trap "" TERM INT; sleep 1000 & echo $! > "$0.new"; mv "$0.new" "$0"; wait`, pid},
			Env: subprocess.BaseEnv(),
		})
	}()
	child := readPID(t, pid)
	cancel()
	if err := <-done; err == nil {
		t.Error("a killed program reports success")
	}
	awaitEnd(t, child)
}

func TestChildrenLeftBehindAreKilled(t *testing.T) {
	t.Parallel()
	pid := filepath.Join(t.TempDir(), "pid")
	err := subprocess.Run(t.Context(), subprocess.Program{
		Path: "/bin/sh", Args: []string{"-c", `sleep 1000 >/dev/null 2>&1 & echo $! > "$0"`, pid}, Env: subprocess.BaseEnv(),
	})
	if err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, readPID(t, pid))
}

// A caller must know whether a part of the program may have run.
func TestAProgramThatDoesNotStartHasAnErrorOfItsOwn(t *testing.T) {
	t.Parallel()
	orphan := filepath.Join(t.TempDir(), "orphan")
	if err := os.WriteFile(orphan, []byte("#!/no/such/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx   context.Context
		p     subprocess.Program
		never bool
	}{
		"a missing program":          {t.Context(), subprocess.Program{Path: "/no/such/program"}, true},
		"a missing interpreter":      {t.Context(), subprocess.Program{Path: orphan}, true},
		"a missing folder":           {t.Context(), subprocess.Program{Path: "/bin/true", Dir: "/no/such"}, true},
		"a caller that has given up": {over, subprocess.Program{Path: "/bin/true"}, true},
		"a program that fails":       {t.Context(), subprocess.Program{Path: "/bin/false"}, false},
	} {
		err := subprocess.Run(c.ctx, c.p)
		if _, never := errors.AsType[*subprocess.StartError](err); err == nil || never != c.never {
			t.Errorf("%s: %v, never started is %v", name, err, never)
		}
	}
}

func readPID(t *testing.T, path string) int {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if text, err := os.ReadFile(path); err == nil {
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatal("the program wrote no pid")
	return 0
}

func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") || strings.Contains(string(stat), ") X ") {
			return
		}
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	t.Errorf("process %d still runs", pid)
}

func TestTailKeepsTheEndAndHidesASecret(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-QXZWV"
	for _, c := range []struct{ limit int }{{10}, {17}, {20}, {30}, {100}} {
		tail := subprocess.Tail{Limit: c.limit}
		for _, part := range []string{"first line\n", "token ", secret, " is bad\n"} {
			if n, err := tail.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatalf("write: %d, %v", n, err)
			}
		}
		text := tail.Hidden(secret)
		if !strings.HasSuffix(text, " is bad") {
			t.Errorf("limit %d: the end is missing in %q", c.limit, text)
		}
		for i := 0; i+4 <= len(secret); i++ {
			if strings.Contains(text, secret[i:i+4]) {
				t.Errorf("limit %d: %q shows a part of the secret", c.limit, text)
			}
		}
		if cut := strings.HasPrefix(text, "..."); cut != (c.limit < 37) {
			t.Errorf("limit %d: %q; marked as cut: %v", c.limit, text, cut)
		}
	}
}

func TestHeadReportsTheFirstByteTooMany(t *testing.T) {
	t.Parallel()
	full := 0
	head := subprocess.Head{Limit: 5, Full: func() { full++ }}
	for _, part := range []string{"abc", "de"} {
		_, _ = head.Write([]byte(part))
	}
	if got, over := head.Bytes(); string(got) != "abcde" || over || full != 0 {
		t.Errorf("at the limit: %q, over %v, called %d", got, over, full)
	}
	for _, part := range []string{"f", "g"} {
		_, _ = head.Write([]byte(part))
	}
	if got, over := head.Bytes(); string(got) != "abcde" || !over || full != 1 {
		t.Errorf("past the limit: %q, over %v, called %d", got, over, full)
	}
}
