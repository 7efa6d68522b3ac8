package resolver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"berth/internal/machine/firewall"
	"berth/spec"
)

// Addresses in the tests: all questions come from 127.0.0.1.
const (
	publicA    = "11.0.0.2"
	publicB    = "11.0.0.3"
	privateA   = "10.9.0.2"
	metadataA  = "169.254.169.254"
	containerA = "127.0.0.1"
)

// networks is one job network with the loopback address of the tests. Public addresses begin with 11.
type networks struct {
	policy  spec.Network
	anyName bool
	absent  bool
	full    bool // Open fails

	mu     sync.Mutex
	opened []string
}

func (n *networks) Find(a netip.Addr) (firewall.Network, bool) {
	return firewall.Network{Bridge: "b", Policy: n.policy, AnyName: n.anyName},
		!n.absent && a == netip.MustParseAddr(containerA)
}

func (n *networks) Reaches(_ firewall.Network, _ string, a netip.Addr) bool {
	return strings.HasPrefix(a.String(), "11.")
}

func (n *networks) Open(_ context.Context, bridge, name string, list []netip.Addr, ttl time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.full {
		return errors.New("full")
	}
	for _, a := range list {
		n.opened = append(n.opened, fmt.Sprintf("%s %s %s %s", bridge, name, a, ttl))
	}
	return nil
}

// zone is a name server on the loopback. Each name has its records.
type zone struct {
	address netip.AddrPort
	records map[string][]dnsmessage.Resource

	broken atomic.Bool
	forged atomic.Bool // each answer comes after one with another number

	mu    sync.Mutex
	asked []string
}

func name(s string) dnsmessage.Name { return dnsmessage.MustNewName(s + ".") }

func header(s string, t dnsmessage.Type) dnsmessage.ResourceHeader {
	return dnsmessage.ResourceHeader{Name: name(s), Type: t, Class: dnsmessage.ClassINET, TTL: 100_000}
}

func addressOf(host, a string) dnsmessage.Resource {
	return dnsmessage.Resource{Header: header(host, dnsmessage.TypeA),
		Body: &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()}}
}

func alias(host, to string) dnsmessage.Resource {
	return dnsmessage.Resource{Header: header(host, dnsmessage.TypeCNAME), Body: &dnsmessage.CNAMEResource{CNAME: name(to)}}
}

func text(host string, lines ...string) dnsmessage.Resource {
	return dnsmessage.Resource{Header: header(host, dnsmessage.TypeTXT), Body: &dnsmessage.TXTResource{TXT: lines}}
}

// bothPorts listens on one port over UDP and TCP.
func bothPorts(t *testing.T) (*net.UDPConn, *net.TCPListener) {
	t.Helper()
	for range 100 {
		packets, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		streams, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(packets.LocalAddr().(*net.UDPAddr).AddrPort()))
		if err == nil {
			return packets, streams
		}
		_ = packets.Close() // another program has the port over TCP
	}
	t.Fatal("no port is free over UDP and TCP")
	return nil, nil
}

// newZone serves a name server over UDP and TCP until the test ends.
func newZone(t *testing.T, records map[string][]dnsmessage.Resource) *zone {
	t.Helper()
	z := &zone{records: records}
	packets, streams := bothPorts(t)
	z.address = packets.LocalAddr().(*net.UDPAddr).AddrPort()
	var all sync.WaitGroup
	all.Go(func() {
		buffer := make([]byte, 2048)
		for {
			n, from, err := packets.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			a := z.answer(buffer[:n], largeAnswer)
			if z.forged.Load() {
				forged := slices.Clone(a)
				forged[0] ^= 0xff
				forged[len(forged)-1] ^= 0xff // of the address
				_, _ = packets.WriteToUDPAddrPort(forged, from)
			}
			_, _ = packets.WriteToUDPAddrPort(a, from)
		}
	})
	all.Go(func() {
		for {
			conn, err := streams.Accept()
			if err != nil {
				return
			}
			if q, err := readMessage(conn, 2048); err == nil {
				_ = writeMessage(conn, z.answer(q, 1<<16-1))
			}
			_ = conn.Close()
		}
	})
	t.Cleanup(func() { _ = packets.Close(); _ = streams.Close(); all.Wait() })
	return z
}

