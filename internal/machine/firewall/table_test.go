package firewall_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/lib/netns/netnstest"
	"berth/internal/machine/firewall"
	"berth/spec"
)

// Addresses of the tests' host. The outside has a public address, the address of a metadata
// service and one in a private network; the host has a public address of its own.
const (
	hostPublic  = "11.0.0.1"
	public      = "11.0.0.2"
	metadata    = "169.254.169.254"
	lan         = "10.9.0.2"
	resolver    = "10.9.0.53"
	control     = "11.0.0.3"
	hostOnLan   = "10.9.0.1"
	hostMeta    = "169.254.169.253" // a metadata service of the host itself
	answered    = 20 * time.Second  // patience with an answer that must come
	unanswered  = 300 * time.Millisecond
	metadataV6  = "fd00:ec2::254"
	containerV6 = "fd00:71::2"
)

// bench is a host with three job networks and an outside.
type bench struct {
	host, outside        netnstest.Space
	job, mate, neighbour netnstest.Space
	table                *firewall.Table
	policy               spec.Network
	port                 uint16 // of the machine's resolver; 0: none
}

var (
	jobs       = netip.MustParsePrefix("10.71.0.0/16")
	own        = netip.MustParsePrefix("10.71.0.0/29")
	neighbours = netip.MustParsePrefix("10.71.0.8/29")
)

func newBench(t *testing.T, policy spec.Network) *bench {
	t.Helper()
	return newBenchWith(t, policy, 0)
}

// newBenchWith is newBench on a machine with a resolver at a port.
func newBenchWith(t *testing.T, policy spec.Network, port uint16) *bench {
	t.Helper()
	b := &bench{host: netnstest.New(t), outside: netnstest.New(t), policy: policy, port: port}
	b.host.Forward()
	b.host.Bridge("bj-job", "10.71.0.1/29")
	b.host.Bridge("bj-other", "10.71.0.9/29")
	b.host.Bridge("uplink", hostPublic+"/24")
	b.host.Run("ip", "address", "add", hostOnLan+"/24", "dev", "uplink")
	b.host.Run("ip", "address", "add", hostMeta+"/32", "dev", "lo")
	b.host.Attach(b.outside, "uplink", public+"/24", hostPublic)
	for _, a := range []string{control + "/24", lan + "/24", resolver + "/24", metadata + "/32"} {
		b.outside.Run("ip", "address", "add", a, "dev", "eth0")
	}
	b.host.Run("ip", "route", "add", metadata+"/32", "dev", "uplink")
	for space, address := range map[*netnstest.Space]string{&b.job: "10.71.0.2/29", &b.mate: "10.71.0.3/29"} {
		*space = netnstest.New(t)
		b.host.Attach(*space, "bj-job", address, "10.71.0.1")
	}
	b.neighbour = netnstest.New(t)
	b.host.Attach(b.neighbour, "bj-other", "10.71.0.10/29", "10.71.0.9")
	for _, a := range []string{public, metadata, lan, control} {
		b.outside.Listen("tcp", a+":80")
		b.outside.Listen("tcp", a+":81")
	}
	b.outside.Listen("udp", resolver+":53")
	b.outside.Listen("udp", resolver+":54")
	b.host.Listen("tcp", "0.0.0.0:7070")
	b.mate.Listen("tcp", "0.0.0.0:29500")
	b.neighbour.Listen("tcp", "0.0.0.0:29500")
	b.table = b.open(t)
	return b
}

