package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/api/client"
)

// News of a job during a print that its reader holds up waits for nothing, and is shown after the print.
func TestNewsDuringAPrintIsShownAfterIt(t *testing.T) {
	t.Parallel()
	const state = "digits  running  ████████████░░░░░░░░░░░░  attempt 2  on m-1  5/10 50% half[2J way  1m30s"
	for name, c := range map[string]struct {
		screen screen
		want   string
	}{
		"a terminal": {screen{terminal: true, width: 120},
			"line\n" + erase + state + "  (server not responding)" + erase},
		"a pipe": {screen{}, "line\n12:00:00  no answer from x: EOF; still waiting\n" +
			"12:00:00  digits  running  attempt 2  on m-1  5/10 50% half[2J way\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := onTerminal(120, false)
			a.outTerm, a.errTerm = c.screen, c.screen
			p := newProgress(a)
			begun, goOn, news := make(chan struct{}), make(chan struct{}), make(chan struct{})
			printed := make(chan error, 1)
			go func() {
				printed <- p.around(func() error {
					close(begun)
					<-goOn
					_, err := io.WriteString(a.out, "line\n")
					return err
				})
			}()
			<-begun
			go func() {
				p.update(running())
				p.silent(&unreachableError{url: "x", err: io.EOF})
				close(news)
			}()
			select {
			case <-news:
			case <-time.After(time.Minute):
				t.Error("the news waits for the print")
			}
			close(goOn)
			if err := <-printed; err != nil {
				t.Error(err)
			}
			<-news
			p.done()
			if b.String() != c.want {
				t.Errorf("got\n%q, want\n%q", b, c.want)
			}
		})
	}
}

// --timeout and Ctrl-C end the wait while the reader of standard output pauses.
func TestAWaitEndsWhileItsReaderPauses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		timeout string
		code    int
		says    string
	}{
		"--timeout": {"1s", 124, "timed out after 1s; work (0193a1b2-c3d4-7000) is still running"},
		"Ctrl-C":    {"1h", 130, "work continues"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, "/logs") {
					fmt.Fprint(w, `{"id":"0193a1b2-c3d4-7000-8000-000000000001","name":"work","status":"running"}`)
					return
				}
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprint(w, "id: 1-9\nevent: log\ndata: {\"text\":\"line\"}\n\n")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}))
			defer server.Close()
			defer server.CloseClientConnections()
			in, out := io.Pipe()
			defer in.Close()
			var errs bytes.Buffer
			a, _ := onTerminal(80, false)
			a.URL, a.out, a.outTerm, a.err, a.errTerm = server.URL, out, screen{}, &errs, screen{}
			ended := make(chan int, 1)
			go func() {
				ended <- run(ctx, a, []string{"run", "--image", "busybox", "--name", "work", "--timeout", c.timeout})
			}()
			go func() {
				_, _ = io.ReadFull(in, make([]byte, 1)) // the rest of the line waits for its reader
				if c.code == int(exitInterrupted) {
					cancel()
				}
			}()
			select {
			case code := <-ended:
				if code != c.code || !strings.Contains(errs.String(), c.says) {
					t.Errorf("exit code %d, want %d with %q:\n%s", code, c.code, c.says, &errs)
				}
			case <-time.After(time.Minute):
				t.Error("the command waits for its reader")
			}
		})
	}
}

// Ctrl-C ends a command that prints the rest of the log of an ended job to a reader that pauses.
func TestCtrlCEndsThePrintOfAnEndedJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport := inProcess(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "id: 1-9\nevent: log\ndata: {\"text\":\"line\"}\n\nevent: end\ndata: {}\n\n")
		})
		in, out := io.Pipe()
		a, _ := onTerminal(80, false)
		a.out, a.outTerm, a.err, a.errTerm = out, screen{}, io.Discard, screen{}
		job := running()
		job.Status = berth.Succeeded
		ctx, cancel := context.WithCancel(t.Context())
		logs := startLogs(ctx, a, client.Over(transport, ""), job, newProgress(a))
		time.AfterFunc(time.Hour, cancel)
		giveUp := time.AfterFunc(2*time.Hour, func() { _ = in.Close() })
		defer giveUp.Stop()
		begun := time.Now()
		err := logs.finish(ctx, true)
		if took := time.Since(begun); !errors.Is(err, context.Canceled) || took > time.Hour+time.Minute {
			t.Errorf("%v after %s", err, took)
		}
		_ = in.Close()
		<-logs.done
	})
}

// slowWriter is a terminal or a pipe whose reader pauses at the first write.
type slowWriter struct{ pause time.Duration }

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(w.pause)
	w.pause = 0
	return len(p), nil
}

// A pause of the reader of messages is no silence of the server: a wait goes on through a restart after the pause.
func TestPatienceCountsFromTheFirstFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		transport := inProcess(func(w http.ResponseWriter, _ *http.Request) {
			if calls++; calls == 1 {
				panic(http.ErrAbortHandler)
			}
			fmt.Fprint(w, `{"id":"0193a1b2-c3d4-7000-8000-000000000001","name":"digits","status":"succeeded"}`)
		})
		a, _ := onTerminal(80, false)
		a.err, a.errTerm, a.now = &slowWriter{2 * patience}, screen{}, time.Now
		job, err := pollJob(t.Context(), a, client.Over(transport, ""), running(), newProgress(a), false)
		if err != nil || job.Status != berth.Succeeded {
			t.Errorf("the job is %s after %d calls, %v", job.Status, calls, err)
		}
	})
}
