package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/activities/node/fakeruntime"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// user is a client of the site with a token of tenant default.
func (s *site) user() *client.Client {
	s.t.Helper()
	made, err := s.db.Tokens.Create(s.t.Context(), spec.NewToken{Name: "alice", Tenant: "default", Role: spec.RoleUser}, "operator:test")
	if err != nil {
		s.t.Fatal(err)
	}
	c := client.New(s.url, made.Secret)
	s.t.Cleanup(c.Close)
	return c
}

// entered is a job that sleeps on the machine, running.
func (m *machine) entered() (berth.JobID, string) {
	m.s.t.Helper()
	id := m.s.submit(nil, "sleep", "1h")
	m.place(id)
	m.until("job runs", func() bool { return m.s.job(id).Status == berth.Running })
	return id, berth.ContainerName(id, 0, 1)
}

func command(args ...string) spec.NewSession {
	return spec.NewSession{Kind: spec.SessionExec, Command: append([]string{"/testprog"}, args...)}
}

// run runs a command to its end.
func (m *machine) exec(c *client.Client, id berth.JobID, in io.Reader, args ...string) (out, errs string, code int, err error) {
	m.s.t.Helper()
	var o, e bytes.Buffer
	code, err = c.Sessions().Run(m.s.t.Context(), id, command(args...), client.Streams{Stdin: in, Stdout: &o, Stderr: &e})
	return o.String(), e.String(), code, err
}

func TestExecRunsACommandInTheContainer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	c := s.user()
	id, name := m.entered()
	out, errs, code, err := m.exec(c, id, nil, "do", "echo out", "stderr err", "exit 3")
	if err != nil || out != "out\n" || errs != "err\n" || code != 3 {
		t.Errorf("out %q, err %q, exit %d, %v", out, errs, code, err)
	}
	text := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB, more than a window
	out, _, code, err = m.exec(c, id, strings.NewReader(text), "cat")
	if err != nil || out != text || code != 0 {
		t.Errorf("cat returned %d bytes, exit %d, %v", len(out), code, err)
	}
	if _, errs, code, err = m.exec(c, id, nil, "nothing-like-this"); err != nil || code != 2 || !strings.Contains(errs, "unknown command") {
		t.Errorf("a wrong command: %q, exit %d, %v", errs, code, err)
	}
	m.until("no command is left", func() bool { return m.runtime.RunningExecs(name) == 0 })
	entries, err := os.ReadDir(filepath.Join(m.cfg.StateDir, "ranks", name, "execs"))
	if err != nil || len(entries) != 0 {
		t.Errorf("notes of commands are left: %v, %v", entries, err)
	}
}

func TestManySessionsRunAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	c := s.user()
	id, _ := m.entered()
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			text := fmt.Sprintf("session %d", i)
			out, _, code, err := m.exec(c, id, strings.NewReader(text), "cat")
			if err != nil || out != text || code != 0 {
				t.Errorf("%d: %q, exit %d, %v", i, out, code, err)
			}
		})
	}
	all.Wait()
}

// started is a session that runs cat, proven by an echo.
type started struct {
	in     *io.PipeWriter
	out    *bufferedReader
	cancel context.CancelFunc
	ended  chan error // nil for an exit
	code   int
}

type bufferedReader struct {
	*io.PipeReader
	w *io.PipeWriter
}

func (m *machine) begin(c *client.Client, id berth.JobID, req spec.NewSession, of client.Streams) *started {
	m.s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	x := &started{in: inW, out: &bufferedReader{outR, outW}, cancel: cancel, ended: make(chan error, 1)}
	of.Stdin, of.Stdout, of.Stderr = inR, outW, io.Discard
	go func() {
		code, err := c.Sessions().Run(ctx, id, req, of)
		x.code = code
		_ = outW.Close()
		x.ended <- err
	}()
	m.s.t.Cleanup(func() { cancel(); _ = inW.Close() })
	if _, err := io.WriteString(inW, "ready"); err != nil {
		m.s.t.Fatal(err)
	}
	if _, err := io.ReadFull(outR, make([]byte, 5)); err != nil {
		m.s.t.Fatalf("no echo: %v", errors.Join(err, <-x.ended))
	}
	go func() { _, _ = io.Copy(io.Discard, outR) }()
	return x
}

// wait returns how a session ended.
func (x *started) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-x.ended:
		return err
	case <-time.After(patience):
		t.Fatal("the session does not end")
		return nil
	}
}

func TestASessionWhoseUserGoesLeavesNoProcess(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id, name := m.entered()
	x := m.begin(s.user(), id, command("do", "print ready", "sleep 1h"), client.Streams{})
	if n := m.runtime.RunningExecs(name); n != 1 {
		t.Fatalf("%d commands run", n)
	}
	x.cancel()
	_ = x.wait(t)
	m.until("the command has ended", func() bool { return m.runtime.RunningExecs(name) == 0 })
	s.until("the end is recorded", func() bool { return s.lastAct(id) == "client_gone" })
}

