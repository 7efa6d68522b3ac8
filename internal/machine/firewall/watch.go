package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/lib/netns"
)

// subscription receives the changes of all tables of a network namespace. The kernel sends the
// changes of a transaction in one piece, and a message about the new generation after them.
type subscription struct {
	socket *os.File
	buffer []byte
	once   sync.Once
	closed error

	// The transaction that is being received.
	touched bool // it changes the table
	own     bool // it contains a chain of an own write
}

// The kernel's numbers, from linux/netfilter/nf_tables.h and nfnetlink.h.
const (
	groupNFTables    = unix.NFNLGRP_NFTABLES
	subsystem        = unix.NFNL_SUBSYS_NFTABLES
	familyInet       = unix.NFPROTO_INET
	attributeTable   = 1 // name of the table, in all messages about parts of tables
	attributeChain   = 3 // name of the chain, in messages about chains
	attributeMask    = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	receiveBuffer    = 1 << 20
	messageHeaderLen = 4 // struct nfgenmsg
)

// subscribe opens a subscription in the network namespace of a path.
func subscribe(space string) (*subscription, error) {
	fd := -1
	err := netns.Do(space, func() error {
		var err error
		const kind = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
		fd, err = unix.Socket(unix.AF_NETLINK, kind, unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, groupNFTables),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer),
	)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("subscribe to nftables: %w", err)
	}
	return &subscription{socket: os.NewFile(uintptr(fd), "nftables"), buffer: make([]byte, 256<<10)}, nil
}

// close closes the socket. It may be called more than once.
func (s *subscription) close() error {
	s.once.Do(func() { s.closed = s.socket.Close() })
	return s.closed
}

// interrupt makes next return.
func (s *subscription) interrupt() error { return s.socket.SetReadDeadline(time.Unix(1, 0)) }

// next waits for changes and reports whether one of them, of this table, is foreign. own reports
// whether a chain name marks an own write. A lost message counts as a foreign change.
func (s *subscription) next(table string, own func(chain string) bool) (foreign bool, err error) {
	n, err := s.socket.Read(s.buffer)
	if errors.Is(err, unix.ENOBUFS) {
		s.touched, s.own = false, false
		return true, nil
	}
	if err != nil {
		return false, err
	}
	messages, err := syscall.ParseNetlinkMessage(s.buffer[:n])
	if err != nil {
		return true, nil
	}
	for _, m := range messages {
		if m.Header.Type>>8 != subsystem || len(m.Data) < messageHeaderLen {
			continue
		}
		kind := m.Header.Type & 0xff
		if kind == unix.NFT_MSG_NEWGEN {
			foreign = foreign || s.touched && !s.own
			s.touched, s.own = false, false
			continue
		}
		if m.Data[0] != familyInet || attribute(m.Data, attributeTable) != table {
			continue
		}
		s.touched = true
		if kind == unix.NFT_MSG_NEWCHAIN && own(attribute(m.Data, attributeChain)) {
			s.own = true
		}
	}
	return foreign, nil
}

// attribute returns the text of an attribute of a message of nftables, "" if it has none.
func attribute(data []byte, kind uint16) string {
	for rest := data[messageHeaderLen:]; len(rest) >= unix.SizeofNlAttr; {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < unix.SizeofNlAttr || size > len(rest) {
			return ""
		}
		if binary.NativeEndian.Uint16(rest[2:])&attributeMask == kind {
			return string(bytes.TrimRight(rest[unix.SizeofNlAttr:size], "\x00"))
		}
		rest = rest[min(len(rest), (size+3)&^3):]
	}
	return ""
}
