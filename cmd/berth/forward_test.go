package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/coder/websocket"

	"berth/internal/lib/framed"
	"berth/wire"
)

// openForward is a server with one running job, which carries connections to ports by serve.
func openForward(t *testing.T, serve func(stream net.Conn, port int), end <-chan struct{}) *sessionServer {
	t.Helper()
	x := &sessionServer{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/jobs", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"items":[`+sessionJob+`]}`) })
	mux.HandleFunc("GET /v1/jobs/{id}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, sessionJob) })
	mux.HandleFunc("POST /v1/jobs/{id}/sessions", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id":"s1","kind":"forward"}`)
	})
	mux.HandleFunc("GET /v1/sessions/{id}", func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		streams, err := framed.Mux(ws, false, framed.Beats{})
		if err != nil {
			return
		}
		defer streams.Close()
		go func() {
			for {
				stream, err := streams.Accept()
				if err != nil {
					return
				}
				port, err := framed.TakePort(stream)
				if err == nil {
					go serve(stream, port)
				}
			}
		}()
		select {
		case <-end:
			framed.Close(ws, wire.CauseJobEnded, "the container of the job has ended")
		case <-streams.CloseChan():
		}
	})
	x.Server = httptest.NewServer(mux)
	t.Cleanup(func() { x.CloseClientConnections(); x.Close() })
	return x
}

func TestPortForwardCarriesConnections(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	x := openForward(t, func(stream net.Conn, port int) {
		defer stream.Close()
		if port != 8888 {
			_ = framed.AnswerPort(stream, fmt.Errorf("port %d of the container: connection refused", port))
			return
		}
		_ = framed.AnswerPort(stream, nil)
		text, _ := io.ReadAll(stream)
		_, _ = stream.Write([]byte(strings.ToUpper(string(text))))
	}, end)
	cmd := x.berth(t, "port-forward", "digits", "8888:0", "9999:0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errsR, errsW := io.Pipe()
	cmd.Stderr = errsW
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	address := func(port string) string {
		t.Helper()
		if !lines.Scan() {
			t.Fatal("no line")
		}
		m := regexp.MustCompile(`^Forwarding (127\.0\.0\.1:\d+) to port ` + port + ` of .*digits`).FindStringSubmatch(lines.Text())
		if m == nil {
			t.Fatalf("printed %q", lines.Text())
		}
		return m[1]
	}
	good, bad := address("8888"), address("9999")
	conn, err := net.Dial("tcp", good)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "hello")
	_ = conn.(*net.TCPConn).CloseWrite()
	if text, err := io.ReadAll(conn); err != nil || string(text) != "HELLO" {
		t.Errorf("answered %q, %v", text, err)
	}
	says := bufio.NewScanner(errsR)
	refused, err := net.Dial("tcp", bad)
	if err != nil {
		t.Fatal(err)
	}
	defer refused.Close()
	if !says.Scan() || !strings.Contains(says.Text(), "port 9999 of the container: connection refused") {
		t.Errorf("says %q", says.Text())
	}
	close(end)
	if !says.Scan() || !strings.Contains(says.Text(), "container of the job has ended") {
		t.Errorf("says %q", says.Text())
	}
	go func() { _, _ = io.Copy(io.Discard, errsR) }()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != int(exitUnreachable) {
		t.Errorf("exit %d", code)
	}
}

func TestPortForwardEndsByAnInterrupt(t *testing.T) {
	t.Parallel()
	x := openForward(t, func(stream net.Conn, _ int) { _ = stream.Close() }, nil)
	cmd := x.berth(t, "port-forward", "digits", "8888:0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !bufio.NewScanner(out).Scan() {
		t.Fatal("no line")
	}
	_ = cmd.Process.Signal(syscall.SIGINT)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != int(exitInterrupted) {
		t.Errorf("exit %d", code)
	}
	for _, ports := range []string{"x", "0", "70000", "80:x", "80:70000"} {
		if _, errs, code := endsWith(t, x.berth(t, "port-forward", "digits", ports)); code != int(exitWrong) || !strings.Contains(errs, "names no ports") {
			t.Errorf("%s: exit %d, %q", ports, code, errs)
		}
	}
}
