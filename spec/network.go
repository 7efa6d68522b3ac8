package spec

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Network is the part of a job file about the network of the job's containers.
type Network struct {
	Egress Egress        `json:"egress,omitempty" doc:"public (default), none or list"`
	Allow  []Destination `json:"allow,omitempty" doc:"networks and names that the job may reach, for egress list"`
}

// Egress is the policy for the addresses that the containers of a job may connect to. The machine
// enforces the policy outside of the containers; see docs/adr/0054-egress-is-held-on-the-host.md.
type Egress string

// The policies. None of them reaches the machine itself, other jobs, metadata services or the
// control plane. Members of one gang always reach each other.
const (
	EgressPublic Egress = "public" // addresses of the Internet; the default
	EgressNone   Egress = "none"   // nothing
	EgressList   Egress = "list"   // the destinations of Network.Allow alone
)

// Policy returns the job's policy; the zero value stands for EgressPublic.
func (n Network) Policy() Egress {
	if n.Egress == "" {
		return EgressPublic
	}
	return n.Egress
}

// Strict reports whether the policy is narrower than the default, so that only a machine that
// can enforce it may run the job.
func (n Network) Strict() bool { return n.Policy() != EgressPublic }

// EgressLabel is the key of the label of machines that enforce policies, and EgressHeld its
// value. Only the agent sets such labels: neither operators nor users can.
//
// EgressGangLabel is the same key for gangs. A machine lacks it if its gangs use a network of the
// operator: it then enforces policies for single containers only.
const (
	EgressLabel     = "berth.egress"
	EgressGangLabel = "berth.egress.gangs"
	EgressHeld      = "held"
)

// NamesLabel is the key of the label, with the value EgressHeld, of machines that restrict jobs to
// the names of their lists.
const NamesLabel = "berth.egress.names"

// IsEgressLabel reports whether a key of a label is EgressLabel, EgressGangLabel or NamesLabel.
func IsEgressLabel(key string) bool {
	return key == EgressLabel || key == EgressGangLabel || key == NamesLabel
}

// Named reports whether the policy lists names, so that only a machine that can restrict names
// may run the job.
func (n Network) Named() bool {
	return slices.ContainsFunc(n.Allow, func(d Destination) bool { return d.Name() != "" })
}

// Lists reports whether the policy lists a name, which is in lower case and has no dot at its end.
func (n Network) Lists(name string) bool {
	return slices.ContainsFunc(n.Allow, func(d Destination) bool { return d.Covers(name) })
}

// Destination is a network or a name whose addresses a job may reach, for TCP and UDP at some
// ports or for all protocols.
type Destination struct {
	To    string `json:"to" doc:"IPv4 network, address or name, such as 198.51.100.0/24, pypi.org or *.example.org"`
	Ports Ports  `json:"ports,omitempty" doc:"TCP and UDP ports, such as 443,8000-8100; default: all traffic"`
}

// Limits of names, from RFC 1035.
const (
	maxName  = 253
	maxLabel = 63
)

// Name returns the destination's name in lower case, or "" if the destination is no name. The form is
// host.example.org, or *.example.org for all names below example.org. A name has two labels at least:
// others are names of a site's own, and a pattern of one label would cover a whole top-level domain.
func (d Destination) Name() string {
	name := strings.ToLower(d.To)
	labels := strings.Split(strings.TrimPrefix(name, "*."), ".")
	if len(labels) < 2 || len(name) > maxName {
		return ""
	}
	for _, label := range labels {
		if label == "" || len(label) > maxLabel || strings.Trim(label, "-") != label ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return ""
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" { // an address, or a mistyped one
		return ""
	}
	return name
}

// Covers reports whether the destination is a name or a pattern that covers a name, which is in
// lower case and has no dot at its end.
func (d Destination) Covers(name string) bool {
	own := d.Name()
	if base, isPattern := strings.CutPrefix(own, "*"); isPattern {
		return strings.HasSuffix(name, base) && len(name) > len(base)
	}
	return own != "" && own == name
}

// Prefix parses the destination's network. It refuses IPv6, which containers do not have, and
// addresses with bits beyond the mask, which are mostly typing errors.
func (d Destination) Prefix() (netip.Prefix, error) {
	p, err := netip.ParsePrefix(d.To)
	if a, alone := netip.ParseAddr(d.To); alone == nil {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil || !p.Addr().Is4() || p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%.100q is not an IPv4 network or address", d.To)
	}
	return p, nil
}

// String returns the network and the ports, such as 10.20.0.0/16:443.
func (d Destination) String() string {
	if d.Ports == "" {
		return d.To
	}
	return d.To + ":" + string(d.Ports)
}

// Ports is a set of ports in the form 443,8000-8100; "" stands for all traffic.
type Ports string

// UnmarshalJSON accepts the form of ParsePorts and a bare number: ports: 443.
func (p *Ports) UnmarshalJSON(b []byte) error {
	text := unquote(b)
	if text != "" {
		if _, err := ParsePorts(text); err != nil {
			return err
		}
	}
	*p = Ports(text)
	return nil
}

// maxPorts bounds the ranges of one destination.
const maxPorts = 32

// ParsePorts returns the ranges of a set of ports, each with its first and its last port.
func ParsePorts(text string) ([][2]int, error) {
	var ranges [][2]int
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(strings.TrimSpace(part), "-")
		first, err := strconv.Atoi(from)
		last := first
		if ranged && err == nil {
			last, err = strconv.Atoi(to)
		}
		if err != nil || first < 1 || last > 65535 || first > last || len(ranges) == maxPorts {
			return nil, fmt.Errorf("ports %.100q: write up to %d numbers and ranges from 1 to 65535, "+
				"such as 443,8000-8100", text, maxPorts)
		}
		ranges = append(ranges, [2]int{first, last})
	}
	return ranges, nil
}

// maxAllowed bounds the destinations of a job.
const maxAllowed = 64

// validate checks the policy and its destinations. Whether a network that is not public
// may be listed is the machine's matter.
func (n Network) validate(v *validation) {
	v.oneOf("network.egress", string(n.Policy()), string(EgressPublic), string(EgressNone), string(EgressList))
	isList := n.Egress == EgressList
	v.require(isList || len(n.Allow) == 0, "network.allow", "is only for egress: list", "set network.egress: list")
	v.require(!isList || len(n.Allow) > 0, "network.allow", "is missing", "at least one destination, or egress: none")
	v.require(len(n.Allow) <= maxAllowed, "network.allow", "too many destinations",
		fmt.Sprintf("at most %d", maxAllowed))
	for i, d := range n.Allow {
		_, err := d.Prefix()
		v.require(err == nil || d.Name() != "", fmt.Sprintf("network.allow[%d].to", i),
			fmt.Sprintf("%.100q is neither an IPv4 network nor a name", d.To),
			"an IPv4 network without bits beyond its mask, such as 198.51.100.0/24, an address, or a name of two "+
				"labels or more, such as pypi.org or *.example.org")
		if d.Ports != "" {
			_, err := ParsePorts(string(d.Ports))
			v.require(err == nil, fmt.Sprintf("network.allow[%d].ports", i),
				fmt.Sprintf("%.100q is not a set of ports", d.Ports), "numbers and ranges, such as 443,8000-8100")
		}
	}
}