func (z *zone) answer(packet []byte, limit int) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(packet); err != nil {
		return nil
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	host := strings.ToLower(strings.TrimSuffix(m.Questions[0].Name.String(), "."))
	z.asked = append(z.asked, host)
	q := question{header: m.Header, asked: m.Questions[0]}
	records, exists := z.records[host]
	switch {
	case z.broken.Load():
		return q.pack(dnsmessage.RCodeServerFailure, nil, limit)
	case !exists:
		return q.pack(dnsmessage.RCodeNameError, nil, limit)
	}
	return q.pack(dnsmessage.RCodeSuccess, slices.Clone(records), limit) // Pack writes into it
}

// questions returns the names that were asked.
func (z *zone) questions() []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	return slices.Clone(z.asked)
}

// bench is a server with a name server.
type bench struct {
	t        *testing.T
	server   *Server
	zone     *zone
	networks *networks
}

func newBench(t *testing.T, records map[string][]dnsmessage.Resource, n *networks) *bench {
	t.Helper()
	b := &bench{t: t, zone: newZone(t, records), networks: n}
	var err error
	b.server, err = Listen(Options{Owner: t.Name(), Upstreams: []netip.AddrPort{b.zone.address}})
	if err != nil {
		t.Fatal(err)
	}
	b.server.Start(b.networks)
	t.Cleanup(func() { _ = b.server.Close() })
	return b
}

// patience bounds the wait for an answer that must come, and silence the wait for one that must not.
const (
	patience = 20 * time.Second
	silence  = 300 * time.Millisecond
)

// send sends a message and returns the answer, or nil.
func (b *bench) send(network string, packet []byte, wait time.Duration) []byte {
	b.t.Helper()
	to := netip.AddrPortFrom(netip.MustParseAddr(containerA), b.server.Port())
	conn, err := net.Dial(network, to.String())
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(wait))
	if network == "tcp" {
		if writeMessage(conn, packet) != nil {
			return nil
		}
		a, err := readMessage(conn, 1<<16-1)
		if err != nil {
			return nil
		}
		return a
	}
	if _, err := conn.Write(packet); err != nil {
		return nil
	}
	buffer := make([]byte, 1<<16)
	n, err := conn.Read(buffer)
	if err != nil {
		return nil
	}
	return buffer[:n]
}

// packet is a packed question.
func (b *bench) packet(host string, kind dnsmessage.Type) []byte {
	b.t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{
		{Name: name(host), Type: kind, Class: dnsmessage.ClassINET}}}
	p, err := m.Pack()
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// ask asks for a name and returns the answer.
func (b *bench) ask(network, host string, kind dnsmessage.Type) dnsmessage.Message {
	b.t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(b.send(network, b.packet(host, kind), patience)); err != nil || m.ID != 7 || !m.Response {
		b.t.Fatalf("%s: answer is %+v, %v", host, m, err)
	}
	return m
}

// shown renders the records of an answer.
func shown(m dnsmessage.Message) string {
	list := []string{strings.TrimPrefix(m.RCode.String(), "RCode")}
	for _, r := range m.Answers {
		switch body := r.Body.(type) {
		case *dnsmessage.AResource:
			list = append(list, netip.AddrFrom4(body.A).String())
		case *dnsmessage.CNAMEResource:
			list = append(list, body.CNAME.String())
		case *dnsmessage.TXTResource:
			list = append(list, body.TXT...)
		default:
			list = append(list, r.Header.Type.String())
		}
		if r.Header.TTL > maxTTL {
			list = append(list, "a TTL without bound")
		}
	}
	return strings.Join(list, " ")
}

var known = map[string][]dnsmessage.Resource{
	"public.test":           {addressOf("public.test", publicA), text("public.test", "note")},
	"internal.test":         {addressOf("internal.test", privateA), addressOf("internal.test", metadataA)},
	"mixed.test":            {addressOf("mixed.test", privateA), addressOf("mixed.test", publicA), addressOf("mixed.test", metadataA)},
	"alias.test":            {alias("alias.test", "cdn.test"), alias("cdn.test", "edge.test"), addressOf("edge.test", publicB)},
	"sneak.test":            {alias("sneak.test", "internal.test"), addressOf("internal.test", privateA)},
	"dangling.test":         {alias("dangling.test", "internal.test")},
	"empty.test":            {},
	"2.0.0.11.in-addr.arpa": {},
	"2.0.9.10.in-addr.arpa": {},
}

func TestAnswersContainReachableAddressesAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t, known, &networks{})
	const a, aaaa = dnsmessage.TypeA, dnsmessage.TypeAAAA
	for _, row := range []struct {
		host string
		kind dnsmessage.Type
		want string
	}{
		{"public.test", a, "Success " + publicA},
		{"PuBlic.test", a, "Success " + publicA},
		{"internal.test", a, "NameError"}, // as missing.test: nothing shows that it exists
		{"missing.test", a, "NameError"},
		{"mixed.test", a, "Success " + publicA},
		{"alias.test", a, "Success cdn.test. edge.test. " + publicB},
		{"sneak.test", a, "NameError"},
		{"dangling.test", a, "Success"},
		{"empty.test", a, "Success"},
		{"public.test", aaaa, "Success"},
		{"internal.test", aaaa, "Success"},
		{"public.test", typeHTTPS, "Success"},
		{"public.test", dnsmessage.TypeTXT, "Success note"},
		{"public.test", dnsmessage.TypeALL, "NotImplemented"},
		{"public.test", dnsmessage.TypeAXFR, "NotImplemented"},
		{"2.0.0.11.in-addr.arpa", dnsmessage.TypePTR, "Success"},
		{"2.0.9.10.in-addr.arpa", dnsmessage.TypePTR, "NameError"},
		{"254.169.254.169.in-addr.arpa", dnsmessage.TypePTR, "NameError"},
		{"10.in-addr.arpa", dnsmessage.TypeNS, "NameError"},
		{"1.ip6.arpa", dnsmessage.TypePTR, "NameError"},
	} {
		for _, network := range []string{"udp", "tcp"} {
			if got := shown(b.ask(network, row.host, row.kind)); got != row.want {
				t.Errorf("%s %s over %s: %s, want %s", row.host, row.kind, network, got, row.want)
			}
		}
	}
	for _, host := range b.zone.questions() {
		if strings.HasPrefix(host, "2.0.9.10") || strings.HasSuffix(host, "ip6.arpa") {
			t.Errorf("a name server was asked for %s", host)
		}
	}
}

// A name that changes its address between two questions has no address that the container does not reach.
func TestAReboundNameHasNoAddress(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string][]dnsmessage.Resource{"rebound.test": {addressOf("rebound.test", publicA)}}, &networks{})
	if got := shown(b.ask("udp", "rebound.test", dnsmessage.TypeA)); got != "Success "+publicA {
		t.Fatalf("at first: %s", got)
	}
	b.zone.mu.Lock()
	b.zone.records["rebound.test"] = []dnsmessage.Resource{addressOf("rebound.test", metadataA)}
	b.zone.mu.Unlock()
	if got := shown(b.ask("udp", "rebound.test", dnsmessage.TypeA)); got != "NameError" {
		t.Errorf("afterwards: %s", got)
	}
}

var list = spec.Network{Egress: spec.EgressList, Allow: []spec.Destination{
	{To: "public.test"}, {To: "internal.test"}, {To: "*.wild.test"}, {To: "alias.test"}, {To: "missing.test"}}}

