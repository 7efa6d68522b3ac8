package fetch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"berth/internal/lib/publicnet"
)

// Unresolved reports that the name of a server resolves to no address. The error may be
// temporary, so a retry is useful, here and on another machine.
type Unresolved struct {
	Host string
	// NotFound reports that the name servers answered that the host has no address. If it is
	// false, they did not answer, or their answer was a failure.
	NotFound bool

	what string
}

// Error names the input and the host.
func (u Unresolved) Error() string { return fmt.Sprintf("%s: %s: %s", u.what, u.Brief(), u.Host) }

// Brief returns the error without names.
func (u Unresolved) Brief() string {
	if u.NotFound {
		return "no such host"
	}
	return "the name servers do not answer"
}

// unresolved returns the error of a failed lookup.
func unresolved(what string, err *net.DNSError) error {
	return Unresolved{
		Host: strings.TrimSuffix(err.Name, "."), what: what,
		NotFound: err.IsNotFound && !err.IsTemporary && !err.IsTimeout,
	}
}

// IsNotFound reports whether err is about a host that does not exist by the name servers.
func IsNotFound(err error) bool {
	u, ok := errors.AsType[Unresolved](err)
	return ok && u.NotFound
}

// NoSuchName asks the name servers again, strictly: see publicnet.NoSuchName.
func (s *Sources) NoSuchName(ctx context.Context, host string) bool {
	return publicnet.NoSuchName(ctx, s.resolver, host)
}
