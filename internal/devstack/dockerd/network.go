package dockerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
)

// jobBridges matches the interfaces of networks that agents create.
const jobBridges = "bn+"

// ensureNetwork creates the machine's bridge with an address, and lets its traffic out. It is
// idempotent. The engine is configured not to touch iptables (see the package's documentation),
// so ensureNetwork creates the rules, each with the machine's tag as its comment.
func ensureNetwork(ctx context.Context, m machine) (netip.Prefix, error) {
	subnet, err := pickSubnet(m)
	if err != nil {
		return netip.Prefix{}, err
	}
	gateway := netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits())
	if _, err := net.InterfaceByName(m.bridge()); err != nil {
		if err := ip(ctx, "link", "add", m.bridge(), "type", "bridge"); err != nil {
			return netip.Prefix{}, err
		}
	}
	if err := ip(ctx, "address", "replace", gateway.String(), "dev", m.bridge()); err != nil {
		return netip.Prefix{}, err
	}
	if err := ip(ctx, "link", "set", m.bridge(), "up"); err != nil {
		return netip.Prefix{}, err
	}
	for _, rule := range []struct {
		table, chain string
		match        []string
	}{
		{"filter", "FORWARD", []string{"-i", m.bridge(), "-j", "ACCEPT"}},
		{"filter", "FORWARD", []string{"-o", m.bridge(), "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED",
			"-j", "ACCEPT"}},
		// Networks of jobs, whose egress the agent restricts: another engine of this host may
		// have set the chain's policy to drop.
		{"filter", "FORWARD", []string{"-i", jobBridges, "-j", "ACCEPT"}},
		{"filter", "FORWARD", []string{"-o", jobBridges, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED",
			"-j", "ACCEPT"}},
		{"nat", "POSTROUTING", []string{"-s", subnet.String(), "!", "-o", m.bridge(), "-j", "MASQUERADE"}},
	} {
		args := append([]string{rule.chain, "-m", "comment", "--comment", m.tag()}, rule.match...)
		if _, err := iptables(ctx, append([]string{"-t", rule.table, "-C"}, args...)...); err == nil {
			continue
		}
		if _, err := iptables(ctx, append([]string{"-t", rule.table, "-A"}, args...)...); err != nil {
			return netip.Prefix{}, err
		}
	}
	return subnet, nil
}

// removeNetwork removes the bridge and the rules that ensureNetwork created.
func removeNetwork(ctx context.Context, m machine) error {
	var errs []error
	for _, table := range []string{"filter", "nat"} {
		rules, err := iptables(ctx, "-t", table, "-S")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for line := range strings.Lines(rules) {
			args := strings.Fields(strings.ReplaceAll(line, `"`, "")) // the tag needs no quotes
			if len(args) == 0 || args[0] != "-A" || !strings.Contains(line, m.tag()) {
				continue
			}
			args[0] = "-D"
			if _, err := iptables(ctx, append([]string{"-t", table}, args...)...); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if _, err := net.InterfaceByName(m.bridge()); err == nil {
		errs = append(errs, ip(ctx, "link", "delete", m.bridge()))
	}
	return errors.Join(errs...)
}

// pickSubnet returns the machine's /24: the one of an earlier start, or one that no interface of
// this host uses. The first guess follows from the machine's id, so machines that start at the
// same time do not compete for one subnet.
func pickSubnet(m machine) (netip.Prefix, error) {
	used, err := usedSubnets(m.bridge())
	if err != nil {
		return netip.Prefix{}, err
	}
	free := func(p netip.Prefix) bool {
		for _, u := range used {
			if u.Overlaps(p) {
				return false
			}
		}
		return true
	}
	if b, err := os.ReadFile(m.subnetFile()); err == nil {
		if p, err := netip.ParsePrefix(strings.TrimSpace(string(b))); err == nil && free(p) {
			return p, nil
		}
	}
	const pools = 50 * 256 // 10.200.0.0/24 to 10.249.255.0/24
	var guess uint32
	if _, err := fmt.Sscanf(m.id, "%08x", &guess); err != nil {
		return netip.Prefix{}, fmt.Errorf("machine id %q: %w", m.id, err)
	}
	for i := range uint32(pools) {
		n := (guess + i) % pools
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(200 + n/256), byte(n % 256), 0}), 24)
		if !free(p) {
			continue
		}
		if err := os.WriteFile(m.subnetFile(), []byte(p.String()+"\n"), 0o644); err != nil {
			return netip.Prefix{}, err
		}
		return p, nil
	}
	return netip.Prefix{}, fmt.Errorf("every subnet from 10.200.0.0/24 to 10.249.255.0/24 is in use on this host")
}

// usedSubnets returns the subnets of the host's interfaces, without the subnets of except.
func usedSubnets(except string) ([]netip.Prefix, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var used []netip.Prefix
	for _, i := range interfaces {
		if i.Name == except {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it went away between the two calls
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				used = append(used, p.Masked())
			}
		}
	}
	return used, nil
}

// ip runs the ip command of iproute2, which must be installed. The error quotes the command's own
// text.
func ip(ctx context.Context, args ...string) error {
	_, err := output(ctx, "ip", "iproute2", args...)
	return err
}

// iptables waits for the lock that all users of iptables share.
func iptables(ctx context.Context, args ...string) (string, error) {
	return output(ctx, "iptables", "iptables", append([]string{"-w", "300"}, args...)...)
}

// output runs a program and returns its standard output. The error contains the program's
// standard error, or the Debian package of a missing program.
func output(ctx context.Context, program, debianPackage string, args ...string) (string, error) {
	path, err := lookUp(program, debianPackage)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr // apart: iptables warns there of legacy tables
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
