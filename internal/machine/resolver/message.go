package resolver

import (
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// maxQuestion bounds a question in bytes: a name has at most 255, and no option of a container is forwarded.
	maxQuestion = 512
	// plainAnswer is the size of an answer over UDP to a container that announces no other size (RFC 1035).
	plainAnswer = 512
	// largeAnswer is the size of answers over UDP at most, in both directions. It fits into one packet on common
	// paths, so no answer comes in fragments.
	largeAnswer = 1232
	// maxTTL bounds the TTL of answers: an address is allowed in the table for at least this long.
	maxTTL = 3600
)

// Types of records that package dnsmessage does not name.
const (
	typeNAPTR = dnsmessage.Type(35)
	typeSVCB  = dnsmessage.Type(64)
	typeHTTPS = dnsmessage.Type(65)
	typeCAA   = dnsmessage.Type(257)
)

// question is a parsed question of a container.
type question struct {
	header dnsmessage.Header
	asked  dnsmessage.Question
	name   string // in lower case, without the dot at its end
	edns   bool
	size   int // of an answer over UDP, in bytes
}

// parse reads a question. The code is the answer to a faulty one; ok is false if there is nothing to answer.
func parse(packet []byte) (q question, code dnsmessage.RCode, ok bool) {
	var p dnsmessage.Parser
	var err error
	if q.header, err = p.Start(packet); err != nil || q.header.Response || len(packet) > maxQuestion {
		return q, 0, false
	}
	q.size = plainAnswer
	if q.header.OpCode != 0 {
		return q, dnsmessage.RCodeNotImplemented, true
	}
	all, err := p.AllQuestions()
	if err != nil || len(all) != 1 {
		return q, dnsmessage.RCodeFormatError, true
	}
	q.asked = all[0]
	q.name = strings.ToLower(strings.TrimSuffix(q.asked.Name.String(), "."))
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, dnsmessage.RCodeFormatError, true
	}
	for {
		h, err := p.AdditionalHeader()
		if err == dnsmessage.ErrSectionDone {
			break
		}
		if err != nil || p.SkipAdditional() != nil {
			return q, dnsmessage.RCodeFormatError, true
		}
		if h.Type == dnsmessage.TypeOPT {
			q.edns = true
			q.size = min(max(int(h.Class), plainAnswer), largeAnswer)
		}
	}
	if q.asked.Class != dnsmessage.ClassINET {
		return q, dnsmessage.RCodeNotImplemented, true
	}
	return q, dnsmessage.RCodeSuccess, true
}

// pack returns the answer to a question, at most limit bytes: a longer one is marked as truncated and has no records,
// so that the container asks again over TCP.
func (q question) pack(code dnsmessage.RCode, answers []dnsmessage.Resource, limit int) []byte {
	m := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: q.header.ID, Response: true, OpCode: q.header.OpCode, RecursionDesired: q.header.RecursionDesired,
			RecursionAvailable: true, RCode: code,
			// The engine's resolver asks its next name server, which is this one again, unless the answer is final.
			Authoritative: code == dnsmessage.RCodeNameError,
		},
		Answers: answers,
	}
	if q.asked.Name.Length > 0 {
		m.Questions = []dnsmessage.Question{q.asked}
	}
	if q.edns {
		m.Additionals = []dnsmessage.Resource{edns()}
	}
	b, err := m.Pack()
	if err == nil && len(b) <= limit {
		return b
	}
	m.Answers, m.Truncated = nil, err == nil
	if err != nil {
		m.RCode = dnsmessage.RCodeServerFailure
	}
	if b, err = m.Pack(); err != nil {
		return nil
	}
	return b
}

// edns returns the record that announces the size of answers. It has no options.
func edns() dnsmessage.Resource {
	r := dnsmessage.Resource{Body: &dnsmessage.OPTResource{}}
	r.Header.Name = dnsmessage.MustNewName(".")
	_ = r.Header.SetEDNS0(largeAnswer, dnsmessage.RCodeSuccess, false) // fails for sizes that are out of range
	return r
}

// reversed returns the IPv4 address that a name below in-addr.arpa stands for.
func reversed(name string) (netip.Addr, bool) {
	labels := strings.Split(strings.TrimSuffix(name, ".in-addr.arpa"), ".")
	if !strings.HasSuffix(name, ".in-addr.arpa") || len(labels) != 4 {
		return netip.Addr{}, false
	}
	var b [4]byte
	for i, label := range labels {
		n, err := strconv.ParseUint(label, 10, 8)
		if err != nil {
			return netip.Addr{}, false
		}
		b[3-i] = byte(n)
	}
	return netip.AddrFrom4(b), true
}
