package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"berth/internal/lib/framed"
	"berth/spec"
	"berth/wire"
)

// sessionServer is a server with one running job, whose sessions the test serves.
type sessionServer struct {
	*httptest.Server
	asked    chan spec.NewSession
	controls chan string // frames other than data: channel and payload
}

const sessionJob = `{"id":"01900000-0000-7000-8000-00000000000a","name":"digits","kind":"job","status":"running"}`

// openSessions serves each session by serve, which gets the machine's end.
func openSessions(t *testing.T, serve func(ws *websocket.Conn, c *framed.Conn)) *sessionServer {
	t.Helper()
	x := &sessionServer{asked: make(chan spec.NewSession, 1), controls: make(chan string, 100)}
	mux := http.NewServeMux()
	answer := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		}
	}
	mux.HandleFunc("GET /v1/jobs", answer(`{"items":[`+sessionJob+`]}`))
	mux.HandleFunc("GET /v1/jobs/{id}", answer(sessionJob))
	mux.HandleFunc("POST /v1/jobs/{id}/sessions", func(w http.ResponseWriter, r *http.Request) {
		var req spec.NewSession
		_ = json.NewDecoder(r.Body).Decode(&req)
		x.asked <- req
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(wire.JobSession{ID: "s1"})
	})
	mux.HandleFunc("GET /v1/sessions/{id}", func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		c := framed.New(ws, []framed.Channel{framed.Stdin}, []framed.Channel{framed.Stdout, framed.Stderr}, framed.Beats{},
			func(ch framed.Channel, p []byte) { x.controls <- fmt.Sprintf("%d %s", ch, p) })
		var all sync.WaitGroup
		all.Go(func() { _ = c.Serve(context.Background()) })
		serve(ws, c)
		all.Wait()
	})
	x.Server = httptest.NewServer(mux)
	t.Cleanup(func() { x.CloseClientConnections(); x.Close() })
	return x
}

// berth is the program as a process of its own, which is this test's program under another name.
func (x *sessionServer) berth(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Args = append([]string{"berth"}, args...)
	cmd.Env = append(os.Environ(), "BERTH_URL="+x.URL, "BERTH_TOKEN=none", "BERTH_CONFIG="+t.TempDir()+"/none", "TERM=xterm")
	return cmd
}

// endsWith runs a program to its end.
func endsWith(t *testing.T, cmd *exec.Cmd) (out, errs string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

func end(c *framed.Conn, code int) {
	_ = c.Writer(framed.Stdout).Close()
	_ = c.Writer(framed.Stderr).Close()
	_ = c.SendStatus(wire.SessionStatus{Exit: &code, Cause: wire.CauseExited})
}

func TestExecPassesStreamsAndTheExitCode(t *testing.T) {
	t.Parallel()
	x := openSessions(t, func(_ *websocket.Conn, c *framed.Conn) {
		text, _ := io.ReadAll(c.Reader(framed.Stdin))
		_, _ = c.Writer(framed.Stdout).Write(bytes.ToUpper(text))
		_, _ = c.Writer(framed.Stderr).Write([]byte("so it is"))
		end(c, 42)
	})
	cmd := x.berth(t, "exec", "digits", "--member", "2", "--reason", "looks", "--", "tr", "a-z", "A-Z")
	cmd.Stdin = strings.NewReader("hello")
	out, errs, code := endsWith(t, cmd)
	if out != "HELLO" || errs != "so it is" || code != 42 {
		t.Errorf("out %q, err %q, exit %d", out, errs, code)
	}
	if req := <-x.asked; req.Member != 2 || req.Reason != "looks" || strings.Join(req.Command, " ") != "tr a-z A-Z" || req.TTY {
		t.Errorf("asked for %+v", req)
	}
}

// Without a status frame no end is known, whatever ended the connection: never 0.
func TestExecWithoutAStatusExitsWith7(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		serve func(ws *websocket.Conn, c *framed.Conn)
		says  string
	}{
		"cut":    {func(ws *websocket.Conn, _ *framed.Conn) { _ = ws.CloseNow() }, "cut"},
		"closed": {func(ws *websocket.Conn, _ *framed.Conn) { _ = ws.Close(websocket.StatusNormalClosure, "") }, "ended"},
		"agent gone": {func(ws *websocket.Conn, _ *framed.Conn) {
			framed.Close(ws, wire.CauseMachineGone, "the machine m1 is gone")
		}, "m1 is gone"},
		"agent stops": {func(_ *websocket.Conn, c *framed.Conn) {
			_ = c.SendStatus(wire.SessionStatus{Cause: wire.CauseAgentStops, Message: "connect again"})
		}, "connect again"},
		"cut after output": {func(ws *websocket.Conn, c *framed.Conn) {
			_, _ = c.Writer(framed.Stdout).Write(make([]byte, 100_000))
			_ = c.Writer(framed.Stdout).Close()
			_ = c.Writer(framed.Stderr).Close()
			_ = ws.CloseNow()
		}, "cut"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, errs, code := endsWith(t, openSessions(t, c.serve).berth(t, "exec", "digits", "-n", "--", "true"))
			if code != int(exitUnreachable) || !strings.Contains(errs, c.says) {
				t.Errorf("exit %d, %q", code, errs)
			}
		})
	}
}

func TestExecIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	x := openSessions(t, func(_ *websocket.Conn, c *framed.Conn) {
		_ = c.SendStatus(wire.SessionStatus{Cause: wire.CauseRefused, Message: "no container runs"})
	})
	if _, errs, code := endsWith(t, x.berth(t, "exec", "digits", "-n", "--", "true")); code != int(exitConflict) || !strings.Contains(errs, "no container runs") {
		t.Errorf("exit %d, %q", code, errs)
	}
	if _, errs, code := endsWith(t, x.berth(t, "exec", "digits", "-t", "--", "sh")); code != int(exitWrong) || !strings.Contains(errs, "--tty needs a terminal") {
		t.Errorf("without a terminal: exit %d, %q", code, errs)
	}
	if _, errs, code := endsWith(t, x.berth(t, "exec", "digits", "sh")); code != int(exitWrong) || !strings.Contains(errs, "after --") {
		t.Errorf("without --: exit %d, %q", code, errs)
	}
}

func TestExecForwardsAnInterrupt(t *testing.T) {
	t.Parallel()
	begun, ready := make(chan struct{}), make(chan struct{})
	var x *sessionServer
	x = openSessions(t, func(_ *websocket.Conn, c *framed.Conn) {
		<-ready // x is set
		close(begun)
		if got := <-x.controls; got != "5 SIGINT" {
			t.Errorf("received %q", got)
		}
		end(c, 130)
	})
	close(ready)
	cmd := x.berth(t, "exec", "digits", "--", "sleep", "1h")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe() // stays open
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	within(t, "the session", begun, ended)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	within(t, "the end", ended, nil)
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit %d, %s", code, errs.String())
	}
}

// pty opens a terminal of 24 rows and 80 columns.
func pty(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	if terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	resize(t, master, 24, 80)
	t.Cleanup(func() { _ = master.Close(); _ = terminal.Close() })
	return master, terminal
}

func resize(t *testing.T, master *os.File, rows, columns uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		t.Fatal(err)
	}
}

func modes(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

// Each way out of a session with a terminal gives the terminal back as it was.
func TestExecWithATerminal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(ws *websocket.Conn, c *framed.Conn, p *os.Process)
		code int
	}{
		"exit":      {func(_ *websocket.Conn, c *framed.Conn, _ *os.Process) { end(c, 5) }, 5},
		"cut":       {func(ws *websocket.Conn, _ *framed.Conn, _ *os.Process) { _ = ws.CloseNow() }, 7},
		"terminate": {func(_ *websocket.Conn, _ *framed.Conn, p *os.Process) { _ = p.Signal(syscall.SIGTERM) }, 130},
		"hang up":   {func(_ *websocket.Conn, _ *framed.Conn, p *os.Process) { _ = p.Signal(syscall.SIGHUP) }, 130},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master, terminal := pty(t)
			before := modes(t, terminal)
			process, typed, resized := make(chan *os.Process, 1), make(chan struct{}), make(chan struct{})
			var x *sessionServer
			x = openSessions(t, func(ws *websocket.Conn, s *framed.Conn) {
				p := <-process
				if m := modes(t, terminal); m.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != 0 {
					t.Error("the terminal is not raw")
				}
				_, _ = master.Write([]byte{3}) // Ctrl-C is a key like others
				key := make([]byte, 1)
				_, _ = io.ReadFull(s.Reader(framed.Stdin), key)
				if key[0] != 3 {
					t.Errorf("typed %q", key)
				}
				close(typed)
				resize(t, master, 50, 132)
				if got := <-x.controls; got != `4 {"rows":50,"columns":132}` {
					t.Errorf("received %q", got)
				}
				close(resized)
				c.end(ws, s, p)
			})
			cmd := x.berth(t, "exec", "digits", "-t", "--", "bash")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			process <- cmd.Process
			ended := make(chan struct{})
			go func() { _ = cmd.Wait(); close(ended) }()
			within(t, "the key", typed, ended)
			within(t, "the change of the size", resized, ended) // the last use of the terminal by the server
			within(t, "the end", ended, nil)
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit %d, want %d", code, c.code)
			}
			if after := modes(t, terminal); after != before {
				t.Errorf("the terminal was %+v and is %+v", before, after)
			}
			if req := <-x.asked; !req.TTY || req.Rows != 24 || req.Columns != 80 || req.Term != "xterm" {
				t.Errorf("asked for %+v", req)
			}
		})
	}
}
