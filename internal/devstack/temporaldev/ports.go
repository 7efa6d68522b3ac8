package temporaldev

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// claim is claimOn for 127.0.0.1.
func claim(what string, asked int) (int, error) { return claimOn("127.0.0.1", what, asked) }

// claimOn returns asked, or a free port of a host for 0. The error for a taken port names the port: the
// server itself would only exit.
func claimOn(host, what string, asked int) (int, error) {
	if asked < 0 || asked > 65535 {
		return 0, fmt.Errorf("%s port %d: allowed are 0 (a free one) to 65535", what, asked)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(asked)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return 0, fmt.Errorf("%s port %d on %s is taken: name another, or 0 for a free one", what, asked, host)
	}
	if err != nil {
		return 0, fmt.Errorf("%s port: %w", what, err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if asked == 0 {
		if err := reserve(l); err != nil {
			return 0, fmt.Errorf("%s port: %w", what, err)
		}
	}
	return port, nil
}

// reserve leaves a connection in TIME_WAIT on the port. For a minute the kernel then assigns the
// port to no program that asks for any port, while a listener on this very port still succeeds.
func reserve(l net.Listener) error {
	out, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer out.Close()
	in, err := l.Accept()
	if err != nil {
		return err
	}
	return in.Close() // the listening side first: its end is the one that waits
}
