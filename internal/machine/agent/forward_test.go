package agent_test

import (
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"berth"
	"berth/api/client"
	"berth/internal/lib/framed"
	"berth/spec"
	"berth/wire"
)

// serving is a running job that answers on a port, and a forward to it.
func (m *machine) serving(c *client.Client, port int) (berth.JobID, *client.Forward) {
	m.s.t.Helper()
	id := m.s.submit(nil, "serve", strconv.Itoa(port))
	m.place(id)
	m.until("job runs", func() bool { return m.s.job(id).Status == berth.Running })
	f, err := c.Sessions().Forward(m.s.t.Context(), id, spec.NewSession{Kind: spec.SessionForward})
	if err != nil {
		m.s.t.Fatal(err)
	}
	m.s.t.Cleanup(func() { _ = f.Close() })
	return id, f
}

// freePort returns a port that nothing listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// carries sends a text through a forward and checks the answer.
func carries(t *testing.T, f *client.Forward, port int, text string) {
	t.Helper()
	conn, err := f.Dial(port)
	if err != nil {
		t.Errorf("dial: %v", err)
		return
	}
	defer conn.Close()
	go func() {
		_, _ = io.WriteString(conn, text)
		_ = conn.Close() // half: the answer still comes
	}()
	answer, err := io.ReadAll(conn)
	if err != nil || string(answer) != strings.ToUpper(text) {
		t.Errorf("%d bytes were answered by %d, which begin with %q, and the error %v",
			len(text), len(answer), answer[:min(len(answer), 200)], err)
	}
}

// listens dials until the job's server listens.
func (m *machine) listens(f *client.Forward, port int) {
	m.s.t.Helper()
	m.until("the server in the job listens", func() bool {
		conn, err := f.Dial(port)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

func TestForwardCarriesConnections(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	port := freePort(t)
	id, f := m.serving(s.user(), port)
	m.listens(f, port)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { carries(t, f, port, strings.Repeat("berth", 1<<18)) }) // 1.25 MiB each
	}
	all.Wait()
	if _, err := f.Dial(freePort(t)); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a port that nothing listens on: %v", err)
	}
	var open []net.Conn
	for len(open) < framed.MaxStreams+1 {
		conn, err := f.Dial(port)
		if err != nil {
			if !strings.Contains(err.Error(), "connections at most") {
				t.Errorf("one connection too many: %v", err)
			}
			break
		}
		open = append(open, conn)
	}
	if len(open) > framed.MaxStreams {
		t.Errorf("%d connections at once", len(open))
	}
	if err := m.runtime.Signal(t.Context(), berth.ContainerName(id, 0, 1), "SIGKILL"); err != nil {
		t.Fatal(err)
	}
	<-f.Done()
	if cut, ok := errors.AsType[*client.CutError](f.Err()); !ok || cut.Cause != wire.CauseJobEnded {
		t.Errorf("the forward ended with %v", f.Err())
	}
	s.until("the end is recorded", func() bool { return s.lastAct(id) == "job_ended" })
}

func TestDockerPortsAreForwarded(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	id, f := m.serving(s.user(), 8888)
	m.listens(f, 8888)
	carries(t, f, 8888, strings.Repeat("berth", 1<<20))
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	<-f.Done()
	if cut, ok := errors.AsType[*client.CutError](f.Err()); !ok || cut.Cause != wire.CauseAgentStops {
		t.Errorf("the forward ended with %v", f.Err())
	}
	if got := s.job(id).Status; got != berth.Running {
		t.Errorf("the job is %s", got)
	}
}
