// Package netnstest gives tests network namespaces with bridges, servers and clients. It needs
// root and the program ip; without them the test is skipped, by name.
package netnstest

import (
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/lib/netns"
)

// Space is a network namespace.
type Space struct {
	t    testing.TB
	Path string
}

// New creates an empty namespace, which ends with the test. Only its loopback is up.
func New(t testing.TB) Space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces: the test needs root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("network namespaces: the program ip is not installed")
	}
	name := "berth-" + strings.ToLower(rand.Text()[:10])
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Skipf("network namespaces cannot be created here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "delete", name).CombinedOutput(); err != nil {
			t.Errorf("delete network namespace %s: %v: %s", name, err, out)
		}
	})
	s := Space{t, filepath.Join("/run/netns", name)}
	s.Run("ip", "link", "set", "lo", "up")
	return s
}

// Existing returns the namespace at a path. The caller removes the namespace.
func Existing(t testing.TB, path string) Space { return Space{t, path} }

// Run runs a program in the namespace and returns its output. A failure ends the test.
func (s Space) Run(program string, args ...string) string {
	s.t.Helper()
	var out []byte
	err := netns.Do(s.Path, func() (err error) {
		out, err = exec.Command(program, args...).CombinedOutput()
		return err
	})
	if err != nil {
		s.t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Forward lets the namespace route between its interfaces.
func (s Space) Forward() {
	s.Run("sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
}

// Bridge creates a bridge with an address.
func (s Space) Bridge(name, address string) {
	s.t.Helper()
	s.Run("ip", "link", "add", name, "type", "bridge")
	s.Run("ip", "address", "add", address, "dev", name)
	s.Run("ip", "link", "set", name, "up")
}

// Attach connects another namespace to a bridge of this one, as an engine does with a container:
// an interface eth0 with an address, and a default route.
func (s Space) Attach(other Space, bridge, address, gateway string) {
	s.t.Helper()
	end := "v" + strings.ToLower(rand.Text()[:10])
	s.Run("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", filepath.Base(other.Path))
	s.Run("ip", "link", "set", end, "master", bridge, "up")
	other.Run("ip", "address", "add", address, "dev", "eth0")
	other.Run("ip", "link", "set", "eth0", "up")
	if gateway != "" {
		other.Run("ip", "route", "add", "default", "via", gateway)
	}
}

// Listen serves an address of the namespace until the test ends: each byte of a client
// comes back.
func (s Space) Listen(network, address string) {
	s.t.Helper()
	s.serve(network, address, func(c net.Conn) { _, _ = io.Copy(c, c) })
}

// Stream serves an address of the namespace until the test ends: each TCP connection gets bytes,
// one after the other.
func (s Space) Stream(address string) {
	s.t.Helper()
	s.serve("tcp", address, func(c net.Conn) {
		for range time.Tick(10 * time.Millisecond) {
			if _, err := c.Write([]byte("x")); err != nil {
				return
			}
		}
	})
}

// ListenPacket opens a socket of UDP in the namespace, which is closed at the end of the test.
func (s Space) ListenPacket(address string) net.PacketConn {
	s.t.Helper()
	var conn net.PacketConn
	err := netns.Do(s.Path, func() (err error) {
		conn, err = net.ListenPacket("udp", address)
		return err
	})
	if err != nil {
		s.t.Fatalf("listen on %s: %v", address, err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// serve serves an address with a function for TCP connections.
func (s Space) serve(network, address string, handle func(net.Conn)) {
	s.t.Helper()
	var closer io.Closer
	err := netns.Do(s.Path, func() error {
		if strings.HasPrefix(network, "udp") {
			c, err := net.ListenPacket(network, address)
			closer = c
			return err
		}
		l, err := net.Listen(network, address)
		closer = l
		return err
	})
	if err != nil {
		s.t.Fatalf("listen on %s: %v", address, err)
	}
	s.t.Cleanup(func() { _ = closer.Close() })
	switch c := closer.(type) {
	case net.PacketConn:
		go echoPackets(c)
	case net.Listener:
		go func() { // ends with the listener
			for {
				conn, err := c.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					handle(conn)
				}()
			}
		}()
	}
}

// echoPackets answers each packet with itself until the socket is closed.
func echoPackets(c net.PacketConn) {
	buffer := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = c.WriteTo(buffer[:n], from)
		}
	}
}

// Open connects from the namespace to an address. The caller closes the connection.
func (s Space) Open(network, address string, patience time.Duration) (net.Conn, error) {
	var conn net.Conn
	err := netns.Do(s.Path, func() (err error) {
		conn, err = net.DialTimeout(network, address, patience)
		return err
	})
	return conn, err
}

// Reach connects from the namespace to a server of Listen and reports whether the server
// answered within the patience.
func (s Space) Reach(network, address string, patience time.Duration) error {
	conn, err := s.Open(network, address, patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	return Answers(conn, patience)
}

// Answers reports whether a server of Listen answers on a connection.
func Answers(conn net.Conn, patience time.Duration) error {
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte("ping!")); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 5))
	return err
}
