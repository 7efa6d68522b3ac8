package faultproxy_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/e2e/faultproxy"
)

// patience bounds every wait; machines that run tests are busy.
const patience = 10 * time.Minute

// server answers each line with "ok " and the line, and records the lines.
type server struct {
	address string
	mu      sync.Mutex
	lines   []string
	news    chan struct{} // gets one, without blocking, with each line
}

func startServer(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{address: l.Addr().String(), news: make(chan struct{}, 1)}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return s
}

func (s *server) serve(c net.Conn) {
	defer c.Close()
	for in := bufio.NewScanner(c); in.Scan(); {
		s.mu.Lock()
		s.lines = append(s.lines, in.Text())
		s.mu.Unlock()
		select {
		case s.news <- struct{}{}:
		default:
		}
		if _, err := io.WriteString(c, "ok "+in.Text()+"\n"); err != nil {
			return
		}
	}
}

func (s *server) got(line string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains("\n"+strings.Join(s.lines, "\n")+"\n", "\n"+line+"\n")
}

// awaitLine waits until the server has got a line.
func (s *server) awaitLine(t *testing.T, line string) {
	t.Helper()
	deadline := time.After(patience)
	for !s.got(line) {
		select {
		case <-s.news:
		case <-deadline:
			t.Fatalf("the server never got %q, only %q", line, s.lines)
		}
	}
}

func start(t *testing.T) (*server, *faultproxy.Proxy) {
	t.Helper()
	s := startServer(t)
	p, err := faultproxy.Start(s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return s, p
}

type conn struct {
	t *testing.T
	*net.TCPConn
	in *bufio.Reader
}

func dial(t *testing.T, p *faultproxy.Proxy) *conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &conn{t, c.(*net.TCPConn), bufio.NewReader(c)}
}

func (c *conn) send(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *conn) want(line string) {
	c.t.Helper()
	got, err := c.in.ReadString('\n')
	if err != nil || got != "ok "+line+"\n" {
		c.t.Fatalf("got %q, %v, want the reply to %q", got, err, line)
	}
}

// wantBroken waits until the connection breaks, by a reset or an end.
func (c *conn) wantBroken() {
	c.t.Helper()
	_, err := c.in.ReadByte()
	if err == nil {
		c.t.Fatal("the connection still carries replies")
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		c.t.Fatal("the connection never broke")
	}
}

// wantReset checks that a new connection breaks, be it before its maker knows
// that it was made.
func wantReset(t *testing.T, p *faultproxy.Proxy) {
	t.Helper()
	raw, err := net.Dial("tcp", p.Address())
	if err != nil {
		return
	}
	defer raw.Close()
	if err := raw.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	(&conn{t, raw.(*net.TCPConn), bufio.NewReader(raw)}).wantBroken()
}

func TestAGoodLinkCarriesEverything(t *testing.T) {
	t.Parallel()
	_, p := start(t)
	c := dial(t, p)
	long := strings.Repeat("x", 30<<10)
	for _, line := range []string{"one", long, "three"} {
		c.send(line)
		c.want(line)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after our end came %v, want the server's", err)
	}
}

func TestADelayHoldsBothWays(t *testing.T) {
	t.Parallel()
	_, p := start(t)
	c := dial(t, p)
	const delay = 60 * time.Millisecond
	p.Delay(delay)
	began := time.Now()
	c.send("slow")
	c.want("slow")
	if took := time.Since(began); took < 2*delay {
		t.Errorf("there and back took %s, want at least %s", took, 2*delay)
	}
}

func TestADroppedLinkResetsOldAndNewConnectionsUntilItHeals(t *testing.T) {
	t.Parallel()
	_, p := start(t)
	old := dial(t, p)
	old.send("before")
	old.want("before")
	p.Drop()
	old.wantBroken()
	wantReset(t, p)
	p.Heal()
	c := dial(t, p)
	c.send("after")
	c.want("after")
}

func TestRequestsWaitInACutAndArriveWhenItHealsEvenFromTheDead(t *testing.T) {
	t.Parallel()
	s, p := start(t)
	patient, dead := dial(t, p), dial(t, p)
	for _, c := range []*conn{patient, dead} {
		c.send("before")
		c.want("before")
	}
	p.Cut(faultproxy.ToServer)
	patient.send("patient")
	dead.send("zombie")
	_ = dead.Close()
	// A third one, made in the cut, shows that the two had their chance.
	late := dial(t, p)
	late.send("late")
	if s.got("patient") || s.got("zombie") || s.got("late") {
		t.Fatalf("the server got %q through the cut", s.lines)
	}
	p.Heal()
	patient.want("patient")
	late.want("late")
	s.awaitLine(t, "zombie")
}

func TestRepliesWaitInACutTheOtherWay(t *testing.T) {
	t.Parallel()
	s, p := start(t)
	c := dial(t, p)
	p.Cut(faultproxy.ToClient)
	c.send("heard")
	s.awaitLine(t, "heard")
	p.Heal()
	c.want("heard")
}

func TestACutReplyLosesTheAnswerOfAnAppliedRequest(t *testing.T) {
	t.Parallel()
	s, p := start(t)
	c, other := dial(t, p), dial(t, p)
	cut := p.CutReply([]byte("commit 7"))
	other.send("select")
	other.want("select")
	c.send("begin 7")
	c.want("begin 7")
	// In two packets, so that the request is found although no read has it whole.
	if _, err := io.WriteString(c, "comm"); err != nil {
		t.Fatal(err)
	}
	c.send("it 7")
	c.wantBroken()
	select {
	case <-cut:
	case <-time.After(patience):
		t.Fatal("nobody was told of the cut")
	}
	s.awaitLine(t, "commit 7")
	other.send("commit 7") // once only
	other.want("commit 7")
}

func TestCallingACutReplyOffLeavesRepliesAlone(t *testing.T) {
	t.Parallel()
	_, p := start(t)
	cut := p.CutReply(nil)
	p.Heal()
	c := dial(t, p)
	c.send("any")
	c.want("any")
	select {
	case <-cut:
		t.Error("it was cut all the same")
	default:
	}
}

func TestTargetsMayBeAwayAndMove(t *testing.T) {
	t.Parallel()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	p, err := faultproxy.Start(gone.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	wantReset(t, p)
	p.SetTargets(gone.Addr().String(), startServer(t).address)
	c := dial(t, p)
	c.send("here")
	c.want("here")
	if p.Open() != 1 {
		t.Errorf("%d connections are open, want 1", p.Open())
	}
}

func TestAClosedProxyBreaksWhatIsOpen(t *testing.T) {
	t.Parallel()
	_, p := start(t)
	c := dial(t, p)
	c.send("before")
	c.want("before")
	p.Cut()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	c.wantBroken()
}
