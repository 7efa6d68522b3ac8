package firewall_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"berth/internal/lib/netns/netnstest"
	"berth/spec"
)

// byName lists names: one at a port, one at all ports.
var byName = spec.Network{Egress: spec.EgressList, Allow: []spec.Destination{
	{To: "a.example.org", Ports: "80"}, {To: "*.b.example.org"}, {To: lan, Ports: "81"}}}

func addresses(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

// reached checks the reach of the job at this moment.
func (b *bench) reached(t *testing.T, when string, want map[string]bool) {
	t.Helper()
	for a, open := range want {
		if err := b.job.Reach("tcp", a, answered); (err == nil) != open {
			t.Errorf("%s: %s: %v", when, a, err)
		}
	}
}

// An address of a listed name is open from the end of the call on, at the ports of the name, and over everything that
// could lose it.
func TestAddressesOfListedNamesAreOpen(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, byName, 5353)
	b.hold(t)
	ctx := t.Context()
	b.reached(t, "at first", map[string]bool{public + ":80": false, lan + ":80": false, lan + ":81": true})
	if err := b.table.Open(ctx, "bj-job", "a.example.org", addresses(public), time.Minute); err != nil {
		t.Fatal(err)
	}
	open := map[string]bool{public + ":80": true, public + ":81": false, lan + ":80": false, lan + ":81": true}
	b.reached(t, "with one address", open)
	if err := b.neighbour.Reach("tcp", lan+":80", answered); err == nil {
		t.Error("another job reaches the address")
	}
	session, err := b.job.Open("tcp", public+":80", answered)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	alive := func(when string) {
		t.Helper()
		if err := netnstest.Answers(session, answered); err != nil {
			t.Errorf("%s, the connection is cut: %v", when, err)
		}
	}
	alive("at first")
	b.host.Run("nft", "flush", "ruleset") // not watched
	if err := b.table.Restore(ctx, b.table.Mark(), b.networks()); err != nil {
		t.Fatal(err)
	}
	b.reached(t, "after a flush", open)
	if err := b.table.Close(); err != nil {
		t.Fatal(err)
	}
	b.table = b.open(t)
	if err := b.table.Restore(ctx, b.table.Mark(), b.networks()); err != nil {
		t.Fatal(err)
	}
	b.reached(t, "in the next process", open)
	alive("in the next process")
	// The next process knows the address, and its Open succeeds again after another program has deleted the table.
	b.host.Run("nft", "flush", "ruleset")
	if err := b.table.Open(ctx, "bj-job", "x.b.example.org", addresses(lan), time.Minute); err != nil {
		t.Fatal(err)
	}
	open[lan+":80"], open[public+":81"] = true, false
	b.reached(t, "with two addresses", open)
}

// The connection to an address whose time is over goes on, and no new one begins.
func TestAConnectionOutlivesItsAddress(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, byName, 5353)
	b.hold(t)
	if err := b.table.Open(t.Context(), "bj-job", "a.example.org", addresses(public), time.Minute); err != nil {
		t.Fatal(err)
	}
	session, err := b.job.Open("tcp", public+":80", answered)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if err := netnstest.Answers(session, answered); err != nil {
		t.Fatal(err)
	}
	b.host.Run("sh", "-c", fmt.Sprintf("for s in $(nft list table inet %[1]s | grep -o 'open_bj-job[^ ]*' | sort -u); do "+
		"nft flush set inet %[1]s $s; done", b.table.Name()))
	b.reached(t, "without the address", map[string]bool{public + ":80": false})
	if err := netnstest.Answers(session, answered); err != nil {
		t.Errorf("the connection is cut: %v", err)
	}
}

