package docker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"

	"berth/activities/node"
	"berth/internal/lib/netns"
)

// errOverlap reports that a subnet is taken.
var errOverlap = errors.New("the subnet is taken")

// isOverlap reports whether a network could not be created because its subnet is taken. The
// engine distinguishes this from a taken bridge by the text alone.
func isOverlap(err error) bool {
	return errors.Is(err, errOverlap) ||
		cerrdefs.IsPermissionDenied(err) && strings.Contains(err.Error(), "overlaps")
}

// subnets chooses the subnet of one network: the candidates of all ranges in order, from a place
// that depends on the network's name. So engines of one host seldom choose the same.
type subnets struct {
	space  string
	ranges []netip.Prefix
	bits   int
	total  uint32 // candidates
	first  uint32
	tried  uint32
}

// newSubnets returns the choice for a network. Each container needs an address, and so do the
// subnet, its gateway and its broadcast.
func newSubnets(o Options, n node.Network, sum [32]byte) *subnets {
	s := &subnets{space: o.NetNS, ranges: o.Subnets, bits: 29}
	for s.bits > 8 && 1<<(32-s.bits)-3 < n.Hosts {
		s.bits--
	}
	for _, r := range s.ranges {
		s.total += s.in(r)
	}
	s.first = binary.BigEndian.Uint32(sum[8:12])
	return s
}

// in returns the number of candidates in a range.
func (s *subnets) in(r netip.Prefix) uint32 {
	if !r.Addr().Is4() || r.Bits() > s.bits {
		return 0
	}
	return 1 << (s.bits - r.Bits())
}

// at returns a candidate.
func (s *subnets) at(i uint32) netip.Prefix {
	for _, r := range s.ranges {
		if n := s.in(r); i >= n {
			i -= n
			continue
		}
		start := r.Masked().Addr().As4()
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(start[:])+i<<(32-s.bits))
		return netip.PrefixFrom(netip.AddrFrom4(b), s.bits)
	}
	panic("docker: candidate beyond the ranges")
}

// skip gives the present candidate up.
func (s *subnets) skip() { s.tried++ }

// next returns the next candidate that no route of the host overlaps, and the MTU of the way out.
func (s *subnets) next() (subnet netip.Prefix, mtu int, err error) {
	routes, err := s.routes()
	if err != nil {
		return netip.Prefix{}, 0, err
	}
	for ; s.tried < s.total; s.tried++ {
		subnet = s.at((s.first%s.total + s.tried) % s.total)
		if !overlapsAny(routes, subnet, 0) {
			return subnet, outward(routes), nil
		}
	}
	return netip.Prefix{}, 0, fmt.Errorf("no subnet for %d containers is free in %v: each is taken, or overlaps "+
		"a route of this machine (berth-agent --job-networks sets the ranges): %w", 1<<(32-s.bits)-3, s.ranges,
		node.ErrNoNetwork)
}

// contested reports whether another interface than the bridge has a route to the subnet.
func (s *subnets) contested(subnet netip.Prefix, bridge string) (bool, error) {
	routes, err := s.routes()
	if err != nil {
		return false, err
	}
	var own int
	err = netns.Do(s.space, func() error {
		i, err := net.InterfaceByName(bridge)
		if err == nil {
			own = i.Index
		}
		return err
	})
	return overlapsAny(routes, subnet, own), err
}

// route is a route of IPv4 in any table of the host.
type route struct {
	to   netip.Prefix
	via  int // interface
	size int // MTU of the interface
}

// shortest is the prefix length from which a route says that something is there. Shorter ones are
// default routes, and the halves and quarters by which VPNs replace those.
const shortest = 8

// overlapsAny reports whether a route overlaps the subnet. Default routes, see shortest, and routes
// by the interface own do not count.
func overlapsAny(routes []route, subnet netip.Prefix, own int) bool {
	for _, r := range routes {
		if r.to.Bits() >= shortest && (r.via != own || own == 0) && r.to.Overlaps(subnet) {
			return true
		}
	}
	return false
}

// outward returns the MTU for containers: that of the default route, at most Ethernet's.
func outward(routes []route) int {
	mtu := 1500
	for _, r := range routes {
		if r.to.Bits() == 0 && r.size >= 576 {
			mtu = min(mtu, r.size)
		}
	}
	return mtu
}

// routes reads the routes of the host.
func (s *subnets) routes() ([]route, error) {
	var table []byte
	sizes := map[int]int{}
	err := netns.Do(s.space, func() (err error) {
		links, err := net.Interfaces()
		for _, l := range links {
			sizes[l.Index] = l.MTU
		}
		if err == nil {
			table, err = syscall.NetlinkRIB(syscall.RTM_GETROUTE, syscall.AF_INET)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the routes of this machine: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(table)
	if err != nil {
		return nil, fmt.Errorf("read the routes of this machine: %w", err)
	}
	var all []route
	for i := range messages {
		m := &messages[i]
		if m.Header.Type != syscall.RTM_NEWROUTE || len(m.Data) < syscall.SizeofRtMsg {
			continue
		}
		r := route{to: netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
		attributes, err := syscall.ParseNetlinkRouteAttr(m)
		if err != nil {
			return nil, fmt.Errorf("read the routes of this machine: %w", err)
		}
		for _, a := range attributes {
			switch {
			case a.Attr.Type == syscall.RTA_DST && len(a.Value) == 4:
				r.to = netip.PrefixFrom(netip.AddrFrom4([4]byte(a.Value)), int(m.Data[1])).Masked()
			case a.Attr.Type == syscall.RTA_OIF && len(a.Value) == 4:
				r.via = int(binary.NativeEndian.Uint32(a.Value))
				r.size = sizes[r.via]
			}
		}
		all = append(all, r)
	}
	return all, nil
}
