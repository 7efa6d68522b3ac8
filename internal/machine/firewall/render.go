package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"berth/internal/lib/publicnet"
	"berth/spec"
)

// linkLocal holds the metadata services of clouds. No policy reaches it, except for a resolver.
var linkLocal = netip.MustParsePrefix("169.254.0.0/16")

// sessionLabel is the bit of the connection labels, 0 to 127, that marks the connections which the
// host has opened to containers while the table was in force.
const sessionLabel = 83

// namedLabel marks the connections to addresses of listed names. Such a connection outlives the time for which its
// address is allowed.
const namedLabel = 84

// Fragments of rules. A rejected packet is answered, so that a program fails at once; the kernel
// limits the rate of ICMP, but not of resets. Packets toward a container are dropped: no answer
// leaves for the outside.
const (
	reject = "jump refuse"
	toDNS  = "ip daddr @resolvers meta l4proto { tcp, udp } th dport 53 accept"
	ofDNS  = "ip saddr @resolvers meta l4proto { tcp, udp } th sport 53 accept"
)

// packetsPerSecond bounds the packets of a container to the machine's resolver, and packetsAtOnce a burst of them, in
// the kernel: the resolver has lower limits on questions, but a flood must not cost it CPU time.
const (
	packetsPerSecond = 500
	packetsAtOnce    = 1000
)

// script builds the text of a table.
type script struct{ strings.Builder }

