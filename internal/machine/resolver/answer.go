package resolver

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"berth/internal/machine/firewall"
	"berth/spec"
)

// forwarded are the types of records without addresses that containers may ask for.
var forwarded = []dnsmessage.Type{
	dnsmessage.TypeCNAME, dnsmessage.TypeMX, dnsmessage.TypeTXT, dnsmessage.TypeSRV, dnsmessage.TypeNS,
	dnsmessage.TypeSOA, dnsmessage.TypePTR, typeCAA, typeNAPTR,
}

// answer returns the answer to a container's message, or nil if there is none.
func (s *Server) answer(ctx context.Context, container netip.Addr, packet []byte, stream bool) (answer []byte) {
	defer func() {
		if p := recover(); p != nil { // a hostile message must not end the agent
			s.log.Error("question about a name could not be answered", "container", container, "panic", p)
			answer = nil
		}
	}()
	n, known := s.networks.Find(container)
	if !known || n.Policy.Policy() == spec.EgressNone {
		return nil
	}
	q, code, ok := parse(packet)
	if !ok {
		return nil
	}
	var records []dnsmessage.Resource
	if code == dnsmessage.RCodeSuccess {
		code, records = s.resolve(ctx, n, q)
	}
	limit := q.size
	if stream {
		limit = 1<<16 - 1
	}
	return q.pack(code, records, limit)
}

// resolve returns the answer to a question: a code and records.
func (s *Server) resolve(ctx context.Context, n firewall.Network, q question,
) (dnsmessage.RCode, []dnsmessage.Resource) {
	kind := q.asked.Type
	if n.Policy.Policy() == spec.EgressList && !n.AnyName {
		switch {
		case !n.Policy.Lists(q.name):
			if refused := s.refused.Load(); refused != nil {
				(*refused)(n, q.name)
			}
			return dnsmessage.RCodeNameError, nil
		case kind != dnsmessage.TypeA: // the job lists names for their addresses
			return dnsmessage.RCodeSuccess, nil
		}
	}
	switch {
	case kind == dnsmessage.TypeA:
		return s.addresses(ctx, n, q)
	case kind == dnsmessage.TypeAAAA, kind == typeSVCB, kind == typeHTTPS:
		return dnsmessage.RCodeSuccess, nil
	case !slices.Contains(forwarded, kind):
		return dnsmessage.RCodeNotImplemented, nil
	case strings.HasSuffix(q.name, ".arpa"):
		// Names of addresses that the container does not reach are internal, too.
		if a, ok := reversed(q.name); !ok || !s.networks.Reaches(n, q.name, a) {
			return dnsmessage.RCodeNameError, nil
		}
	}
	m, err := s.exchange(ctx, q.asked)
	if err != nil {
		return s.failed(q, err)
	}
	var kept []dnsmessage.Resource
	for _, r := range m.Answers {
		if t := r.Header.Type; t == q.asked.Type || t == dnsmessage.TypeCNAME {
			kept = append(kept, bounded(r))
		}
	}
	return m.RCode, kept
}

// addresses answers a question for addresses.
func (s *Server) addresses(ctx context.Context, n firewall.Network, q question,
) (dnsmessage.RCode, []dnsmessage.Resource) {
	m, err := s.exchange(ctx, q.asked)
	if err != nil {
		return s.failed(q, err)
	}
	var kept []dnsmessage.Resource
	var reached []netip.Addr
	found, ttl := 0, uint32(0)
	for _, r := range m.Answers {
		switch body := r.Body.(type) {
		case *dnsmessage.CNAMEResource:
			kept = append(kept, bounded(r))
		case *dnsmessage.AResource:
			found++
			if a := netip.AddrFrom4(body.A); s.networks.Reaches(n, q.name, a) {
				r = bounded(r)
				kept, reached, ttl = append(kept, r), append(reached, a), max(ttl, r.Header.TTL)
			}
		}
	}
	switch {
	case m.RCode != dnsmessage.RCodeSuccess, found > 0 && len(reached) == 0:
		return dnsmessage.RCodeNameError, nil
	case found == 0: // aliases alone could be internal names
		return dnsmessage.RCodeSuccess, nil
	}
	if n.Policy.Lists(q.name) {
		// First the rules, then the answer: the container may connect at once.
		if err := s.networks.Open(ctx, n.Bridge, q.name, reached, time.Duration(ttl)*time.Second); err != nil {
			s.log.Warn("cannot allow the addresses of a listed name, the question fails", "network", n.Name,
				"name", q.name, "err", err)
			return dnsmessage.RCodeServerFailure, nil
		}
	}
	return dnsmessage.RCodeSuccess, kept
}

// failed is the answer to a question that no name server has answered.
func (s *Server) failed(q question, err error) (dnsmessage.RCode, []dnsmessage.Resource) {
	s.log.Debug("no name server answers a question of a container", "name", q.name, "err", err)
	return dnsmessage.RCodeServerFailure, nil
}

// bounded returns a record with a bounded TTL.
func bounded(r dnsmessage.Resource) dnsmessage.Resource {
	r.Header.TTL = min(r.Header.TTL, maxTTL)
	return r
}
