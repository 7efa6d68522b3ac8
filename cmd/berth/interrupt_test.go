package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// One Ctrl-C at a question ends the command, with nothing changed and the terminal as it was.
func TestCtrlCEndsAQuestion(t *testing.T) {
	t.Parallel()
	job := `{"id":"0193a1b2-c3d4-7000-8000-000000000001","name":"digits","status":"queued"}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		_, _ = io.WriteString(w, `{"items":[`+job+`]}`)
	}))
	t.Cleanup(server.Close) // the parallel subtests call it
	for name, c := range map[string]struct {
		args []string
		asks string
	}{
		"confirmation": {[]string{"cancel", "--status", "queued"}, "continue? [y/N] "},
		"secret":       {[]string{"secret", "set", "KEY"}, "value of KEY: "},
		"token":        {[]string{"login", server.URL}, "token for "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master, terminal := pty(t)
			before := modes(t, terminal)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Args = append([]string{"berth"}, c.args...)
			cmd.Env = append(os.Environ(), "BERTH_URL="+server.URL, "BERTH_TOKEN=", "BERTH_CONFIG="+t.TempDir()+"/none",
				"TERM=xterm")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { _ = cmd.Wait(); close(ended) }()
			asked := make(chan struct{})
			go func() {
				var said bytes.Buffer
				one := make([]byte, 1)
				for !strings.Contains(said.String(), c.asks) {
					if _, err := master.Read(one); err != nil {
						return
					}
					said.Write(one)
				}
				close(asked)
				_, _ = io.Copy(io.Discard, master)
			}()
			within(t, "the question", asked, ended)
			// Until the read has begun.
			for limit := time.Now().Add(time.Minute); name != "confirmation" && modes(t, terminal) == before; {
				if time.Now().After(limit) {
					t.Fatal("the question does not hide the text")
				}
				time.Sleep(time.Millisecond)
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			within(t, "the end", ended, nil)
			if code := cmd.ProcessState.ExitCode(); code != 130 {
				t.Errorf("exit %d, want 130", code)
			}
			if after := modes(t, terminal); after != before {
				t.Errorf("the terminal was %+v and is %+v", before, after)
			}
		})
	}
}

// within waits until done is closed, and fails if that takes a minute, or if the command has ended before.
func within(t *testing.T, what string, done, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-ended:
		select {
		case <-done:
		default:
			t.Fatalf("the command has ended before %s", what)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%s does not come", what)
	}
}

// blockedReader is a standard input whose writer hangs.
type blockedReader struct{ begun, end chan struct{} }

func (r blockedReader) Read([]byte) (int, error) {
	close(r.begun)
	<-r.end
	return 0, io.EOF
}

// One Ctrl-C ends a command that reads its file from a program that hangs.
func TestCtrlCEndsTheReadOfStandardInput(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"submit", "-"}, {"pipeline", "submit", "-"}, {"schedule", "create", "-", "--in", "1h"}, {"plan", "-"},
		{"sbatch", "--image", "busybox", "-"}, {"retry", "0193a1b2-c3d4-7000-8000-000000000001", "--file", "-"},
	} {
		t.Run(strings.Join(args[:2], " "), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			in := blockedReader{make(chan struct{}), make(chan struct{})}
			defer close(in.end)
			a, b := onTerminal(80, false)
			a.URL, a.in = "http://127.0.0.1:1", in
			ended, code := make(chan struct{}), 0
			go func() {
				defer close(ended)
				code = run(ctx, a, args)
			}()
			within(t, "the read", in.begun, ended)
			cancel()
			within(t, "the end", ended, nil)
			if code != int(exitInterrupted) {
				t.Errorf("exit code %d: %s", code, b)
			}
		})
	}
}

// Ctrl-C in the middle of a submit says that the job may exist, and how to repeat.
func TestCtrlCDuringASubmitNamesTheKey(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"run", "-d", "--image", "busybox", "--name", "work"}, {"pipeline", "submit", "-"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			cancel()
			<-r.Context().Done()
		}))
		a, b := onTerminal(80, false)
		a.URL = server.URL
		a.in = strings.NewReader("kind: pipeline\nname: work\njobs:\n  a: {image: busybox}\n")
		code := run(ctx, a, args)
		server.CloseClientConnections()
		server.Close()
		if code != 130 || !strings.Contains(b.String(), "interrupted; the job may have been submitted, check with: "+
			"berth list --name work; to repeat the command without a second job, add --idempotency-key cli-") {
			t.Errorf("%q: exit code %d:\n%s", args, code, b)
		}
	}
}

// Ctrl-C in the middle of a bulk act says how many jobs were changed.
func TestCtrlCDuringABulkActCountsTheJobs(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	posts := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const job = `{"id":"0193a1b2-c3d4-7000-8000-000000000001","name":"digits","status":"queued"}`
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"items":[`+job+","+job+","+job+`]}`)
			return
		}
		if posts++; posts == 2 {
			cancel()
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, job)
	}))
	defer server.Close()
	a, b := onTerminal(80, false)
	a.URL = server.URL
	code := run(ctx, a, []string{"hold", "--status", "queued", "--yes"})
	if code != 130 || !strings.Contains(b.String(), "interrupted: hold: 1 of 3 jobs\n") {
		t.Errorf("exit code %d:\n%s", code, b)
	}
}

// A wait shows a server that asks for repeats on its own line: messages begin in the first column.
func TestAWaitSaysNothingOfRepeats(t *testing.T) {
	t.Parallel()
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status := "running"
		switch calls++; calls {
		case 3, 4:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"code":"unavailable","detail":"the database does not answer"}`)
			return
		case 5:
			status = "succeeded"
		}
		_, _ = io.WriteString(w, `{"id":"0193a1b2-c3d4-7000-8000-000000000001","name":"digits","status":"`+status+`"}`)
	}))
	defer server.Close()
	a, b := onTerminal(80, false)
	a.URL = server.URL
	if code := run(t.Context(), a, []string{"wait", "0193a1b2"}); code != 0 {
		t.Fatalf("exit code %d: %s", code, b)
	}
	end := erase + "digits (0193a1b2-c3d4-7000) succeeded\n"
	if strings.Contains(b.String(), "retrying") || !strings.HasSuffix(b.String(), end) {
		t.Errorf("got %q", b)
	}
}