// open opens a table as the next agent process would. The test is skipped where nftables cannot
// be used.
func (b *bench) open(t *testing.T) *firewall.Table {
	t.Helper()
	table, err := firewall.Open(t.Context(), firewall.Options{
		Owner: t.Name(), NetNS: b.host.Path, Never: []netip.Prefix{jobs},
		Resolvers: []netip.Addr{netip.MustParseAddr(resolver)}, NamesPort: b.port,
		Private: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")},
	})
	if errors.Is(err, firewall.ErrUnsupported) {
		t.Skipf("nftables: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Close() })
	return table
}

func (b *bench) networks() []firewall.Network {
	return []firewall.Network{
		{Bridge: "bj-job", Subnet: own, Policy: b.policy, AnyName: true}, {Bridge: "bj-other", Subnet: neighbours},
	}
}

// hold puts the rules in place.
func (b *bench) hold(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	if err := b.table.Restore(ctx, b.table.Mark(), nil); err != nil {
		t.Fatal(err)
	}
	if err := b.table.Protect(ctx, []netip.Addr{netip.MustParseAddr(control)}); err != nil {
		t.Fatal(err)
	}
	for _, n := range b.networks() {
		if err := b.table.Add(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
}

// closed are the addresses that no policy reaches.
var closed = []string{
	"10.71.0.1:7070", "10.71.0.9:7070", hostPublic + ":7070", hostOnLan + ":7070", hostMeta + ":7070",
	metadata + ":80", control + ":80", "10.71.0.10:29500",
}

// verify checks what the job reaches, under the policy of the bench.
func (b *bench) verify(t *testing.T, open []string, shut ...string) {
	t.Helper()
	for _, a := range append(open, "10.71.0.3:29500") {
		if err := b.job.Reach("tcp", a, answered); err != nil {
			t.Errorf("policy %s: %s should answer: %v", b.policy.Policy(), a, err)
		}
	}
	for _, a := range append(shut, closed...) {
		began := time.Now()
		if err := b.job.Reach("tcp", a, answered); err == nil {
			t.Errorf("policy %s: %s answers", b.policy.Policy(), a)
		} else if took := time.Since(began); took > answered/2 {
			t.Errorf("policy %s: %s is not refused at once: %v after %s", b.policy.Policy(), a, err, took)
		}
	}
	wantNames := b.policy.Policy() != spec.EgressNone
	if err := b.job.Reach("udp", resolver+":53", map[bool]time.Duration{true: answered, false: unanswered}[wantNames]); (err == nil) != wantNames {
		t.Errorf("policy %s: the resolver: %v", b.policy.Policy(), err)
	}
	if err := b.job.Reach("udp", resolver+":54", unanswered); err == nil {
		t.Errorf("policy %s: the resolver answers at another port", b.policy.Policy())
	}
	if err := b.host.Reach("tcp", "10.71.0.3:29500", answered); err != nil {
		t.Errorf("the agent does not reach a container: %v", err)
	}
	if err := b.outside.Reach("tcp", "10.71.0.3:29500", unanswered); err == nil {
		t.Error("a container is reached from outside")
	}
}

// policies are the benches of the tests, with what opens and what stays shut.
var policies = []struct {
	policy spec.Network
	open   []string
	shut   []string
}{
	{spec.Network{}, []string{public + ":80", public + ":81"}, []string{lan + ":80"}},
	{spec.Network{Egress: spec.EgressNone}, nil, []string{public + ":80", lan + ":80"}},
	{spec.Network{Egress: spec.EgressList, Allow: []spec.Destination{
		{To: public + "/32", Ports: "1-20,79,80"}, {To: lan}, {To: "0.0.0.0/0", Ports: "82"}}},
		[]string{public + ":80", lan + ":80", lan + ":81"}, []string{public + ":81"}},
}

func TestEachPolicyReachesWhatItSays(t *testing.T) {
	t.Parallel()
	for _, p := range policies {
		t.Run(string(p.policy.Policy()), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, p.policy)
			for _, a := range closed { // without a table everything answers: the checks below can fail
				if err := b.job.Reach("tcp", a, answered); err != nil && a != metadata+":80" && a != control+":80" {
					t.Fatalf("without rules %s does not answer: %v", a, err)
				}
			}
			b.hold(t)
			b.verify(t, p.open, p.shut...)
		})
	}
}

// The next agent process writes nothing before it knows the networks, and the same afterwards.
func TestAnotherProcessTakesTheTableOver(t *testing.T) {
	t.Parallel()
	b := newBench(t, spec.Network{})
	b.hold(t)
	if err := b.table.Close(); err != nil {
		t.Fatal(err)
	}
	b.verify(t, []string{public + ":80"}, lan+":80")
	b.table = b.open(t)
	if err := b.table.Add(t.Context(), b.networks()[0]); err == nil {
		t.Error("a network is added before the others are known")
	}
	b.verify(t, []string{public + ":80"}, lan+":80")
	if err := b.table.Restore(t.Context(), b.table.Mark(), b.networks()); err != nil {
		t.Fatal(err)
	}
	if err := b.table.Protect(t.Context(), []netip.Addr{netip.MustParseAddr(control)}); err != nil {
		t.Fatal(err)
	}
	b.verify(t, []string{public + ":80"}, lan+":80")
}

// run runs the table's repairs until the test ends.
func (b *bench) run(t *testing.T, repaired func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { b.table.Run(ctx, repaired) })
	t.Cleanup(func() { stop(); all.Wait() })
}

// The rules are away for a moment. A connection from this window transfers nothing afterwards,
// whether the kernel has followed it from its start, from its middle or not at all.
func TestAConnectionFromTheWindowIsCut(t *testing.T) {
	t.Parallel()
	const never, start, middle = "untracked", "tracked", "tracked from its middle"
	for _, followed := range []string{never, start, middle} {
		t.Run(followed, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, spec.Network{})
			b.hold(t)
			b.host.Run("nft", "flush", "ruleset") // not watched yet: the window is open
			follow := func() {                    // the kernel follows connections while a rule asks for them
				b.host.Run("nft", "add table inet keep; add chain inet keep c { type filter hook input priority 0; };"+
					"add rule inet keep c ct state new accept")
			}
			if followed == start {
				follow()
			}
			b.host.Stream("0.0.0.0:7072")
			var open []net.Conn
			for _, a := range []string{hostPublic + ":7070", "10.71.0.10:29500", hostPublic + ":7072"} {
				c, err := b.job.Open("tcp", a, answered)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := netnstest.Answers(c, answered); err != nil {
					t.Fatalf("without rules %s does not answer: %v", a, err)
				}
				open = append(open, c)
			}
			stream := open[2]
			if followed == middle { // the host's packets are the first that the kernel sees
				follow()
				if _, err := io.ReadFull(stream, make([]byte, 16)); err != nil {
					t.Fatal(err)
				}
			}
			repaired := make(chan struct{}, 100)
			b.run(t, func() { repaired <- struct{}{} })
			<-repaired
			var err error
			for end := time.Now().Add(answered); err == nil; {
				_ = stream.SetReadDeadline(time.Now().Add(unanswered))
				if _, err = stream.Read(make([]byte, 64)); time.Now().After(end) {
					t.Fatal("the host goes on to send on a connection from the window")
				}
			}
			for _, c := range open {
				if err := netnstest.Answers(c, unanswered); err == nil {
					t.Errorf("the connection to %s goes on", c.RemoteAddr())
				}
			}
			b.verify(t, []string{public + ":80"}, lan+":80")
		})
	}
}

func TestFlushedRulesComeBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, spec.Network{})
	b.hold(t)
	repaired := make(chan struct{}, 100)
	b.run(t, func() { repaired <- struct{}{} })
	name := b.table.Name()
	session, err := b.host.Open("tcp", "10.71.0.3:29500", answered) // of a user, opened under the rules
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	var longest time.Duration
	for _, command := range [][]string{
		{"flush", "ruleset"}, {"delete", "table", "inet", name}, {"flush", "table", "inet", name},
		{"flush", "chain", "inet", name, "input"}, {"insert", "rule", "inet", name, "input", "accept"},
		{"flush", "set", "inet", name, "bridges"},
	} {
		began := time.Now()
		b.host.Run("nft", command...)
		<-repaired
		longest = max(longest, time.Since(began))
		for _, a := range closed {
			if err := b.job.Reach("tcp", a, answered); err == nil {
				t.Errorf("after nft %v %s answers", command, a)
			}
		}
		if err := netnstest.Answers(session, answered); err != nil {
			t.Fatalf("after nft %v a session that was open before is cut: %v", command, err)
		}
	}
	t.Logf("longest window, with the run of nft that opened it: %s", longest)
	if longest > 4*time.Second { // 1s is promised; a busy test machine is slower
		t.Errorf("the rules were away for %s", longest)
	}
}

