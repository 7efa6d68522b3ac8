package firewall

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"berth/internal/lib/netns"
	"berth/internal/lib/publicnet"
	"berth/spec"
)

// ownFor is how long the addresses of the host are remembered. An address that the host gets meanwhile may be in an
// answer of its resolver, but no container can connect to it.
const ownFor = 10 * time.Second

// ownAddresses are the addresses of the host at a time. Table.ownMu guards them.
type ownAddresses struct {
	at   time.Time
	list []netip.Addr
}

// Find returns the network with the address of a container.
func (t *Table) Find(container netip.Addr) (Network, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.networks {
		if e.Subnet.Contains(container) {
			return e.Network, true
		}
	}
	return Network{}, false
}

// Reaches reports whether the rules of a network let its containers reach an address at any port, outside of their own
// network. It is the same judgement as that of the rules in the kernel, for answers to questions about names. For a
// name that the policy lists, it reports whether Open may allow the address.
func (t *Table) Reaches(n Network, name string, a netip.Addr) bool {
	if !a.Is4() || t.never(a) || slices.Contains(t.hostAddresses(), a) {
		return false
	}
	switch n.Policy.Policy() {
	case spec.EgressPublic:
		return !special(a)
	case spec.EgressList:
		return slices.ContainsFunc(n.Policy.Allow, func(d spec.Destination) bool {
			p, err := d.Prefix()
			return err == nil && p.Contains(a) || d.Covers(name) && (!special(a) || within(t.opts.Private, a))
		})
	}
	return false
}

// special reports whether an address is not public.
func special(a netip.Addr) bool {
	return within(publicnet.Special4(), a)
}

// within reports whether an address is in one of the networks.
func within(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// never reports whether no policy reaches an address.
func (t *Table) never(a netip.Addr) bool {
	if linkLocal.Contains(a) || within(t.opts.Never, a) {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.control, a)
}

// hostAddresses returns the present addresses of the host, or the last known ones.
func (t *Table) hostAddresses() []netip.Addr {
	t.ownMu.Lock()
	defer t.ownMu.Unlock()
	if time.Since(t.own.at) < ownFor {
		return t.own.list
	}
	var found []net.Addr
	err := netns.Do(t.opts.NetNS, func() (err error) {
		found, err = net.InterfaceAddrs()
		return err
	})
	t.own.at = time.Now()
	if err != nil {
		t.log.Warn("cannot list the addresses of this machine, answers about names may contain them", "err", err)
		return t.own.list
	}
	t.own.list = nil
	for _, a := range found {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			t.own.list = append(t.own.list, p.Addr())
		}
	}
	return t.own.list
}
