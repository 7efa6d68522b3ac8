package connlimit

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// unsent returns how many bytes the kernel holds of the data written to the
// connection: bytes that the peer has not acknowledged, or was not sent because the
// peer's buffer is full. It returns 0 for a connection that is no socket, and for one
// that is closed.
func unsent(c net.Conn) (n int) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // an error: the connection is closed
		if held, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err == nil {
			n = held
		}
	})
	return n
}
