package firewall

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"berth/spec"
)

// Addresses of listed names are elements of sets with timeouts. A network has one set for each of its groups, the sets
// of ports.
const (
	// leastOpen is how long an address is allowed at least: programs use an address a while after its TTL.
	leastOpen = 5 * time.Minute
	// spareOpen is how much longer an address is allowed than its answer is valid.
	spareOpen = time.Minute
	// maxOpen bounds the addresses of a network: the owner of a listed domain chooses their number.
	maxOpen = 1024
)

// errFull reports a network with maxOpen addresses.
var errFull = errors.New("the network has too many addresses of listed names")

// errGone reports a network that the table does not have.
var errGone = errors.New("the table has no such network")

// place is an address with the ports at which it is allowed.
type place struct {
	ports spec.Ports
	addr  netip.Addr
}

// period is the time for which a place is allowed: wanted by answers, and held by the kernel.
type period struct{ wanted, held time.Time }

// opening is a place that must be in the kernel until a time.
type opening struct {
	place
	until time.Time
}

// openings are the places of a network. Table.mu guards them.
type openings map[place]period

// present returns the places that are allowed at a time, in order, and forgets the others.
func (o openings) present(now time.Time) []opening {
	var list []opening
	for p, t := range o {
		if !t.wanted.After(now) {
			delete(o, p)
			continue
		}
		list = append(list, opening{p, t.wanted})
	}
	slices.SortFunc(list, func(a, b opening) int {
		if c := strings.Compare(string(a.ports), string(b.ports)); c != 0 {
			return c
		}
		return a.addr.Compare(b.addr)
	})
	return list
}

// written notes places that the kernel has.
func (o openings) written(list []opening) {
	for _, w := range list {
		if t, known := o[w.place]; known && t.held.Before(w.until) {
			t.held = w.until
			o[w.place] = t
		}
	}
}

// groupsOf returns the distinct ports of a policy's names.
func groupsOf(p spec.Network) []spec.Ports {
	var list []spec.Ports
	for _, d := range p.Allow {
		if d.Name() != "" && !slices.Contains(list, d.Ports) {
			list = append(list, d.Ports)
		}
	}
	return list
}

// setPrefix is the beginning of the names of sets of names.
const setPrefix = "open_"

// setName returns the name of the set of a group.
func setName(bridge string, ports spec.Ports) string {
	sum := sha256.Sum256([]byte(ports))
	return setPrefix + bridge + "_" + hex.EncodeToString(sum[:4])
}

// opened writes the sets of names.
func (s *script) opened(is state) {
	for _, n := range is.list {
		for _, g := range groupsOf(n.Policy) {
			s.line("set %s { type ipv4_addr; flags timeout;", setName(n.Bridge, g))
			var list []string
			for _, o := range is.opened[n.Bridge] {
				if o.ports == g {
					list = append(list, element(o, time.Now()))
				}
			}
			if len(list) > 0 {
				s.line("elements = { %s }", strings.Join(list, ", "))
			}
			s.line("}")
		}
	}
}

// element renders an element with the rest of its time.
func element(o opening, now time.Time) string {
	return fmt.Sprintf("%s timeout %ds", o.addr, max(1, int(o.until.Sub(now).Seconds())))
}

// Open returns once the containers of a network can connect to the addresses of a listed name, and can for a time. Its
// caller has asked Reaches.
func (t *Table) Open(ctx context.Context, bridge, name string, list []netip.Addr, ttl time.Duration) error {
	now := time.Now()
	t.mu.Lock()
	e, known := t.networks[bridge]
	if !known {
		t.mu.Unlock()
		return fmt.Errorf("allow addresses of %s on bridge %s: %w", name, bridge, errGone)
	}
	var missing bool
	for _, d := range e.Policy.Allow {
		if !d.Covers(name) {
			continue
		}
		for _, a := range list {
			p := place{d.Ports, a}
			have, is := e.opened[p]
			if !is && len(e.opened) >= maxOpen && len(e.opened.present(now)) >= maxOpen {
				t.mu.Unlock()
				return fmt.Errorf("allow addresses of %s on bridge %s: %w", name, bridge, errFull)
			}
			if have.held.Before(now.Add(ttl)) {
				have.wanted = latest(have.wanted, now.Add(max(ttl, leastOpen)+spareOpen))
				e.opened[p] = have
				missing = true
			}
		}
	}
	t.mu.Unlock()
	if !missing {
		return nil
	}
	return t.writeOpenings(ctx, bridge)
}

