package agent

import (
	"net"
	"testing"
)

// A route that leads to a gateway may reach an unrelated machine with the address of the container.
func TestAForwardStaysOnTheContainersNetwork(t *testing.T) {
	t.Parallel()
	network := func(text string) net.Addr {
		ip, n, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		return &net.IPNet{IP: ip, Mask: n.Mask}
	}
	from := func(text string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(text), Port: 40000} }
	own := []net.Addr{network("127.0.0.1/8"), network("10.0.3.7/24"), network("172.18.0.1/16"), network("fd00::1/64")}
	for _, c := range []struct {
		local, remote string
		want          bool
	}{
		{"172.18.0.1", "172.18.0.2", true},
		{"127.0.0.1", "127.0.0.1", true}, // a test's own process
		{"fd00::1", "fd00::2", true},
		{"10.0.3.7", "172.18.0.2", false}, // over the interface to the router
		{"10.0.3.7", "172.19.0.2", false}, // no interface in the network at all
		{"172.18.0.1", "172.19.0.2", false},
		{"fd00::1", "fd01::2", false},
		{"172.18.0.1", "", false},
	} {
		if got := onOwnNetwork(from(c.local), c.remote, own); got != c.want {
			t.Errorf("from %s to %s: %t", c.local, c.remote, got)
		}
	}
}
