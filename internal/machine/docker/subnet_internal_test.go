package docker

import (
	"crypto/sha256"
	"net/netip"
	"testing"

	"berth/activities/node"
	"berth/internal/lib/netns/netnstest"
)

func prefixes(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// The smallest subnet that has an address for each container, the gateway and the two ends.
func TestSubnetsHoldTheContainers(t *testing.T) {
	t.Parallel()
	for hosts, bits := range map[int]int{1: 29, 5: 29, 6: 28, 13: 28, 14: 27, 512: 22} {
		s := newSubnets(Options{Subnets: prefixes("10.71.0.0/16")}, node.Network{Hosts: hosts}, sha256.Sum256(nil))
		if s.bits != bits {
			t.Errorf("%d containers get a /%d, want a /%d", hosts, s.bits, bits)
		}
	}
}

// Every subnet of all ranges is a candidate once, wherever the choice starts.
func TestSubnetsOfAllRangesAreCandidates(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "b", "c"} {
		s := newSubnets(Options{Subnets: prefixes("10.71.0.0/27", "172.29.0.0/28", "10.0.0.0/30", "fd00::/8")}, node.Network{Hosts: 1},
			sha256.Sum256([]byte(name)))
		seen := map[netip.Prefix]bool{}
		for i := range s.total {
			p := s.at((s.first%s.total + i) % s.total)
			if seen[p] || p != p.Masked() || p.Bits() != 29 {
				t.Errorf("candidate %s is odd", p)
			}
			seen[p] = true
		}
		if len(seen) != 6 {
			t.Errorf("candidates are %v, want 6", seen)
		}
	}
}

// A subnet is free if no interface and no route of the host overlaps it.
func TestRoutesTakeSubnets(t *testing.T) {
	t.Parallel()
	host := netnstest.New(t)
	host.Bridge("bn-one", "10.71.0.1/29")
	host.Bridge("bn-two", "192.168.9.1/24")
	host.Run("ip", "link", "set", "bn-two", "mtu", "1400")
	host.Run("ip", "route", "add", "10.71.0.8/29", "via", "192.168.9.2")
	host.Run("ip", "route", "add", "unreachable", "10.71.0.16/30", "table", "77")
	host.Run("ip", "route", "add", "default", "via", "192.168.9.2")
	host.Run("ip", "route", "add", "0.0.0.0/1", "via", "192.168.9.2")
	o := Options{Subnets: prefixes("10.71.0.0/27"), NetNS: host.Path}
	s := newSubnets(o, node.Network{Hosts: 1}, sha256.Sum256(nil))
	got, mtu, err := s.next()
	if err != nil || got.String() != "10.71.0.24/29" || mtu != 1400 {
		t.Errorf("the free subnet is %s, mtu %d, %v", got, mtu, err)
	}
	s.skip()
	if got, _, err := s.next(); err == nil {
		t.Errorf("%s is chosen, though none is left", got)
	}
	for bridge, want := range map[string]bool{"bn-one": false, "bn-two": true} {
		if got, err := s.contested(netip.MustParsePrefix("10.71.0.0/29"), bridge); err != nil || got != want {
			t.Errorf("the subnet of bn-one is contested for %s: %v, %v", bridge, got, err)
		}
	}
}