// Own writes of addresses are no foreign changes.
func TestOpenIsNotRepaired(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, byName, 5353)
	b.hold(t)
	repaired := make(chan struct{}, 100)
	b.run(t, func() { repaired <- struct{}{} })
	for i := range 20 {
		a := netip.AddrFrom4([4]byte{11, 1, 0, byte(i)})
		if err := b.table.Open(t.Context(), "bj-job", "a.example.org", []netip.Addr{a}, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	b.host.Run("nft", "delete", "table", "inet", b.table.Name()) // the repair of it comes last
	<-repaired
	if n := len(repaired); n > 0 {
		t.Errorf("%d repairs of own writes", n)
	}
}

// A domain cannot fill the table, and a network that is gone gets no address.
func TestAddressesAreBounded(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, byName, 5353)
	b.hold(t)
	many := func(from byte) (list []netip.Addr) {
		for i := range 600 {
			list = append(list, netip.AddrFrom4([4]byte{11, from, byte(i / 256), byte(i)}))
		}
		return list
	}
	if err := b.table.Open(t.Context(), "bj-job", "a.example.org", many(1), time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := b.table.Open(t.Context(), "bj-job", "a.example.org", many(2), time.Minute); err == nil {
		t.Error("1200 addresses are allowed")
	}
	if err := b.table.Open(t.Context(), "bj-job", "a.example.org", many(1), time.Minute); err != nil {
		t.Errorf("known addresses are refused: %v", err)
	}
	if err := b.table.Open(t.Context(), "bj-gone", "a.example.org", addresses(public), time.Minute); err == nil {
		t.Error("a network that does not exist gets an address")
	}
}

// Reaches judges as the rules do.
func TestReachesJudgesAsTheRulesDo(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		policy spec.Network
		name   string
		open   []string
		shut   []string
	}{
		{spec.Network{}, "", []string{public}, []string{lan, "127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255"}},
		{spec.Network{Egress: spec.EgressNone}, "", nil, []string{public, lan}},
		{byName, "c.example.org", []string{lan}, []string{public, "10.9.0.3"}},
		{byName, "a.example.org", []string{lan, public, "10.9.0.3"}, []string{"10.8.0.1", "127.0.0.1", "::1"}},
	} {
		b := newBenchWith(t, row.policy, 5353)
		b.hold(t)
		n, known := b.table.Find(netip.MustParseAddr("10.71.0.2"))
		if _, other := b.table.Find(netip.MustParseAddr("10.71.0.200")); !known || other {
			t.Fatalf("the container's network is %v, %t", n, other)
		}
		for _, a := range row.open {
			if !b.table.Reaches(n, row.name, netip.MustParseAddr(a)) {
				t.Errorf("%s %s: %s is out of reach", row.policy.Policy(), row.name, a)
			}
		}
		for _, a := range append(row.shut, metadata, control, hostPublic, hostOnLan, hostMeta, "10.71.0.10", "10.71.0.1") {
			if b.table.Reaches(n, row.name, netip.MustParseAddr(a)) {
				t.Errorf("%s %s: %s is in reach", row.policy.Policy(), row.name, a)
			}
		}
	}
}

// Containers with names reach the resolver in the place of a name server, and others not at all.
func TestThePortOfTheResolverIsForContainers(t *testing.T) {
	t.Parallel()
	for _, policy := range []spec.Network{{}, {Egress: spec.EgressNone}, byName} {
		b := newBenchWith(t, policy, 5353)
		for _, network := range []string{"udp", "tcp"} {
			b.host.Listen(network, "0.0.0.0:5353")
			if err := b.outside.Reach(network, hostPublic+":5353", answered); err != nil {
				t.Fatalf("without rules: %v", err)
			}
		}
		b.hold(t)
		names := policy.Policy() != spec.EgressNone
		wait := map[bool]time.Duration{true: answered, false: unanswered}[names]
		for _, network := range []string{"udp", "tcp"} {
			for _, a := range []string{resolver + ":53", "10.71.0.1:53", hostPublic + ":53", "10.71.0.1:5353"} {
				if err := b.job.Reach(network, a, wait); (err == nil) != names {
					t.Errorf("policy %s: %s over %s: %v", policy.Policy(), a, network, err)
				}
			}
			if err := b.outside.Reach(network, hostPublic+":5353", unanswered); err == nil {
				t.Errorf("policy %s: a stranger reaches the resolver over %s", policy.Policy(), network)
			}
		}
	}
}

// A flood of one container does not reach the resolver.
func TestAFloodOfQuestionsIsDropped(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, spec.Network{}, 5353)
	packets := b.host.ListenPacket("0.0.0.0:5353")
	b.hold(t)
	conn, err := b.job.Open("udp", "10.71.0.1:53", answered)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const flood = 20_000
	began := time.Now()
	go func() {
		for range flood {
			_, _ = conn.Write([]byte("x"))
		}
	}()
	arrived := 0
	buffer := make([]byte, 16)
	for {
		_ = packets.SetReadDeadline(time.Now().Add(unanswered))
		if _, _, err := packets.ReadFrom(buffer); err != nil {
			break
		}
		arrived++
	}
	if most := 1000 + int(500*time.Since(began).Seconds()) + 500; arrived > most || arrived == 0 {
		t.Errorf("%d of %d packets reach the resolver in %s, at most %d are allowed", arrived, flood, time.Since(began), most)
	}
}