// lastAct returns the cause of the last end of a session of the job.
func (s *site) lastAct(id berth.JobID) (cause string) {
	_ = s.db.Pool().QueryRow(s.t.Context(), `SELECT cause FROM acts WHERE job = $1 AND event = 'ended' ORDER BY id DESC LIMIT 1`, id).Scan(&cause)
	return cause
}

// Each end of a session other than the command's own is an error with its reason, never an exit
// code.
func TestASessionEndsWithAReason(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end    func(s *site, m *machine, id berth.JobID, container string)
		causes []wire.SessionCause
	}{
		"the container ends": {func(_ *site, m *machine, _ berth.JobID, container string) {
			_ = m.runtime.Signal(context.Background(), container, "SIGKILL")
		}, []wire.SessionCause{wire.CauseJobEnded, "exit"}},
		"the job is canceled": {func(s *site, _ *machine, id berth.JobID, _ string) {
			_, _ = s.db.Jobs.RequestCancel(context.Background(), "", id, "user:test", nil)
		}, []wire.SessionCause{wire.CauseJobEnded, "exit"}},
		"the agent stops": {func(_ *site, m *machine, _ berth.JobID, _ string) { go func() { _ = m.stop() }() },
			[]wire.SessionCause{wire.CauseAgentStops}},
		"the token is revoked": {func(s *site, _ *machine, _ berth.JobID, _ string) {
			_, _ = s.db.Pool().Exec(context.Background(), `UPDATE tokens SET revoked_at = now() WHERE name = 'alice'`)
		}, []wire.SessionCause{wire.CauseRevoked}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			m := s.machine("m1")
			id, container := m.entered()
			x := m.begin(s.user(), id, command("cat"), client.Streams{})
			c.end(s, m, id, container)
			err := x.wait(t)
			got := wire.SessionCause("exit")
			if cut, ok := errors.AsType[*client.CutError](err); ok {
				got = cut.Cause
			} else if err != nil || x.code == 0 {
				t.Fatalf("ended with exit %d, %v", x.code, err)
			}
			ok := false
			for _, want := range c.causes {
				ok = ok || got == want
			}
			if !ok {
				t.Errorf("ended by %q (%v), want one of %q", got, err, c.causes)
			}
			m.until("the command has ended", func() bool { return m.runtime.RunningExecs(container) == 0 })
		})
	}
}

// A killed agent sends nothing: the connection is cut, which is an error, and the next agent ends
// the command.
func TestTheNextAgentEndsTheCommandsOfAKilledOne(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id, name := m.entered()
	// The engine does not let the first process end its command, as if it were killed.
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "SignalExec" {
			return errors.New("killed")
		}
		return nil
	})
	x := m.begin(s.user(), id, command("do", "print ready", "sleep 1h"), client.Streams{})
	note := filepath.Join(m.cfg.StateDir, "ranks", name, "execs")
	entries, err := os.ReadDir(note)
	if err != nil || len(entries) != 1 {
		t.Fatalf("notes of commands: %v, %v", entries, err)
	}
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	_ = x.wait(t)
	if n := m.runtime.RunningExecs(name); n != 1 {
		t.Fatalf("%d commands run without an agent", n)
	}
	m.runtime.Intercept(nil)
	m.start()
	m.until("the command has ended", func() bool { return m.runtime.RunningExecs(name) == 0 })
	if _, _, code, err := m.exec(s.user2(), id, nil, "exit", "4"); err != nil || code != 4 {
		t.Errorf("the next session: exit %d, %v", code, err)
	}
}

// user2 is another token of the same tenant.
func (s *site) user2() *client.Client {
	s.t.Helper()
	made, err := s.db.Tokens.Create(s.t.Context(), spec.NewToken{Name: "ann", Tenant: "default", Role: spec.RoleUser}, "operator:test")
	if err != nil {
		s.t.Fatal(err)
	}
	return client.New(s.url, made.Secret)
}

func TestSizesAndSignalsReachTheCommand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id, _ := m.entered()
	sizes, signals := make(chan client.Size, 1), make(chan string, 1)
	seen := make(chan string, 100)
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "ResizeExec" || c.Method == "SignalExec" && c.Subject != "" {
			seen <- c.Subject
		}
		return nil
	})
	req := command("cat")
	req.TTY, req.Rows, req.Columns, req.Term = true, 24, 80, "xterm-256color"
	x := m.begin(s.user(), id, req, client.Streams{Sizes: sizes, Signals: signals})
	if got := <-seen; got != "24x80" {
		t.Errorf("first size %s", got)
	}
	sizes <- client.Size{Rows: 50, Columns: 132}
	if got := <-seen; got != "50x132" {
		t.Errorf("next size %s", got)
	}
	signals <- "SIGINT"
	if got := <-seen; got != "SIGINT" {
		t.Errorf("signal %s", got)
	}
	if err := x.wait(t); err != nil || x.code != 130 {
		t.Errorf("exit %d, %v", x.code, err)
	}
}

func TestAnEngineThatRefusesAnExecIsNamed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id, _ := m.entered()
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "Exec" {
			return errors.New("the engine is ill")
		}
		return nil
	})
	_, _, _, err := m.exec(s.user(), id, nil, "exit", "0")
	if berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "the engine is ill") {
		t.Errorf("refused with %v", err)
	}
}
