package agent

import (
	"net"
	"net/netip"
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
	own := []net.Addr{network("127.0.0.1/8"), network("10.0.3.7/8"), network("172.18.0.1/16"), network("fd00::1/64")}
	for _, c := range []struct {
		local, remote, subnet string
		want                  bool
	}{
		{"172.18.0.1", "172.18.0.2", "172.18.0.0/16", true},
		{"127.0.0.1", "127.0.0.1", "127.0.0.0/8", true}, // a test's own process
		{"fd00::1", "fd00::2", "fd00::/64", true},
		{"10.0.3.7", "172.18.0.2", "172.18.0.0/16", false}, // over the interface to the router
		{"10.0.3.7", "172.19.0.2", "172.19.0.0/16", false}, // no interface in the network at all
		{"172.18.0.1", "172.19.0.2", "172.19.0.0/16", false},
		{"fd00::1", "fd01::2", "fd01::/64", false},
		{"172.18.0.1", "", "172.18.0.0/16", false},
		{"10.0.3.7", "10.5.0.2", "10.5.0.0/24", false},       // the LAN contains the network of the container
		{"10.0.3.7", "10.0.3.9", "10.0.3.0/24", false},       // and the machine's own address is in both
		{"172.18.0.1", "172.18.0.1", "172.18.0.0/16", false}, // the machine itself
		{"172.18.0.1", "172.18.0.2", "172.18.0.0/24", false},
	} {
		if got := onContainerNetwork(from(c.local), c.remote, netip.MustParsePrefix(c.subnet), own); got != c.want {
			t.Errorf("from %s to %s in %s: %t", c.local, c.remote, c.subnet, got)
		}
	}
	if onContainerNetwork(from("172.18.0.1"), "172.18.0.2", netip.Prefix{}, own) {
		t.Error("an engine that reports no network passes")
	}
}
