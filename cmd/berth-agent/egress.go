package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"

	"berth/internal/lib/publicnet"
	"berth/internal/machine/agent"
	"berth/internal/machine/firewall"
	"berth/internal/machine/resolver"
)

// Values of --egress: whether this machine enforces egress policies.
const (
	egressAuto = "auto" // if nftables can be used
	egressHeld = "held" // the agent does not start otherwise
	egressOff  = "off"  // never: containers use the engine's bridge
)

// defaultJobNetworks are two private ranges that few other programs use by default. The second
// serves machines with a route to the first.
const defaultJobNetworks = "10.71.0.0/16,172.29.0.0/16"

// leastJobNetworks is the size of the smallest range: 256 subnets of 8 addresses.
const leastJobNetworks = 21

// networksAhead is the number of networks that wait for jobs. Four serve a pipeline's next steps or a short burst; each
// costs a bridge and a subnet of 8 addresses.
const networksAhead = 4

// egressSettings are the parsed settings of enforcement.
type egressSettings struct {
	jobs      []netip.Prefix
	private   []netip.Prefix
	deny      []netip.Prefix
	resolvers []netip.Addr
}

// parseEgress validates the settings of enforcement.
func (s *settings) parseEgress(fault func(flag string, err error)) {
	if !slices.Contains([]string{egressAuto, egressHeld, egressOff}, s.egress) {
		fault("egress", fmt.Errorf("%q: allowed are %s, %s, %s", s.egress, egressAuto, egressHeld, egressOff))
	}
	var err error
	s.walls.jobs, err = publicnet.ParseNetworks(s.jobNetworks)
	fault("job-networks", err)
	for _, p := range s.walls.jobs {
		private := func(special netip.Prefix) bool { return special.Bits() <= p.Bits() && special.Overlaps(p) }
		if !p.Addr().Is4() || p.Bits() > leastJobNetworks || !slices.ContainsFunc(publicnet.Special4(), private) {
			fault("job-networks", fmt.Errorf("%s: allowed are private IPv4 networks of /%d or larger, "+
				"such as 10.71.0.0/16", p, leastJobNetworks))
		}
	}
	if err == nil && len(s.walls.jobs) == 0 && s.egress != egressOff {
		fault("job-networks", errors.New("no range is given; give one such as 10.71.0.0/16, or --egress off"))
	}
	s.walls.private, err = publicnet.ParseNetworks(s.privateEgress)
	fault("private-egress", err)
	s.walls.deny, err = publicnet.ParseNetworks(s.egressDeny)
	fault("egress-deny", err)
	for text := range strings.SplitSeq(s.resolvers, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		a, err := netip.ParseAddr(text)
		if err != nil || !a.Is4() || a.IsLoopback() {
			fault("resolvers", fmt.Errorf("%q: allowed are IPv4 addresses that containers can reach, such as 10.0.0.2",
				text))
			continue
		}
		s.walls.resolvers = append(s.walls.resolvers, a)
	}
}

// openEgress opens the table of this machine's policies. With --egress auto, a machine without
// nftables has none: its jobs use the engine's bridge, and jobs with a policy of their own are
// not placed here. The containers of a fake engine have no network.
func (s settings) openEgress(ctx context.Context, log *slog.Logger) (agent.Egress, error) {
	if s.egress == egressOff || s.runtime == runtimeFake {
		return agent.Egress{}, nil
	}
	resolvers, upstreams := s.nameServers()
	// Two agents of one host may have one name, in different clusters, so the state folder,
	// which belongs to one agent alone, names the table.
	owner := s.stateDir + "/" + s.machine
	names := s.openNames(owner, upstreams, log)
	var port uint16
	if names != nil {
		port = names.Port()
	}
	table, err := firewall.Open(ctx, firewall.Options{
		Owner: owner, Never: slices.Concat(s.walls.jobs, s.walls.deny), Resolvers: resolvers, NamesPort: port,
		Private: s.walls.private, Logger: log,
	})
	if err != nil && names != nil {
		_ = names.Close()
	}
	switch {
	case err == nil:
		log.Info("egress policies are enforced", "table", "inet "+table.Name(), "resolvers", upstreams,
			"names_port", port)
		if names != nil {
			names.Start(table)
		}
		return agent.Egress{
			Table: table, Private: s.walls.private, Resolvers: resolvers, Names: names, Ahead: networksAhead,
		}, nil
	case errors.Is(err, firewall.ErrUnsupported) && s.egress == egressAuto:
		log.Warn("egress policies are not enforced on this machine: its jobs reach the networks that it reaches, and "+
			"jobs with a policy of their own are not placed here", "err", err)
		return agent.Egress{}, nil
	}
	return agent.Egress{}, fmt.Errorf("--egress %s: %w", s.egress, err)
}

// openNames opens the machine's own resolver, unless the operator has switched it off. Without one, containers ask the
// name servers of the host, and jobs with names in their lists are not placed here.
func (s settings) openNames(owner string, upstreams []netip.Addr, log *slog.Logger) *resolver.Server {
	if !s.filterNames {
		return nil
	}
	var list []netip.AddrPort
	for _, a := range upstreams {
		list = append(list, netip.AddrPortFrom(a, 53))
	}
	names, err := resolver.Listen(resolver.Options{Owner: owner, Upstreams: list, Logger: log})
	if err != nil {
		log.Warn("names of jobs are not filtered: containers ask the name servers of this machine, and jobs that list "+
			"names are not placed here", "err", err)
		return nil
	}
	return names
}

// nameServers returns the name servers that containers ask, and the ones that the machine's own resolver asks.
// They differ only on a host whose name servers containers cannot reach.
func (s settings) nameServers() (containers, upstreams []netip.Addr) {
	if len(s.walls.resolvers) > 0 {
		return s.walls.resolvers, s.walls.resolvers
	}
	files := []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}
	reached := func(a netip.Addr) bool { return a.Is4() && !a.IsLoopback() }
	if found := hostResolvers(reached, files...); len(found) > 0 {
		return found, found
	}
	return nil, hostResolvers(netip.Addr.IsValid, files...)
}

// hostResolvers returns the wanted name servers of the first file that has some. Containers reach no name server on
// the host's loopback and none with an address of IPv6.
func hostResolvers(wanted func(netip.Addr) bool, files ...string) []netip.Addr {
	var found []netip.Addr
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 2 || fields[0] != "nameserver" {
				continue
			}
			if a, err := netip.ParseAddr(fields[1]); err == nil && wanted(a) {
				found = append(found, a)
			}
		}
		_ = f.Close()
		if len(found) > 0 {
			break
		}
	}
	return found
}