// latest returns the later one of two times.
func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// writeOpenings adds the wanted addresses of a network that the kernel lacks. If that fails, it writes the whole table:
// another program may have deleted it.
func (t *Table) writeOpenings(ctx context.Context, bridge string) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	token, now := newToken(), time.Now()
	t.mu.Lock()
	e, known := t.networks[bridge]
	if !known {
		t.mu.Unlock()
		return fmt.Errorf("allow addresses on bridge %s: %w", bridge, errGone)
	}
	var list []opening
	for _, o := range e.opened.present(now) {
		if e.opened[o.place].held.Before(o.until) {
			list = append(list, o)
		}
	}
	t.mu.Unlock()
	if len(list) == 0 {
		return nil // the write before had them
	}
	s := &script{}
	// The chain marks the write as an own one, as in a write of the whole table.
	s.line("add chain inet %s %s\ndelete chain inet %s %s", t.name, token, t.name, token)
	for _, o := range list {
		set := "inet " + t.name + " " + setName(bridge, o.ports)
		// An element that exists keeps its timeout, so it is deleted first; and only one that exists can be deleted.
		s.line("add element %s { %s }\ndelete element %s { %s }\nadd element %s { %s }",
			set, o.addr, set, o.addr, set, element(o, now))
	}
	t.mu.Lock()
	t.tokens[token] = true
	t.mu.Unlock()
	if err := nft(ctx, t.opts.NetNS, s.String()); err != nil {
		t.forget(token)
		return t.writeNow(ctx)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e.opened.written(list)
	return nil
}

// leftOpen returns the addresses that an earlier process has left in the kernel, by set; none after the first Restore.
// Without them, programs of running containers could not connect to addresses that they know already. A failure is
// no reason to stop.
func (t *Table) leftOpen(ctx context.Context) map[string][]opening {
	t.mu.Lock()
	restored := t.restored
	t.mu.Unlock()
	if restored {
		return nil
	}
	text, err := runNFT(ctx, t.opts.NetNS, "", "--json", "list", "table", "inet", t.name)
	if errors.Is(err, errNoTable) {
		return nil
	}
	if err == nil {
		var left map[string][]opening
		if left, err = parseSets(text, time.Now()); err == nil {
			return left
		}
	}
	t.log.Warn("cannot read the addresses of listed names that the process before has allowed, containers have to ask "+
		"for these names again", "err", err)
	return nil
}

// parseSets reads the sets of names from nft's JSON. The places have no ports yet: the set's name stands for them.
func parseSets(text []byte, now time.Time) (map[string][]opening, error) {
	var doc struct {
		Nftables []struct {
			Set *struct {
				Name string            `json:"name"`
				Elem []json.RawMessage `json:"elem"`
			} `json:"set"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("read the sets of a table: %w", err)
	}
	all := map[string][]opening{}
	for _, object := range doc.Nftables {
		if object.Set == nil || !strings.HasPrefix(object.Set.Name, setPrefix) {
			continue
		}
		for _, raw := range object.Set.Elem {
			var e struct {
				Elem struct {
					Val     netip.Addr `json:"val"`
					Expires int        `json:"expires"` // seconds
				} `json:"elem"`
			}
			if json.Unmarshal(raw, &e) != nil || e.Elem.Expires <= 0 {
				continue
			}
			until := now.Add(time.Duration(e.Elem.Expires) * time.Second)
			all[object.Set.Name] = append(all[object.Set.Name], opening{place{addr: e.Elem.Val}, until})
		}
	}
	return all, nil
}

// takeOver gives the networks the addresses of an earlier process. t.mu is held.
func (t *Table) takeOver(left map[string][]opening) {
	for bridge, e := range t.networks {
		for _, g := range groupsOf(e.Policy) {
			for _, o := range left[setName(bridge, g)] {
				if len(e.opened) < maxOpen {
					e.opened[place{g, o.addr}] = period{wanted: o.until}
				}
			}
		}
	}
}
