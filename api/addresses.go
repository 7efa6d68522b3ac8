package api

import (
	"net"
	"net/http"
	"net/netip"

	"github.com/labstack/echo/v4"
)

// addresses determines the client address of a request, for rate limits by address.
type addresses struct {
	of echo.IPExtractor
}

// newAddresses accepts X-Forwarded-For only from trusted proxies, and only the entries
// that trusted proxies have added.
func newAddresses(trusted []netip.Prefix) addresses {
	if len(trusted) == 0 {
		return addresses{echo.ExtractIPDirect()}
	}
	// Echo trusts loopback, link-local and private networks by default.
	options := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
	for _, p := range trusted {
		options = append(options, echo.TrustIPRange(ipNet(p)))
	}
	return addresses{echo.ExtractIPFromXFFHeader(options...)}
}

// client returns the network that identifies the caller in rate limits: an IPv4 address,
// or the /64 of an IPv6 address, since one host commonly has a whole /64. Requests
// without a readable address share the zero Prefix.
func (a addresses) client(r *http.Request) netip.Prefix {
	ip, err := netip.ParseAddr(a.of(r))
	if err != nil {
		return netip.Prefix{}
	}
	return network(ip)
}

// network returns the /32 of an IPv4 address, also of one mapped into IPv6, or the /64 of
// an IPv6 address. A zone is ignored.
func network(ip netip.Addr) netip.Prefix {
	ip = ip.Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

func ipNet(p netip.Prefix) *net.IPNet {
	p = p.Masked()
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
