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
	resolvers := s.walls.resolvers
	if len(resolvers) == 0 {
		resolvers = hostResolvers("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
	}
	// Two agents of one host may have one name, in different clusters, so the state folder,
	// which belongs to one agent alone, names the table.
	table, err := firewall.Open(ctx, firewall.Options{
		Owner: s.stateDir + "/" + s.machine, Never: slices.Concat(s.walls.jobs, s.walls.deny),
		Resolvers: resolvers, Logger: log,
	})
	switch {
	case err == nil:
		log.Info("egress policies are enforced", "table", "inet "+table.Name(), "resolvers", resolvers)
		return agent.Egress{
			Table: table, Private: s.walls.private, Resolvers: resolvers, Ahead: networksAhead,
		}, nil
	case errors.Is(err, firewall.ErrUnsupported) && s.egress == egressAuto:
		log.Warn("egress policies are not enforced on this machine: its jobs reach the networks that it reaches, and "+
			"jobs with a policy of their own are not placed here", "err", err)
		return agent.Egress{}, nil
	}
	return agent.Egress{}, fmt.Errorf("--egress %s: %w", s.egress, err)
}

// hostResolvers returns the name servers of the first file that has some which containers can
// reach: a resolver on the host's loopback is the host's alone. None: the engine's own choice.
func hostResolvers(files ...string) []netip.Addr {
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
			if a, err := netip.ParseAddr(fields[1]); err == nil && a.Is4() && !a.IsLoopback() {
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
