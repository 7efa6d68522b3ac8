//go:build !linux

package connlimit

import "net"

// unsent returns 0: only Linux reports how many bytes of a connection its kernel
// holds.
func unsent(net.Conn) int { return 0 }
