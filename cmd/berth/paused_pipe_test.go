package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/lib/poll"
)

// pausedJob waits for a reason that is longer than any pipe of these tests.
var pausedJob = `{"id":"0193a1b2-c3d4-7000-8000-000000000001","name":"work","status":"queued",` +
	`"waiting":{"code":"no_room","message":"` + longText + `"}}`

const shortJob = `{"id":"0193a1b2-c3d4-7000-8000-000000000001","name":"work","status":"queued"}`

var longText = strings.Repeat("x", 1<<20)

// longAnswers answers each call with more than a pipe or a terminal holds.
func longAnswers(w http.ResponseWriter, r *http.Request) {
	stream := strings.Contains(r.Header.Get("Accept"), "text/event-stream")
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/logs") && stream:
		fmt.Fprintf(w, "id: 1-9\nevent: log\ndata: {\"text\":%q}\n\n", longText)
	case strings.HasSuffix(path, "/logs"):
		fmt.Fprintf(w, "{\"text\":%q}\n", longText)
	case strings.HasSuffix(path, "/events") && stream:
		fmt.Fprintf(w, "id: 1\nevent: event\ndata: {\"seq\":1,\"kind\":\"warning\",\"detail\":%q}\n\n", longText)
	case strings.HasSuffix(path, "/events"):
		fmt.Fprintf(w, `{"items":[{"seq":1,"kind":"warning","detail":%q}]}`, longText)
	case path == "/v1/jobs" && r.Method == http.MethodGet:
		fmt.Fprintf(w, `{"items":[%s%s]}`, strings.Repeat(shortJob+",", 10_000), shortJob)
	case path == "/v1/machines":
		var list []string
		for i := range 20_000 {
			list = append(list, fmt.Sprintf(`{"id":"machine-%d","state":"ready"}`, i))
		}
		fmt.Fprintf(w, `{"items":[%s]}`, strings.Join(list, ","))
	default:
		_, _ = io.WriteString(w, pausedJob)
	}
	if stream {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// unread returns the number of bytes that a reader of the file would get.
func unread(t *testing.T, f *os.File) int {
	t.Helper()
	n, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCINQ)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// One Ctrl-C ends a command whose reader pauses: a pager that waits for a key, or a terminal that is stopped.
func TestOneCtrlCEndsAWriteToAPausedReader(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(longAnswers))
	t.Cleanup(server.Close) // the parallel subtests call it
	for _, c := range []struct {
		args     string
		terminal bool // standard output is a terminal instead of a pipe
		errors   bool // standard error is the pipe
		says     string
	}{
		{args: "logs 0193a1b2"},
		{args: "logs -f 0193a1b2", says: "work continues; follow it again: berth logs -f "},
		{args: "events 0193a1b2"},
		{args: "events --follow 0193a1b2"},
		{args: "events --follow -o json 0193a1b2"},
		{args: "run --image busybox --name work", says: "work continues; wait again"},
		{args: "wait 0193a1b2", errors: true},
		{args: "wait 0193a1b2 --timeout 1h", errors: true},
		{args: "list"},
		{args: "list -o json"},
		{args: "top"},
		{args: "list --watch", terminal: true},
		{args: "top --watch", terminal: true},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			reader, writer := pausedReader(t, c.terminal)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Args = append([]string{"berth"}, strings.Fields(c.args)...)
			cmd.Env = append(os.Environ(), "BERTH_URL="+server.URL, "BERTH_TOKEN=", "BERTH_CONFIG="+t.TempDir()+"/none",
				"TERM=xterm", "GORACE=atexit_sleep_ms=20")
			var errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = writer, &errs
			if c.errors {
				cmd.Stdout, cmd.Stderr = nil, writer
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { _ = cmd.Wait(); close(ended) }()
			// The write that has begun is longer than the pipe's buffer, so it cannot end.
			if !poll.Until(time.Minute, 5*time.Millisecond, func() bool { return unread(t, reader) > 0 }) {
				t.Fatalf("nothing is written: %s", &errs)
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			within(t, "the end", ended, nil)
			if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(errs.String(), c.says) {
				t.Errorf("exit %d, want 130 with %q: %s", code, c.says, &errs)
			}
		})
	}
}

// pausedReader returns a pipe, or the two ends of a terminal without a height. The test does not read from it.
func pausedReader(t *testing.T, screen bool) (reader, writer *os.File) {
	t.Helper()
	if screen {
		master, terminal := pty(t)
		resize(t, master, 0, 0)
		return master, terminal
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close(); _ = writer.Close() })
	return reader, writer
}

// A stream takes nothing after a write that was given up, and an interrupt does not drop what its reader takes.
func TestOutputAfterAnInterrupt(t *testing.T) {
	t.Parallel()
	for name, reads := range map[string]bool{"a reader that takes it": true, "a reader that pauses": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				in, out := io.Pipe()
				got := make(chan string, 1)
				read := func() { b, _ := io.ReadAll(in); got <- string(b) }
				w, want := newInterruptible(ctx, out), ""
				if reads {
					go read()
				}
				for _, text := range []string{"one", "two"} {
					n, err := io.WriteString(w, text)
					if reads && (n != 3 || err != nil) || !reads && !errors.Is(err, context.Canceled) {
						t.Errorf("%d, %v", n, err)
					}
				}
				if reads {
					want = "onetwo"
				}
				_ = out.Close()
				if !reads {
					go read()
				}
				if text := <-got; text != want || w.paused.Load() == reads {
					t.Errorf("the reader got %q, want %q", text, want)
				}
			})
		})
	}
}
