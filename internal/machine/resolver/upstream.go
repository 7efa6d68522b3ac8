package resolver

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"berth/internal/lib/netns"
)

// The times of a question to name servers. The engine's resolver waits 4 s for an answer.
const (
	tryTime = 1500 * time.Millisecond // one name server
	allTime = 3700 * time.Millisecond
)

// errMismatch reports an answer to another question. Over UDP it is not counted: another host may have sent it.
var errMismatch = errors.New("the answer is for another question")

// errUpstream reports that a name server answered with a failure.
var errUpstream = errors.New("the name server failed")

// exchange asks the name servers, one after the other, and returns the first answer that the name exists or not.
func (s *Server) exchange(ctx context.Context, asked dnsmessage.Question) (dnsmessage.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, allTime)
	defer cancel()
	err := errors.New("the host has no name servers")
	for _, up := range s.opts.Upstreams {
		var m dnsmessage.Message
		if m, err = s.ask(ctx, up, asked); err == nil {
			return m, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return dnsmessage.Message{}, err
}

// ask asks one name server, over UDP and, if the answer is too long for UDP, over TCP. Nothing of the container's
// message but the name and the type is sent: neither its number nor its options.
func (s *Server) ask(ctx context.Context, up netip.AddrPort, asked dnsmessage.Question) (dnsmessage.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	var id [2]byte
	_, _ = rand.Read(id[:]) // never fails
	q := dnsmessage.Message{
		Header:      dnsmessage.Header{ID: binary.BigEndian.Uint16(id[:]), RecursionDesired: true},
		Questions:   []dnsmessage.Question{asked},
		Additionals: []dnsmessage.Resource{edns()},
	}
	packet, err := q.Pack()
	if err != nil {
		return dnsmessage.Message{}, err
	}
	for _, network := range []string{"udp", "tcp"} {
		m, err := s.over(ctx, network, up, packet, q)
		if err != nil || !m.Truncated {
			return m, err
		}
	}
	return dnsmessage.Message{}, fmt.Errorf("name server %s: %w: its answer over TCP is truncated", up, errUpstream)
}

// over sends a packed question over UDP or TCP and returns its answer. Each question has a port of its own, which
// another host would have to guess together with the number.
func (s *Server) over(ctx context.Context, network string, up netip.AddrPort, packet []byte, q dnsmessage.Message,
) (m dnsmessage.Message, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("name server %s: %w", up, err)
		}
	}()
	deadline, _ := ctx.Deadline()
	var conn net.Conn
	err = netns.Do(s.opts.NetNS, func() (err error) {
		conn, err = net.DialTimeout(network, up.String(), time.Until(deadline))
		return err
	})
	if err != nil {
		return m, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := conn.SetDeadline(deadline); err != nil {
		return m, err
	}
	if network == "tcp" {
		if err := writeMessage(conn, packet); err != nil {
			return m, err
		}
		answer, err := readMessage(conn, 1<<16-1)
		if err != nil {
			return m, err
		}
		return checked(answer, q)
	}
	if _, err := conn.Write(packet); err != nil {
		return m, err
	}
	buffer := make([]byte, 4096)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return m, err
		}
		if m, err = checked(buffer[:n], q); !errors.Is(err, errMismatch) {
			return m, err
		}
	}
}

// checked parses the answer to a question, and refuses the answer to another one. The comparison of the name includes
// the case of letters, which name servers repeat as asked.
func checked(packet []byte, q dnsmessage.Message) (m dnsmessage.Message, err error) {
	var p dnsmessage.Parser
	h, err := p.Start(packet)
	if err != nil || h.ID != q.ID || !h.Response {
		return m, errMismatch
	}
	asked, err := p.AllQuestions()
	if err != nil || len(asked) != 1 || asked[0] != q.Questions[0] {
		return m, errMismatch
	}
	if h.Truncated {
		return dnsmessage.Message{Header: h}, nil
	}
	if h.RCode != dnsmessage.RCodeSuccess && h.RCode != dnsmessage.RCodeNameError {
		return m, fmt.Errorf("%w: %s", errUpstream, h.RCode)
	}
	answers, err := p.AllAnswers()
	if err != nil {
		return m, fmt.Errorf("%w: its answer is no message of DNS: %w", errUpstream, err)
	}
	return dnsmessage.Message{Header: h, Questions: asked, Answers: answers}, nil
}