// Changes of the table's owner are no foreign changes, and other tables are of no concern here.
func TestOwnWritesAreNotRepaired(t *testing.T) {
	t.Parallel()
	b := newBench(t, spec.Network{})
	b.hold(t)
	repaired := make(chan struct{}, 100)
	b.run(t, func() { repaired <- struct{}{} })
	for range 20 {
		if err := b.table.Remove(t.Context(), b.table.Mark(), "bj-other"); err != nil {
			t.Fatal(err)
		}
		if err := b.table.Add(t.Context(), b.networks()[1]); err != nil {
			t.Fatal(err)
		}
		b.host.Run("nft", "add", "table", "inet", "another")
		b.host.Run("nft", "delete", "table", "inet", "another")
	}
	if n := len(repaired); n != 0 {
		t.Errorf("%d repairs after own writes", n)
	}
	b.host.Run("nft", "delete", "table", "inet", b.table.Name())
	<-repaired // the watch itself works
}

// A subscription that fails is replaced. What happened in between and afterwards is repaired.
func TestABrokenWatchIsReplaced(t *testing.T) {
	t.Parallel()
	b := newBench(t, spec.Network{})
	b.hold(t)
	repaired := make(chan struct{}, 100)
	b.run(t, func() { repaired <- struct{}{} })
	for range 3 {
		b.table.BreakWatch()
		<-repaired
		b.host.Run("nft", "flush", "ruleset")
		<-repaired
		b.verify(t, []string{public + ":80"}, lan+":80")
	}
}

// A comparison writes the table, also if the watch has seen no change.
func TestAComparisonRepairs(t *testing.T) {
	t.Parallel()
	b := newBench(t, spec.Network{})
	b.hold(t)
	b.host.Run("nft", "flush", "ruleset")
	if err := b.table.Restore(t.Context(), b.table.Mark(), b.networks()); err != nil {
		t.Fatal(err)
	}
	b.verify(t, []string{public + ":80"}, lan+":80")
}

