// Package dnstest serves name servers for tests: hosts that exist, that do not, and name
// servers that fail. It opens no port; a Server answers through the resolver that it returns.
package dnstest

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
)

// Answer is the answer of the name servers about a host.
type Answer int

// The answers. Hosts without an answer do not exist.
const (
	NoSuchName Answer = iota // NXDOMAIN
	NoAddress                // the name exists and has no address of either kind
	Failure                  // SERVFAIL
	FailsV4                  // SERVFAIL for IPv4, no address for IPv6
	FailsV6                  // no address for IPv4, SERVFAIL for IPv6
	Exists                   // the address 127.0.0.1, or the one of SetAddress
)

// Server holds the answers. The zero value knows no host. All methods may be called
// concurrently.
type Server struct {
	mu    sync.Mutex
	hosts map[string]Answer
	asked map[string]int
	at    map[string]netip.Addr // addresses of hosts that exist, other than 127.0.0.1
}

// SetAddress gives a host an address of IPv4.
func (s *Server) SetAddress(host string, a netip.Addr) {
	s.Set(host, Exists)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[string]netip.Addr{}
	}
	s.at[host] = a
}

// Set sets the answer about a host.
func (s *Server) Set(host string, a Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts == nil {
		s.hosts = map[string]Answer{}
	}
	s.hosts[host] = a
}

// Asked returns the number of questions about a host.
func (s *Server) Asked(host string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[host]
}

// Resolver returns a resolver that asks this server.
func (s *Server) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go s.serve(far)
		return near, nil
	}}
}

// ServePackets answers the questions that a socket of UDP receives, until the socket is closed.
func (s *Server) ServePackets(c net.PacketConn) {
	question := make([]byte, 512)
	for {
		n, from, err := c.ReadFrom(question)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(s.answer(question[:n]), from)
	}
}

// serve answers the questions of one connection, in the framing of DNS over TCP.
func (s *Server) serve(c net.Conn) {
	defer c.Close()
	for {
		var length [2]byte
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return
		}
		question := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(c, question); err != nil {
			return
		}
		answer := s.answer(question)
		if _, err := c.Write(binary.BigEndian.AppendUint16(nil, uint16(len(answer)))); err != nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// Parts of a DNS message (RFC 1035).
const (
	headerLength = 12
	typeA        = 1
	rcodeFailure = 2
	rcodeNoName  = 3
)

// answer returns the answer to a message with one question.
func (s *Server) answer(q []byte) []byte {
	at := headerLength
	var labels []string
	for q[at] != 0 {
		end := at + 1 + int(q[at])
		labels = append(labels, string(q[at+1:end]))
		at = end
	}
	kind := binary.BigEndian.Uint16(q[at+1:])
	host := strings.Join(labels, ".")
	s.mu.Lock()
	known := s.hosts[host]
	if s.asked == nil {
		s.asked = map[string]int{}
	}
	s.asked[host]++
	address, given := s.at[host]
	s.mu.Unlock()
	if !given {
		address = netip.MustParseAddr("127.0.0.1")
	}

	a := append([]byte{}, q[:at+5]...) // without the additional records
	code, records := byte(0), byte(0)
	switch known {
	case NoSuchName:
		code = rcodeNoName
	case Failure:
		code = rcodeFailure
	case FailsV4:
		if kind == typeA {
			code = rcodeFailure
		}
	case FailsV6:
		if kind != typeA {
			code = rcodeFailure
		}
	case Exists:
		if kind == typeA {
			records = 1
			a = append(a, 0xc0, headerLength, 0, typeA, 0, 1, 0, 0, 0, 60, 0, 4)
			a = append(a, address.AsSlice()...)
		}
	case NoAddress:
	}
	a[2], a[3] = a[2]|0x80, 0x80|code                             // a response; recursion is available
	copy(a[4:headerLength], []byte{0, 1, 0, records, 0, 0, 0, 0}) // counts of the sections
	return a
}