func (s *script) line(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// set writes a named set; one without elements is valid and matches nothing.
func (s *script) set(name, kind string, elements []string) {
	s.line("set %s { type %s", name, kind)
	if len(elements) > 0 {
		s.line("elements = { %s }", strings.Join(elements, ", "))
	}
	s.line("}")
}

// render returns the script that replaces the table. The chain named token marks the write as
// an own one.
func (t *Table) render(is state, token string) string {
	s, list := &script{}, is.list
	s.line("add table inet %s\ndelete table inet %s\ntable inet %s {", t.name, t.name, t.name)
	s.line("chain %s {\n}", token)
	t.sets(s, list, is.control)
	s.opened(is)
	s.line("chain refuse {\nmeta l4proto tcp reject with tcp reset\nreject with icmpx admin-prohibited\n}")
	for _, p := range policies(list) {
		t.from(s, p)
		t.to(s, p)
	}
	s.line("chain forward { type filter hook forward priority filter - 5; policy accept")
	if len(list) > 0 {
		s.line("iifname . oifname @within accept") // a machine with br_netfilter shows these packets
		s.line("iifname vmap { %s }", verdicts("from", list))
		s.line("oifname vmap { %s }", verdicts("to", list))
	}
	s.line("}")
	// The host itself, on all its addresses. Connections that the host opens to a container are
	// those of users' sessions.
	s.line("chain host {\nct direction reply ct label %d accept", sessionLabel)
	s.questions(t.opts.NamesPort)
	s.line("%s\n}", reject)
	s.line("chain input { type filter hook input priority filter - 5; policy accept")
	s.line("iifname @bridges goto host")
	if port := t.opts.NamesPort; port != 0 { // the resolver is for containers alone
		s.line("meta l4proto { tcp, udp } th dport %d drop", port)
	}
	s.line("}")
	if t.opts.NamesPort != 0 {
		s.redirect(t.opts.NamesPort)
	}
	t.answers(s)
	s.line("chain output { type filter hook output priority filter - 5; policy accept")
	s.line("oifname @bridges goto answers\n}")
	s.line("chain postrouting { type nat hook postrouting priority srcnat - 5; policy accept")
	s.line("ip saddr @subnets oifname != @bridges masquerade\n}\n}")
	return s.String()
}

// answers writes the chain of the host's own packets to containers: connections that the host
// has opened, for users' sessions, and answers to rejected packets. A connection gets its label
// with its first packet, so that one which was opened while the table was missing has none. The
// kernel's view of the direction does not suffice: it may have followed such a connection from
// the middle, and takes the side that it sees first for the one that opened it.
func (t *Table) answers(s *script) {
	s.line("chain answers {")
	if port := t.opts.NamesPort; port != 0 {
		s.line("oifname @named meta l4proto { tcp, udp } th sport %d accept", port)
	} else {
		s.line("oifname @named %s", ofDNS)
	}
	s.line("meta l4proto { icmp, icmpv6 } accept\nmeta l4proto != tcp drop\ntcp flags & rst == rst accept")
	s.line("ct direction reply drop")
	s.line("ct state new tcp flags & (fin | syn | rst | ack) == syn ct label set %d accept", sessionLabel)
	s.line("ct label %d accept\ndrop\n}", sessionLabel)
}

// questions writes the rules for questions about names to the host: to the machine's resolver, or to a name server
// that runs on the host. A container cannot ask as one of another network.
func (s *script) questions(port uint16) {
	if port == 0 {
		s.line("iifname @named %s", toDNS)
		return
	}
	s.line("iifname @named meta l4proto { tcp, udp } th dport %d jump questions", port)
}

// redirect writes the chains that lead questions to the machine's resolver: those to a name server of the host, which
// containers are told to ask, and those to any address of the host. Containers keep their name servers when the agent
// is replaced by one without a resolver.
func (s *script) redirect(port uint16) {
	s.line("chain questions {\nfib saddr . iif oif missing drop")
	s.line("update @asking { ip saddr limit rate over %d/second burst %d packets } drop\naccept\n}",
		packetsPerSecond, packetsAtOnce)
	s.line("chain names { type nat hook prerouting priority dstnat - 5; policy accept")
	for _, protocol := range []string{"tcp", "udp"} {
		s.line("iifname @named ip daddr @resolvers %s dport 53 redirect to :%d", protocol, port)
		s.line("iifname @named meta nfproto ipv4 fib daddr type local %s dport 53 redirect to :%d", protocol, port)
	}
	s.line("}")
}

// sets writes the sets that the rules share.
func (t *Table) sets(s *script, list []Network, control []netip.Addr) {
	never := []string{linkLocal.String()}
	for _, p := range t.opts.Never {
		if p.Addr().Is4() {
			never = append(never, p.String())
		}
	}
	for _, a := range control {
		never = append(never, a.String())
	}
	var special, resolvers, subnets, bridges, within, named []string
	for _, p := range publicnet.Special4() {
		special = append(special, p.String())
	}
	for _, a := range t.opts.Resolvers {
		resolvers = append(resolvers, a.String())
	}
	for _, n := range list {
		subnets = append(subnets, n.Subnet.String())
		bridges = append(bridges, quoted(n.Bridge))
		within = append(within, quoted(n.Bridge)+" . "+quoted(n.Bridge))
		if t.resolves(n) {
			named = append(named, quoted(n.Bridge))
		}
	}
	const networks = "ipv4_addr; flags interval; auto-merge"
	s.set("never", networks, never)
	s.set("special", networks, special)
	s.set("resolvers", "ipv4_addr", resolvers)
	s.set("subnets", networks, subnets)
	s.set("bridges", "ifname", bridges)
	s.set("within", "ifname . ifname", within)
	s.set("named", "ifname", named)
	if t.opts.NamesPort != 0 {
		s.line("set asking { type ipv4_addr; size 65536; flags dynamic, timeout; timeout 1m; }")
	}
}

// resolves reports whether the containers of a network resolve names beyond their own network: without a resolver of
// the machine, those of a list only if they resolve all names.
func (t *Table) resolves(n Network) bool {
	switch n.Policy.Policy() {
	case spec.EgressNone:
		return false
	case spec.EgressList:
		return t.opts.NamesPort != 0 || n.AnyName
	}
	return true
}

// asksHost reports whether the containers of a network ask the name servers of the host themselves.
func asksHost(t *Table, n Network) bool { return t.opts.NamesPort == 0 && t.resolves(n) }

// chains is the pair of chains of a policy. Networks with one policy share them, except for
// EgressList: a machine with 200 jobs has few chains.
type chains struct {
	name    string
	network Network // one that uses them
}

// chainsOf returns the name of a network's chains, without the direction.
func chainsOf(n Network) string {
	if n.Policy.Policy() == spec.EgressList {
		return n.Bridge
	}
	return string(n.Policy.Policy())
}

// policies returns the chains that the networks use.
func policies(list []Network) []chains {
	var all []chains
	seen := map[string]bool{}
	for _, n := range list {
		if name := chainsOf(n); !seen[name] {
			seen[name] = true
			all = append(all, chains{name, n})
		}
	}
	return all
}

// from writes the chain of packets that leave a network.
func (t *Table) from(s *script, c chains) {
	s.line("chain from_%s {", c.name)
	if asksHost(t, c.network) {
		s.line(toDNS)
	}
	s.line("ip daddr @never %s", reject)
	s.allow(c.network.Policy, "daddr", "dport")
	if c.network.Policy.Named() {
		s.line("ct label %d accept", namedLabel)
	}
	for _, g := range groupsOf(c.network.Policy) {
		ports := ""
		if g != "" {
			ports = fmt.Sprintf("meta l4proto { tcp, udp } th dport { %s } ", ranges(g))
		}
		s.line("ip daddr @%s %sct label set %d accept", setName(c.name, g), ports, namedLabel)
	}
	s.line("%s\n}", reject)
}

// to writes the chain of packets that enter a network. Only answers enter, and only from
// addresses that the policy allows: a connection that was opened while the table was missing
// gets no answer.
func (t *Table) to(s *script, c chains) {
	s.line("chain to_%s {", c.name)
	s.line("ct direction original drop\nct state != { established, related } drop")
	// Routers with private addresses report that a packet is too large.
	s.line("meta l4proto icmp ct state related accept")
	if asksHost(t, c.network) {
		s.line(ofDNS)
	}
	s.line("ip saddr @never drop")
	s.allow(c.network.Policy, "saddr", "sport")
	if c.network.Policy.Named() {
		s.line("ct label %d accept", namedLabel)
	}
	s.line("drop\n}")
}

// allow writes the rules of a policy about the far end of a packet.
func (s *script) allow(p spec.Network, addr, port string) {
	switch p.Policy() {
	case spec.EgressNone:
	case spec.EgressPublic:
		s.line("meta nfproto ipv4 ip %s != @special accept", addr)
	case spec.EgressList:
		for _, d := range p.Allow {
			if d.Name() != "" { // has a set
				continue
			}
			if d.Ports == "" {
				s.line("ip %s %s accept", addr, d.To)
			} else {
				s.line("ip %s %s meta l4proto { tcp, udp } th %s { %s } accept", addr, d.To, port, ranges(d.Ports))
			}
		}
	default:
		panic("firewall: no rules for egress policy " + string(p.Egress))
	}
}

// ranges renders ports in order and without overlaps, as anonymous sets of nft require.
func ranges(p spec.Ports) string {
	list, _ := spec.ParsePorts(string(p)) // the spec is valid
	slices.SortFunc(list, func(a, b [2]int) int { return a[0] - b[0] })
	var parts []string
	last := 0
	for _, r := range list {
		first := max(r[0], last+1)
		if first > r[1] {
			continue
		}
		last = r[1]
		parts = append(parts, fmt.Sprintf("%d-%d", first, last))
	}
	return strings.Join(parts, ", ")
}

// verdicts renders a map from the bridges to their chains.
func verdicts(direction string, list []Network) string {
	parts := make([]string, len(list))
	for i, n := range list {
		parts[i] = fmt.Sprintf("%s : goto %s_%s", quoted(n.Bridge), direction, chainsOf(n))
	}
	return strings.Join(parts, ", ")
}

// quoted renders the name of an interface.
func quoted(name string) string { return `"` + name + `"` }