// While the table is written again and again, no connection gets through.
func TestAWriteOpensNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, spec.Network{})
	b.hold(t)
	stop := make(chan struct{})
	var all sync.WaitGroup
	tried := 0
	all.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			tried++
			if err := b.job.Reach("tcp", hostPublic+":7070", answered); err == nil {
				t.Error("the host answers during a write")
				return
			}
		}
	})
	for i := range 100 {
		n := firewall.Network{Bridge: "bj-more", Subnet: netip.MustParsePrefix("10.71.1.0/29")}
		var err error
		if i%2 == 0 {
			err = b.table.Add(t.Context(), n)
		} else {
			err = b.table.Remove(t.Context(), b.table.Mark(), n.Bridge)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	all.Wait()
	t.Logf("%d connections tried", tried)
}

// A comparison with the engine's list keeps the networks that came after the list.
func TestAComparisonKeepsNewNetworks(t *testing.T) {
	t.Parallel()
	b := newBench(t, spec.Network{})
	b.hold(t)
	mark := b.table.Mark()
	if err := b.table.Add(t.Context(), firewall.Network{Bridge: "bj-new", Subnet: netip.MustParsePrefix("10.71.1.0/29")}); err != nil {
		t.Fatal(err)
	}
	if err := b.table.Restore(t.Context(), mark, b.networks()[:1]); err != nil {
		t.Fatal(err)
	}
	list := b.host.Run("nft", "list", "table", "inet", b.table.Name())
	for bridge, want := range map[string]bool{"bj-job": true, "bj-new": true, "bj-other": false} {
		if got := strings.Contains(list, "\""+bridge+"\" . "); got != want {
			t.Errorf("rules of %s: %v, want %v", bridge, got, want)
		}
	}
}

// Two hundred networks are written within the patience of a start.
func TestTwoHundredNetworks(t *testing.T) {
	t.Parallel()
	b := newBench(t, spec.Network{})
	b.hold(t)
	list := b.networks()
	at := netip.MustParseAddr("10.71.4.0")
	for i := range 200 {
		list = append(list, firewall.Network{Bridge: "bj-" + string(rune('a'+i/26)) + string(rune('a'+i%26)),
			Subnet: netip.PrefixFrom(at, 29), Policy: policies[i%3].policy})
		for range 8 {
			at = at.Next()
		}
	}
	began := time.Now()
	if err := b.table.Restore(t.Context(), b.table.Mark(), list); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d networks were written in %s", len(list), time.Since(began).Round(time.Millisecond))
	b.verify(t, []string{public + ":80"}, lan+":80")
}

// A container with IPv6 of its own making reaches nothing by it.
func TestIPv6IsShut(t *testing.T) {
	t.Parallel()
	b := newBench(t, spec.Network{})
	b.host.Run("ip", "-6", "address", "add", "fd00:71::1/64", "dev", "bj-job", "nodad")
	b.job.Run("ip", "-6", "address", "add", containerV6+"/64", "dev", "eth0", "nodad")
	b.job.Run("ip", "-6", "route", "add", "default", "via", "fd00:71::1")
	b.host.Run("ip", "-6", "address", "add", "fd00:ec2::1/64", "dev", "uplink", "nodad")
	b.outside.Run("ip", "-6", "address", "add", metadataV6+"/64", "dev", "eth0", "nodad")
	b.outside.Run("ip", "-6", "route", "add", "default", "via", "fd00:ec2::1")
	b.outside.Listen("tcp", "["+metadataV6+"]:80")
	b.host.Listen("tcp", "[fd00:71::1]:7071")
	addresses := []string{"[" + metadataV6 + "]:80", "[fd00:71::1]:7071"}
	for _, a := range addresses {
		if err := b.job.Reach("tcp", a, answered); err != nil {
			t.Fatalf("without rules %s does not answer: %v", a, err)
		}
	}
	b.hold(t)
	for _, a := range addresses {
		if err := b.job.Reach("tcp", a, unanswered); err == nil {
			t.Errorf("%s answers", a)
		}
	}
}

// A table without networks goes with its agent: nothing is left of it on the host.
func TestAnEmptyTableGoesWithItsOwner(t *testing.T) {
	t.Parallel()
	b := newBench(t, spec.Network{})
	b.hold(t)
	for _, n := range b.networks() {
		if err := b.table.Remove(t.Context(), b.table.Mark(), n.Bridge); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := b.table.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if list := b.host.Run("nft", "list", "tables"); strings.Contains(list, b.table.Name()) {
		t.Errorf("tables are %s", list)
	}
}

// The table of a killed agent is deleted by its owner's name, and a second call finds nothing to do.
func TestATableIsDeletedByItsOwner(t *testing.T) {
	t.Parallel()
	b := newBench(t, spec.Network{})
	b.hold(t)
	if list := b.host.Run("nft", "list", "tables"); !strings.Contains(list, b.table.Name()) {
		t.Fatalf("tables are %s", list)
	}
	for range 2 {
		if err := firewall.Delete(t.Context(), t.Name(), b.host.Path); err != nil {
			t.Fatal(err)
		}
		if list := b.host.Run("nft", "list", "tables"); strings.Contains(list, b.table.Name()) {
			t.Errorf("tables are %s", list)
		}
	}
}