// A job with a list resolves the names of its list alone. No other question leaves the machine, of any type.
func TestAListResolvesItsNamesAlone(t *testing.T) {
	t.Parallel()
	records := maps.Clone(known)
	records["a.b.wild.test"] = []dnsmessage.Resource{addressOf("a.b.wild.test", publicB)}
	records["wild.test"] = []dnsmessage.Resource{addressOf("wild.test", publicB)}
	n := &networks{policy: list}
	b := newBench(t, records, n)
	var refused []string // guarded by n.mu
	b.server.OnRefused(func(_ firewall.Network, name string) {
		n.mu.Lock()
		defer n.mu.Unlock()
		refused = append(refused, name)
	})
	for _, row := range []struct {
		host string
		kind dnsmessage.Type
		want string
	}{
		{"public.test", dnsmessage.TypeA, "Success " + publicA},
		{"PUBLIC.test", dnsmessage.TypeA, "Success " + publicA},
		{"alias.test", dnsmessage.TypeA, "Success cdn.test. edge.test. " + publicB},
		{"a.b.wild.test", dnsmessage.TypeA, "Success " + publicB},
		{"internal.test", dnsmessage.TypeA, "NameError"},
		{"missing.test", dnsmessage.TypeA, "NameError"},
		{"public.test", dnsmessage.TypeTXT, "Success"},
		{"public.test", dnsmessage.TypeAAAA, "Success"},
		{"edge.test", dnsmessage.TypeA, "NameError"},
		{"wild.test", dnsmessage.TypeA, "NameError"},
		{"secret.public.test", dnsmessage.TypeA, "NameError"},
		{"secret.evil.test", dnsmessage.TypeTXT, "NameError"},
		{"secret.evil.test", dnsmessage.TypeAAAA, "NameError"},
		{"secret.evil.test", dnsmessage.TypeALL, "NameError"},
		{"2.0.0.11.in-addr.arpa", dnsmessage.TypePTR, "NameError"},
	} {
		if got := shown(b.ask("udp", row.host, row.kind)); got != row.want {
			t.Errorf("%s %s: %s, want %s", row.host, row.kind, got, row.want)
		}
	}
	want := []string{"public.test", "public.test", "alias.test", "a.b.wild.test", "internal.test", "missing.test"}
	if asked := b.zone.questions(); !slices.Equal(asked, want) {
		t.Errorf("the name server was asked for %v, want %v", asked, want)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	opened := []string{"b public.test 11.0.0.2 1h0m0s", "b public.test 11.0.0.2 1h0m0s", "b alias.test 11.0.0.3 1h0m0s",
		"b a.b.wild.test 11.0.0.3 1h0m0s"}
	if !slices.Equal(n.opened, opened) {
		t.Errorf("allowed are %v, want %v", n.opened, opened)
	}
	if !slices.Equal(refused, []string{"edge.test", "wild.test", "secret.public.test", "secret.evil.test",
		"secret.evil.test", "secret.evil.test", "2.0.0.11.in-addr.arpa"}) {
		t.Errorf("refused are %v", refused)
	}
}

// The container gets no address that the rules do not allow yet.
func TestNoAnswerComesBeforeItsRules(t *testing.T) {
	t.Parallel()
	b := newBench(t, known, &networks{policy: list, full: true})
	if got := shown(b.ask("udp", "public.test", dnsmessage.TypeA)); got != "ServerFailure" {
		t.Errorf("the answer is %s", got)
	}
}

// Containers that an agent without a resolver has started keep all names.
func TestAListOfAnEarlierAgentKeepsAllNames(t *testing.T) {
	t.Parallel()
	b := newBench(t, known, &networks{policy: list, anyName: true})
	for host, want := range map[string]string{"alias.test": "Success cdn.test. edge.test. " + publicB, "mixed.test": "Success " + publicA} {
		if got := shown(b.ask("udp", host, dnsmessage.TypeA)); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}

// Only containers of job networks with names get answers, so the server neither serves nor amplifies for others.
func TestStrangersGetNoAnswer(t *testing.T) {
	t.Parallel()
	for what, n := range map[string]*networks{
		"a stranger":                {absent: true},
		"a container without names": {policy: spec.Network{Egress: spec.EgressNone}},
	} {
		b := newBench(t, known, n)
		for _, network := range []string{"udp", "tcp"} {
			if got := b.send(network, b.packet("public.test", dnsmessage.TypeA), silence); got != nil {
				t.Errorf("%s over %s: %x", what, network, got)
			}
		}
		if asked := b.zone.questions(); len(asked) > 0 {
			t.Errorf("%s: a name server was asked for %v", what, asked)
		}
	}
}

func TestFaultyMessagesAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, known, &networks{})
	response := b.packet("public.test", dnsmessage.TypeA)
	response[2] |= 0x80
	update := b.packet("public.test", dnsmessage.TypeA)
	update[2] |= 5 << 3
	two, _ := (&dnsmessage.Message{Questions: []dnsmessage.Question{
		{Name: name("a.test"), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
		{Name: name("b.test"), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}).Pack()
	chaos, _ := (&dnsmessage.Message{Questions: []dnsmessage.Question{
		{Name: name("version.bind"), Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassCHAOS}}}).Pack()
	for what, row := range map[string]struct {
		packet []byte
		want   string // "": no answer
	}{
		"nothing":       {[]byte{}, ""},
		"a piece":       {[]byte{0, 7, 1}, ""},
		"a response":    {response, ""},
		"too long":      {append(b.packet("public.test", dnsmessage.TypeA), make([]byte, maxQuestion)...), ""},
		"an update":     {update, "NotImplemented"},
		"two questions": {two, "FormatError"},
		"chaos":         {chaos, "NotImplemented"},
		"cut":           {b.packet("public.test", dnsmessage.TypeA)[:20], "FormatError"},
	} {
		wait := patience
		if row.want == "" {
			wait = silence
		}
		got := ""
		if a := b.send("udp", row.packet, wait); a != nil {
			var m dnsmessage.Message
			if err := m.Unpack(a); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			got = strings.TrimPrefix(m.RCode.String(), "RCode")
		}
		if got != row.want {
			t.Errorf("%s: %q, want %q", what, got, row.want)
		}
	}
	if got := shown(b.ask("udp", "public.test", dnsmessage.TypeA)); got != "Success "+publicA {
		t.Errorf("afterwards: %s", got)
	}
	if asked := b.zone.questions(); !slices.Equal(asked, []string{"public.test"}) {
		t.Errorf("the name server was asked for %v", asked)
	}
}

// An answer that is too long for UDP comes over TCP, and no answer over UDP is longer than the container announces.
func TestLongAnswersComeOverTCP(t *testing.T) {
	t.Parallel()
	long := slices.Repeat([]string{strings.Repeat("x", 200)}, 10)
	b := newBench(t, map[string][]dnsmessage.Resource{"long.test": {text("long.test", long...)}}, &networks{})
	m := b.ask("udp", "long.test", dnsmessage.TypeTXT)
	if !m.Truncated || len(m.Answers) > 0 {
		t.Errorf("over UDP: %+v", m)
	}
	if m = b.ask("tcp", "long.test", dnsmessage.TypeTXT); shown(m) != "Success "+strings.Join(long, " ") {
		t.Errorf("over TCP: %+v", m)
	}
}

// A name server that fails is passed over, and the answer of a host that guesses is ignored.
func TestNameServersThatFailArePassedOver(t *testing.T) {
	t.Parallel()
	b := newBench(t, known, &networks{})
	if got := shown(b.ask("udp", "alias.test", dnsmessage.TypeA)); got != "Success cdn.test. edge.test. "+publicB {
		t.Fatal(got)
	}
	second := newZone(t, known)
	second.forged.Store(true)
	b.zone.broken.Store(true)
	if got := shown(b.ask("udp", "alias.test", dnsmessage.TypeA)); got != "ServerFailure" {
		t.Errorf("without another name server: %s", got)
	}
	both, err := Listen(Options{Owner: t.Name(), Upstreams: []netip.AddrPort{b.zone.address, second.address}})
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	both.Start(b.networks)
	b.server = both
	if got := shown(b.ask("udp", "alias.test", dnsmessage.TypeA)); got != "Success cdn.test. edge.test. "+publicB {
		t.Errorf("with another name server: %s", got)
	}
}

// One container cannot use up the machine's resolver.
func TestEachContainerHasLimits(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_000_000, 0)
	l := newLimiter(func() time.Time { return at })
	greedy, other := netip.MustParseAddr("10.71.0.2"), netip.MustParseAddr("10.71.0.10")
	taken := 0
	for range 10 * burst {
		done, ok := l.take(greedy)
		if ok {
			taken++
			done()
		}
	}
	if taken != burst {
		t.Errorf("%d questions at once, want %d", taken, burst)
	}
	if _, ok := l.take(other); !ok {
		t.Error("another container is refused")
	}
	at = at.Add(time.Second)
	taken = 0
	for range 10 * burst {
		if done, ok := l.take(greedy); ok {
			taken++
			done()
		}
	}
	if taken != perSecond {
		t.Errorf("%d questions a second later, want %d", taken, perSecond)
	}
	at = at.Add(time.Hour)
	pending := 0
	for range 10 * burst {
		if _, ok := l.take(greedy); ok {
			pending++
		}
	}
	if pending != maxPending {
		t.Errorf("%d questions wait, want %d", pending, maxPending)
	}
	conns := 0
	for range 10 * maxConns {
		if _, ok := l.connect(greedy); ok {
			conns++
		}
	}
	if conns != maxConns {
		t.Errorf("%d connections, want %d", conns, maxConns)
	}
	at = at.Add(time.Hour)
	if _, ok := l.take(netip.MustParseAddr("10.71.0.3")); !ok || len(l.clients) != 3 {
		t.Errorf("%d accounts, want the two with open questions and the new one", len(l.clients))
	}
}

// The end of the server does not wait for name servers.
func TestCloseEndsQuestions(t *testing.T) {
	t.Parallel()
	mute, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	up := mute.LocalAddr().(*net.UDPAddr).AddrPort()
	s, err := Listen(Options{Owner: t.Name(), Upstreams: []netip.AddrPort{up}})
	if err != nil {
		t.Fatal(err)
	}
	s.Start(&networks{})
	b := &bench{t: t, server: s}
	conn, err := net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(containerA), s.Port()).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(b.packet("public.test", dnsmessage.TypeA)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 512)
	_ = mute.SetReadDeadline(time.Now().Add(patience))
	if _, _, err := mute.ReadFrom(buffer); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Error("the server does not end")
	}
}
