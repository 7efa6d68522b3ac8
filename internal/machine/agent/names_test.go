package agent_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/spec"
	"berth/wire"
)

// lookUp returns the addresses of a name, as a program in the container finds them: by the engine's resolver.
func (c inside) lookUp(ctx context.Context, name string) ([]string, error) {
	r := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return c.Open("udp", "127.0.0.11:53", patience)
	}}
	return r.LookupHost(ctx, name+".")
}

// question is a packed question for the address of a.test.
var question = append([]byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, "\x01a\x04test\x00\x00\x01\x00\x01"...)

// asks reports whether a name server answers at an address over UDP or TCP.
func asks(open func(network, address string, patience time.Duration) (net.Conn, error), network, address string,
	wait time.Duration) bool {
	conn, err := open(network, address, wait)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(wait))
	packet := question
	if network == "tcp" {
		packet = append(binary.BigEndian.AppendUint16(nil, uint16(len(question))), question...)
	}
	if _, err := conn.Write(packet); err != nil {
		return false
	}
	n, err := conn.Read(make([]byte, 512))
	return err == nil && n > 0
}

// A container resolves names of addresses that it can reach, and no internal ones, however it asks.
func TestContainersResolveReachableNamesAlone(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	for name, address := range map[string]string{
		"public.test": outsidePublic, "internal.test": outsidePrivate, "metadata.test": outsideMetadata,
		"machine.test": machinePublic, "loopback.test": "127.0.0.1", "neighbour.test": "10.71.0.2",
	} {
		w.names.SetAddress(name, netip.MustParseAddr(address))
	}
	open, shut := w.runJob(spec.Network{}), w.runJob(noEgress)
	check := func(when string) {
		t.Helper()
		if got, err := open.lookUp(t.Context(), "public.test"); !slices.Equal(got, []string{outsidePublic}) {
			t.Errorf("%s, public.test is %v, %v", when, got, err)
		}
		for _, name := range []string{"internal", "metadata", "machine", "loopback", "neighbour"} {
			if got, err := open.lookUp(t.Context(), name+".test"); err == nil {
				t.Errorf("%s, %s.test is %v", when, name, got)
			}
		}
	}
	check("at first")
	const silence = 300 * time.Millisecond
	for _, network := range []string{"udp", "tcp"} {
		// The machine answers at each address of its own, and in the place of the host's name servers.
		for _, address := range []string{outsideResolver + ":53", machinePublic + ":53"} {
			if !asks(open.Open, network, address, patience) {
				t.Errorf("a container gets no answer from %s over %s", address, network)
			}
			if asks(shut.Open, network, address, silence) {
				t.Errorf("a container without names gets an answer from %s over %s", address, network)
			}
		}
		port := netip.AddrPortFrom(netip.MustParseAddr(machinePublic), w.m.cfg.Egress.Names.Port()).String()
		if asks(w.outside.Open, network, port, silence) {
			t.Errorf("a stranger gets an answer over %s", network)
		}
		if asks(shut.Open, network, port, silence) {
			t.Errorf("a container without names gets an answer at the resolver's own port over %s", network)
		}
	}
	if asked := w.names.Asked("a.test"); asked != 4 {
		t.Errorf("%d questions were forwarded, want 4", asked)
	}
	w.restart()
	check("after a restart of the agent")
	w.host.Run("nft", "flush", "ruleset")
	w.until("names resolve after a flush", func() bool {
		_, err := open.lookUp(t.Context(), "public.test")
		return err == nil
	})
	check("after a flush")
}

// Containers of an agent without a resolver keep their names when the next agent has one, and the other way round.
func TestNamesOutliveAChangeOfTheAgent(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	w.unnamed = true
	w.restart()
	old := w.runJob(spec.Network{})
	w.checkNames(old)
	w.unnamed = false
	w.restart()
	w.checkNames(old)
	fresh := w.runJob(spec.Network{})
	w.unnamed = true
	w.restart()
	w.checkNames(fresh)
}

// On a host whose name servers are out of reach for containers, the machine's resolver asks them.
func TestNamesOfAHostWithALoopbackResolver(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	w.mute = true
	w.restart()
	w.checkNames(w.runJob(spec.Network{}))
}

// A job with names in its list resolves and reaches these alone, and its history shows the others.
func TestAListOfNames(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	w.names.SetAddress("listed.test", netip.MustParseAddr(outsidePublic))
	w.names.SetAddress("private.test", netip.MustParseAddr(outsidePrivate))
	w.names.SetAddress("metadata.test", netip.MustParseAddr(outsideMetadata))
	w.names.SetAddress("tunnel.test", netip.MustParseAddr(outsidePublic))
	policy := spec.Network{Egress: spec.EgressList, Allow: []spec.Destination{
		{To: "listed.test", Ports: "80"}, {To: "private.test", Ports: "80"}, {To: "metadata.test"}}}
	c := w.runJob(policy)
	w.check(c, nil)
	resolved := func(name, address string) {
		t.Helper()
		if got, err := c.lookUp(t.Context(), name); !slices.Equal(got, []string{address}) {
			t.Errorf("%s is %v, %v", name, got, err)
		}
	}
	resolved("listed.test", outsidePublic)
	w.check(c, []string{outsidePublic + ":80"})
	resolved("private.test", outsidePrivate)
	w.check(c, []string{outsidePublic + ":80", outsidePrivate + ":80"})
	for _, name := range []string{"metadata.test", "tunnel.test", "secret.tunnel.test", "secret.listed.test"} {
		if got, err := c.lookUp(t.Context(), name); err == nil {
			t.Errorf("%s is %v", name, got)
		}
	}
	if n := w.names.Asked("tunnel.test") + w.names.Asked("secret.tunnel.test") + w.names.Asked("secret.listed.test"); n > 0 {
		t.Errorf("%d questions for names that are not listed left the machine", n)
	}
	id := berth.JobID(c.Labels[berth.LabelJob])
	const told = "asked for secret.tunnel.test, which network.allow does not list"
	const last = "asked for secret.listed.test, which network.allow does not list"
	w.until("the history has the names", func() bool { return w.warned(id, told) == 1 && w.warned(id, last) == 1 })
	_, _ = c.lookUp(t.Context(), "secret.tunnel.test")
	w.restart()
	w.check(c, []string{outsidePublic + ":80", outsidePrivate + ":80"}) // without another question
	resolved("listed.test", outsidePublic)
	if n := w.warned(id, told); n != 1 {
		t.Errorf("%d warnings about one name", n)
	}
}

// warned counts the warnings with a text in a job's history.
func (w *walled) warned(id berth.JobID, text string) (n int) {
	w.t.Helper()
	for _, e := range w.eventsOf(id, wire.EventWarning) {
		n += strings.Count(e.Detail, text)
	}
	return n
}
