package publicnet

import (
	"context"
	"errors"
	"net"
	"net/netip"
)

// NoSuchName reports whether the name servers answer that a host does not exist, or has no
// address. Any other outcome is no evidence: a timeout, a server that fails, or an answer to
// only one of the questions for IPv4 and IPv6. r is the resolver to use, nil for the system's
// servers; an address instead of a name exists always.
func NoSuchName(ctx context.Context, r *net.Resolver, host string) bool {
	if _, err := netip.ParseAddr(host); err == nil || host == "" {
		return false
	}
	// StrictErrors ends the search through the domains of resolv.conf at the first failure.
	strict := net.Resolver{PreferGo: true, StrictErrors: true}
	if r != nil {
		strict.Dial = r.Dial
	}
	// Two lookups: of one for both kinds, the answer "no address" of one kind hides the failure
	// of the other, even with StrictErrors.
	for _, kind := range []string{"ip4", "ip6"} {
		_, err := strict.LookupNetIP(ctx, kind, host)
		d, ok := errors.AsType[*net.DNSError](err)
		if !ok || !d.IsNotFound || d.IsTemporary || d.IsTimeout {
			return false
		}
	}
	return true
}
