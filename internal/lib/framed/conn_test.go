package framed_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"berth/internal/lib/framed"
	"berth/wire"
)

// ends are the two ends of one websocket.
type ends struct {
	user, machine         *framed.Conn
	userWS, machineWS     *websocket.Conn
	userErr, machineErr   chan error
	status, resize, other chan string
}

func connect(t *testing.T, beats framed.Beats) *ends {
	t.Helper()
	accepted := make(chan *websocket.Conn, 1)
	over := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
		}
		accepted <- ws
		<-over
	}))
	t.Cleanup(func() { close(over); web.Close() })
	e := &ends{
		userErr: make(chan error, 1), machineErr: make(chan error, 1),
		status: make(chan string, 10), resize: make(chan string, 10), other: make(chan string, 10),
	}
	var err error
	if e.userWS, _, err = websocket.Dial(t.Context(), web.URL, nil); err != nil {
		t.Fatal(err)
	}
	e.machineWS = <-accepted
	e.user = framed.New(e.userWS, []framed.Channel{framed.Stdout, framed.Stderr}, []framed.Channel{framed.Stdin}, beats,
		func(_ framed.Channel, p []byte) { e.status <- string(p) })
	e.machine = framed.New(e.machineWS, []framed.Channel{framed.Stdin}, []framed.Channel{framed.Stdout, framed.Stderr}, beats,
		func(c framed.Channel, p []byte) {
			if c == framed.Resize {
				e.resize <- string(p)
			} else {
				e.other <- string(p)
			}
		})
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { e.userErr <- e.user.Serve(ctx) })
	all.Go(func() { e.machineErr <- e.machine.Serve(ctx) })
	t.Cleanup(func() { cancel(); all.Wait() })
	return e
}

func TestBytesPassBothWaysUntilEachSideCloses(t *testing.T) {
	t.Parallel()
	e := connect(t, framed.Beats{})
	sent := make([]byte, 5<<20)
	_, _ = rand.Read(sent)
	var all sync.WaitGroup
	all.Go(func() { // the machine echoes, as cat does, and ends with the input
		n, err := io.Copy(e.machine.Writer(framed.Stdout), e.machine.Reader(framed.Stdin))
		if err != nil || n != int64(len(sent)) {
			t.Errorf("echoed %d bytes, %v", n, err)
		}
		if err := e.machine.Writer(framed.Stdout).Close(); err != nil {
			t.Error(err)
		}
		code := 0
		if err := e.machine.SendStatus(wire.SessionStatus{Exit: &code, Cause: wire.CauseExited}); err != nil {
			t.Error(err)
		}
	})
	all.Go(func() {
		in := e.user.Writer(framed.Stdin)
		if _, err := in.Write(sent); err != nil {
			t.Error(err)
		}
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	})
	got, err := io.ReadAll(e.user.Reader(framed.Stdout))
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
	all.Wait()
	if s := <-e.status; s != `{"exit":0,"cause":"exited"}` {
		t.Errorf("status %s", s)
	}
}

// A program that takes no output, such as a pager, must not look like a dead connection, and must
// not hold back the other channels.
func TestAReaderThatStandsStillCutsNothing(t *testing.T) {
	t.Parallel()
	e := connect(t, framed.Beats{Every: 5 * time.Millisecond, Dead: 2 * time.Second})
	var all sync.WaitGroup
	all.Go(func() { _, _ = e.machine.Writer(framed.Stdout).Write(make([]byte, 4*framed.Window)) })
	if _, err := e.machine.Writer(framed.Stderr).Write([]byte("still here")); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 10)
	if _, err := io.ReadFull(e.user.Reader(framed.Stderr), p); err != nil || string(p) != "still here" {
		t.Errorf("the other channel: %q, %v", p, err)
	}
	for range 100 { // round trips over the connection, with pings in between
		if err := e.user.Send(framed.Resize, []byte(`{"rows":1,"columns":2}`)); err != nil {
			t.Fatal(err)
		}
		<-e.resize
	}
	if n, err := io.CopyN(io.Discard, e.user.Reader(framed.Stdout), 4*framed.Window); err != nil {
		t.Errorf("%d bytes later: %v", n, err)
	}
	all.Wait()
}

func TestACutFailsReadersAndWriters(t *testing.T) {
	t.Parallel()
	e := connect(t, framed.Beats{})
	_ = e.userWS.CloseNow()
	if _, err := io.ReadAll(e.machine.Reader(framed.Stdin)); err == nil {
		t.Error("a cut is read as the end of the input")
	}
	if _, err := e.machine.Writer(framed.Stdout).Write(make([]byte, 2*framed.Window)); err == nil {
		t.Error("a write after the cut succeeds")
	}
	if _, err := io.ReadAll(e.user.Reader(framed.Stdout)); err == nil {
		t.Error("the cutting side reads an end")
	}
	if _, _, ok := framed.Closed(<-e.machineErr); ok {
		t.Error("a cut has a cause")
	}
}

func TestASilentPeerIsDead(t *testing.T) {
	t.Parallel()
	accepted := make(chan *websocket.Conn, 1)
	over := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, _ := websocket.Accept(w, r, nil) // and never reads, so it answers no ping
		accepted <- ws
		<-over
	}))
	t.Cleanup(func() { close(over); web.Close() })
	ws, _, err := websocket.Dial(t.Context(), web.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := framed.New(ws, []framed.Channel{framed.Stdout}, nil, framed.Beats{Every: time.Millisecond, Dead: 50 * time.Millisecond}, nil)
	if err := c.Serve(t.Context()); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("served until %v", err)
	}
	_ = (<-accepted).CloseNow()
}

func TestMoreBytesThanTheWindowAreRefused(t *testing.T) {
	t.Parallel()
	e := connect(t, framed.Beats{})
	for range framed.Window/framed.MaxPayload + 1 {
		if err := e.userWS.Write(t.Context(), websocket.MessageBinary, make([]byte, framed.MaxFrame)); err != nil {
			break
		}
	}
	if err := <-e.machineErr; err == nil {
		t.Error("a sender without credit is served")
	}
}

func TestCloseFramesCarryTheirCause(t *testing.T) {
	t.Parallel()
	for _, cause := range []wire.SessionCause{wire.CauseAgentStops, wire.CauseRevoked, wire.CauseExited, wire.CauseReplicaFails} {
		e := connect(t, framed.Beats{})
		framed.Close(e.machineWS, cause, string(bytes.Repeat([]byte("é"), 200)))
		got, message, ok := framed.Closed(<-e.userErr)
		if !ok || got != cause || message == "" {
			t.Errorf("%s arrives as %q, %q", cause, got, message)
		}
	}
}
