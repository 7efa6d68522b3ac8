package fetch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"berth/internal/lib/publicnet"
)

// Unresolved is the error of a server whose name leads to no address. It may pass: trying again
// is of use, here and on another machine.
type Unresolved struct {
	Host string
	// NotFound reports that the name servers answered, and know no address of the host.
	// Otherwise they did not answer, or failed.
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
