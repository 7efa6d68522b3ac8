package connlimit_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/internal/lib/connlimit"
)

// server answers calls of agents (GET /agent, of machine m; GET /agent/MACHINE) and of users (GET /TENANT) over a
// listener with limits, and calls of strangers (GET /) too.
func server(t *testing.T, l connlimit.Limits) (address string) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, inner, l)
	return inner.Addr().String()
}

func serve(t *testing.T, inner net.Listener, l connlimit.Limits) {
	t.Helper()
	if l.Machine == 0 {
		l.Machine = 64
	}
	s := &http.Server{
		ConnContext: connlimit.Context,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			machine, agent := strings.CutPrefix(r.URL.Path, "/agent")
			switch {
			case r.URL.Path == "/":
			case agent:
				connlimit.Agent(r.Context(), berth.MachineID("m"+machine))
			default:
				if err := connlimit.User(r.Context(), berth.TenantID(r.URL.Path[1:])); err != nil {
					w.Header().Set("Connection", "close")
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}
		}),
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(connlimit.New(inner, l)) }()
	t.Cleanup(func() { _ = s.Close(); <-ended })
}

type client struct {
	t  *testing.T
	c  net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, address string) *client {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &client{t, c, bufio.NewReader(c)}
}

// get returns the status of a call, 0 if the connection is closed.
func (c *client) get(path string) int {
	c.t.Helper()
	_ = c.c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c.c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return 0
	}
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// closed waits until the server has closed the connection.
func (c *client) closed() bool {
	_ = c.c.SetReadDeadline(time.Now().Add(time.Minute))
	_, err := c.in.ReadByte()
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

func TestStrangersMakeRoomAndKnownCallersStay(t *testing.T) {
	t.Parallel()
	address := server(t, connlimit.Limits{Total: 12, Users: 4, Tenant: 3, PerAddress: 100})
	agent, user := dial(t, address), dial(t, address)
	if agent.get("/agent") != 200 || user.get("/a") != 200 {
		t.Fatal("the first calls fail")
	}
	var strangers []*client
	for range 50 {
		s := dial(t, address)
		if code := s.get("/"); code != 200 {
			t.Fatalf("a newcomer is answered %d", code)
		}
		strangers = append(strangers, s)
	}
	for i, s := range strangers[:40] { // 10 have room with the two
		if !s.closed() {
			t.Errorf("stranger %d of 50 has not made room", i)
		}
	}
	if code := strangers[49].get("/"); code != 200 {
		t.Errorf("the newest stranger: %d", code)
	}
	if agent.get("/agent") != 200 || user.get("/a") != 200 {
		t.Error("a known caller had to make room")
	}
}

func TestUsersLeaveRoomForAgents(t *testing.T) {
	t.Parallel()
	address := server(t, connlimit.Limits{Total: 8, Users: 4, Tenant: 3, PerAddress: 100})
	for i, c := range []struct {
		tenant string
		status int
	}{{"a", 200}, {"a", 200}, {"a", 200}, {"a", 503}, {"b", 200}, {"b", 503}} {
		u := dial(t, address)
		if code := u.get("/" + c.tenant); code != c.status {
			t.Errorf("connection %d, of tenant %s: %d, want %d", i, c.tenant, code, c.status)
		}
		if c.status == 503 && !u.closed() {
			t.Errorf("connection %d was refused and is open", i)
		}
	}
	var agents []*client
	for range 4 {
		a := dial(t, address)
		if code := a.get("/agent"); code != 200 {
			t.Fatalf("an agent is answered %d", code)
		}
		agents = append(agents, a)
	}
	if late := dial(t, address); late.get("/agent") != 0 {
		t.Error("there are more connections than allowed")
	}
	_ = agents[0].c.Close()
	for late := time.Now().Add(time.Minute); dial(t, address).get("/agent") != 200; { // once the server has seen that
		if time.Now().After(late) {
			t.Fatal("the place of a closed connection is not free")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestStrangersOfOneAddressAreBoundedButThoseOfAProxy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		proxies []netip.Prefix
		closed  int
	}{
		{"direct", nil, 7},
		{"by proxy", []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, 0},
	} {
		address := server(t, connlimit.Limits{Total: 100, Users: 50, Tenant: 50, PerAddress: 3, Proxies: c.proxies})
		var all []*client
		for range 10 {
			s := dial(t, address)
			if code := s.get("/"); code != 200 {
				t.Fatalf("%s: a newcomer is answered %d", c.name, code)
			}
			all = append(all, s)
		}
		for i, s := range all {
			if i < c.closed && !s.closed() {
				t.Errorf("%s: connection %d is open", c.name, i)
			}
			if i >= c.closed && s.get("/") != 200 {
				t.Errorf("%s: connection %d is closed", c.name, i)
			}
		}
	}
}

func TestAMachinesConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	address := server(t, connlimit.Limits{Total: 10, Users: 4, Tenant: 3, PerAddress: 100, Machine: 3})
	var kept []*client
	for range 3 {
		c := dial(t, address)
		if code := c.get("/agent/1"); code != 200 {
			t.Fatalf("an agent is answered %d", code)
		}
		kept = append(kept, c)
	}
	other := dial(t, address)
	if code := other.get("/agent/2"); code != 200 {
		t.Fatalf("another agent is answered %d", code)
	}
	var more []*client
	for i := range 20 {
		c := dial(t, address)
		if code := c.get("/agent/1"); code != 200 {
			t.Fatalf("connection %d of a machine: %d", i+4, code)
		}
		more = append(more, c)
	}
	for i, c := range more[:14] { // 6 have room with the four
		if !c.closed() {
			t.Errorf("connection %d of a machine has not made room", i+4)
		}
	}
	for _, c := range append(kept, other) {
		if c.get("/agent/1") != 200 {
			t.Error("an agent's connection had to make room")
		}
	}
	_ = kept[0].c.Close()
}

// claimed is a listener whose connections claim to come from an address.
type claimed struct {
	net.Listener
	from net.Addr
}

type claimedConn struct {
	net.Conn
	from net.Addr
}

func (c claimedConn) RemoteAddr() net.Addr { return c.from }

func (l claimed) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return claimedConn{c, l.from}, err
}

func TestAProxyMayBeOneIPv6Address(t *testing.T) {
	t.Parallel()
	for from, proxied := range map[string]bool{"[2001:db8::1:2]:80": true, "[2001:db8::1:3]:80": false} {
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))
		serve(t, claimed{inner, at}, connlimit.Limits{
			Total: 100, Users: 50, Tenant: 50, PerAddress: 1, Proxies: []netip.Prefix{netip.MustParsePrefix("2001:db8::1:2/128")},
		})
		first := dial(t, inner.Addr().String())
		if first.get("/") != 200 || dial(t, inner.Addr().String()).get("/") != 200 {
			t.Fatal("a stranger is not answered")
		}
		if proxied && first.get("/") != 200 {
			t.Errorf("%s: a connection of the proxy had to make room for another", from)
		}
		if !proxied && !first.closed() {
			t.Errorf("%s: a stranger has two connections", from)
		}
	}
}
