// Package publicnet dials on behalf of users without lending them this process's
// place in the network: it connects to a user's address only if that address is
// public. It never checks names: the address of a name is known only when it is
// dialed. So it checks the resolved address of each connection, and neither a name
// that changes its address nor a redirect gets around the check.
package publicnet

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Policy is the set of addresses that may be dialed: public ones, and further
// networks that the operator allows. The zero value allows public ones alone. It may
// be used concurrently.
type Policy struct {
	allowed []netip.Prefix
	only    bool // public addresses are not allowed by being public
}

// Parse reads a list of CIDRs such as "10.1.0.0/16,fd00::/8", or of single
// addresses, that may be dialed although they are not public. An empty list
// allows none.
func Parse(list string) (Policy, error) {
	allowed, err := ParseNetworks(list)
	return Policy{allowed: allowed}, err
}

// ParseNetworks reads such a list and returns its networks, each with its host
// bits cleared. An IPv4 network written inside IPv6 is refused.
func ParseNetworks(list string) ([]netip.Prefix, error) {
	var networks []netip.Prefix
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(item)
		if addr, alone := netip.ParseAddr(item); alone == nil && addr.Zone() == "" {
			addr = addr.Unmap()
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil || prefix.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is no network: allowed are CIDRs and addresses, such as 10.1.0.0/16,fd00::/8",
				item)
		}
		networks = append(networks, prefix.Masked())
	}
	return networks, nil
}

// Allow is p that allows these networks, too.
func (p Policy) Allow(networks ...netip.Prefix) Policy {
	p.allowed = append(slices.Clone(p.allowed), networks...)
	return p
}

// Allows reports whether anything besides public addresses may be dialed.
func (p Policy) Allows() bool { return len(p.allowed) > 0 }

// Only returns the policy for data that must not cross the Internet: addresses outside of the
// operator's list are refused, even public ones.
func (p Policy) Only() Policy { return Policy{p.allowed, true} }

// special are networks that look public but are not. Sources: the IANA
// special-purpose address registries (RFC 6890). The networks of IPv6 lie in
// 2000::/3; addresses outside of it are not global unicast.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),       // this network
	netip.MustParsePrefix("100.64.0.0/10"),   // shared by carriers' customers
	netip.MustParsePrefix("192.0.0.0/24"),    // protocol assignments
	netip.MustParsePrefix("192.0.2.0/24"),    // documentation
	netip.MustParsePrefix("192.88.99.0/24"),  // 6to4 relays
	netip.MustParsePrefix("198.18.0.0/15"),   // benchmarks
	netip.MustParsePrefix("198.51.100.0/24"), // documentation
	netip.MustParsePrefix("203.0.113.0/24"),  // documentation
	netip.MustParsePrefix("240.0.0.0/4"),     // reserved, and broadcast
	netip.MustParsePrefix("2001::/23"),       // protocol assignments, Teredo among them
	netip.MustParsePrefix("2001:db8::/32"),   // documentation
	netip.MustParsePrefix("3fff::/20"),       // documentation
}

// reserved4 lists the IPv4 networks that methods of netip.Addr classify as not public.
var reserved4 = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),     // private
	netip.MustParsePrefix("127.0.0.0/8"),    // loopback
	netip.MustParsePrefix("169.254.0.0/16"), // link-local
	netip.MustParsePrefix("172.16.0.0/12"),  // private
	netip.MustParsePrefix("192.168.0.0/16"), // private
	netip.MustParsePrefix("224.0.0.0/4"),    // multicast
}

// Special4 returns the networks of IPv4 that are not public, for rules outside of this process:
// an address of IPv4 is public exactly if it lies in none of them.
func Special4() []netip.Prefix {
	list := slices.Clone(reserved4)
	for _, p := range special {
		if p.Addr().Is4() {
			list = append(list, p)
		}
	}
	return list
}

// carriers are networks with addresses that contain an IPv4 address, from that byte
// on: the check applies to the contained address.
var carriers = map[netip.Prefix]int{
	netip.MustParsePrefix("64:ff9b::/96"): 12, // NAT64, RFC 6052
	netip.MustParsePrefix("2002::/16"):    2,  // 6to4, RFC 3056
}

var globalUnicast6 = netip.MustParsePrefix("2000::/3")

// Check returns nil if an address may be dialed, and otherwise the reason for the refusal. An
// IPv4 address in IPv6 form counts as IPv4.
func (p Policy) Check(addr netip.Addr) error {
	addr = addr.Unmap()
	if !p.only && isPublic(addr) {
		return nil
	}
	for _, prefix := range p.allowed {
		if prefix.Contains(addr) {
			return nil
		}
	}
	return &RefusedError{addr}
}

// RefusedError says that an address is not public. Trying again helps only
// where a name comes to mean another address.
type RefusedError struct{ Addr netip.Addr }

// Error names the address and the reason.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s is not an address that may be dialed from here: it is not public, and the operator does "+
		"not allow it", e.Addr)
}

// isPublic reports whether an address is global unicast, outside of every special network. An
// IPv6 address that carries an IPv4 one, such as NAT64's, is judged by the carried address.
func isPublic(addr netip.Addr) bool {
	for prefix, at := range carriers {
		if b := addr.As16(); addr.Is6() && addr.Zone() == "" && prefix.Contains(addr) {
			return isPublic(netip.AddrFrom4([4]byte(b[at : at+4])))
		}
	}
	if !addr.IsValid() || addr.Zone() != "" || !addr.IsGlobalUnicast() || addr.IsPrivate() ||
		addr.Is6() && !globalUnicast6.Contains(addr) {
		return false
	}
	for _, prefix := range special {
		if prefix.Contains(addr) {
			return false
		}
	}
	return true
}

// Dialer returns a dialer that checks each address just before the connection, after names were
// resolved. A name can therefore not lead to another address than the checked one.
func (p Policy) Dialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{Timeout: timeout, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("dial %.100q: not a resolved address", address)
		}
		return p.Check(to.Addr())
	}}
}

// Transport returns an HTTP transport that dials by the policy. It uses no proxy of
// the environment: addresses behind a proxy cannot be checked here.
func (p Policy) Transport(dial time.Duration) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = nil
	t.DialContext = p.Dialer(dial).DialContext
	return t
}

// Loopback reports whether only this machine can reach a host (a name or an address). Names other than
// localhost are not resolved, and count as reachable by other machines.
func Loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}
