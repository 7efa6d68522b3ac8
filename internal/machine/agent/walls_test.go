package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/client"

	"berth"
	"berth/activities/node"
	"berth/activities/node/runtimetest"
	"berth/failure"
	"berth/internal/lib/netns/netnstest"
	"berth/internal/lib/publicnet/dnstest"
	"berth/internal/machine/agent"
	"berth/internal/machine/docker"
	"berth/internal/machine/firewall"
	"berth/internal/machine/resolver"
	"berth/spec"
)

// Addresses of a walled machine's surroundings: an outside with a public address, a private
// one, a metadata service and a resolver, and the machine's own public address.
const (
	outsidePublic   = "11.0.0.2"
	outsidePrivate  = "10.9.0.2"
	outsideMetadata = "169.254.169.254"
	outsideResolver = "10.9.0.53"
	machinePublic   = "11.0.0.1"
	machinePort     = "7070"
	gangPort        = "29500"
)

// walled is a machine whose engine runs in a network namespace of its own, so that a test may
// flush all rules there.
type walled struct {
	*site
	m      *machine
	d      *runtimetest.Dockerd
	host   netnstest.Space
	engine *docker.Engine
	names  dnstest.Server
	mute   bool // the agent finds no name servers that containers reach
	spare  int  // networks that the agent creates ahead of jobs

	outside   netnstest.Space
	unnamed   bool                        // agents have no resolver of their own
	resolvers map[string]*resolver.Server // of agents, by name
}

var jobNetworks = netip.MustParsePrefix("10.71.0.0/16")

// newWalled starts a private engine, with further flags, and an agent with walls.
func newWalled(t *testing.T, flags ...string) *walled {
	t.Helper()
	w := &walled{host: netnstest.New(t), outside: netnstest.New(t), resolvers: map[string]*resolver.Server{}}
	outside := w.outside
	w.host.Forward()
	w.host.Bridge("uplink", machinePublic+"/24")
	w.host.Run("ip", "address", "add", "10.9.0.1/24", "dev", "uplink")
	w.host.Run("ip", "address", "add", "169.254.169.253/32", "dev", "lo")
	w.host.Attach(outside, "uplink", outsidePublic+"/24", "")
	for _, a := range []string{outsidePrivate + "/24", outsideResolver + "/24", outsideMetadata + "/32"} {
		outside.Run("ip", "address", "add", a, "dev", "eth0")
	}
	w.host.Run("ip", "route", "add", outsideMetadata+"/32", "dev", "uplink")
	w.host.Run("ip", "route", "add", "default", "via", outsidePublic)
	for _, a := range []string{outsidePublic, outsidePrivate, outsideMetadata} {
		outside.Listen("tcp", a+":80")
	}
	w.names.SetAddress("known.test", netip.MustParseAddr(outsidePublic))
	go w.names.ServePackets(outside.ListenPacket(outsideResolver + ":53"))
	w.host.Listen("tcp", "0.0.0.0:"+machinePort)

	w.d = runtimetest.StartDockerdIn(t, w.host.Path, flags...)
	w.site = newSite(t)
	w.image = runtimetest.Image(t, w.d.Host())
	var err error
	w.engine, err = docker.Open(w.d.Host(), docker.Options{Subnets: []netip.Prefix{jobNetworks}, NetNS: w.host.Path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.engine.Close() })
	w.m = w.machineOn("m1", w.engine)
	w.restart()
	return w
}

// restart is a new agent process with walls. The test is skipped where nftables cannot be used.
func (w *walled) restart() {
	w.t.Helper()
	w.stop()
	w.m.cfg.Egress = w.egress("m1")
	w.m.start()
}

// stop ends the agent's process, and its resolver with it.
func (w *walled) stop() {
	w.t.Helper()
	if err := w.m.stop(); err != nil {
		w.t.Fatal(err)
	}
	if names := w.resolvers["m1"]; names != nil {
		if err := names.Close(); err != nil {
			w.t.Fatal(err)
		}
		delete(w.resolvers, "m1")
	}
}

// egress opens the table of an agent. Each agent has one of its own, also on one host.
func (w *walled) egress(name string) agent.Egress {
	w.t.Helper()
	upstream := netip.MustParseAddr(outsideResolver)
	resolvers := []netip.Addr{upstream}
	if w.mute {
		resolvers = nil
	}
	var names *resolver.Server
	var port uint16
	if !w.unnamed {
		var err error
		names, err = resolver.Listen(resolver.Options{
			Owner: w.t.Name() + name, NetNS: w.host.Path, Upstreams: []netip.AddrPort{netip.AddrPortFrom(upstream, 53)},
		})
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { _ = names.Close() })
		w.resolvers[name], port = names, names.Port()
	}
	table, err := firewall.Open(w.t.Context(), firewall.Options{
		Owner: w.t.Name() + name, NetNS: w.host.Path, Never: []netip.Prefix{jobNetworks}, Resolvers: resolvers,
		NamesPort: port, Private: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")},
	})
	if errors.Is(err, firewall.ErrUnsupported) {
		w.t.Skipf("nftables: %v", err)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = table.Close() })
	if names != nil {
		names.Start(table)
	}
	return agent.Egress{
		Table: table, Resolvers: resolvers, Names: names, Private: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")},
		Ahead: w.spare,
	}
}

// inside is a running container, seen from its own network.
type inside struct {
	netnstest.Space
	policy spec.Egress
	node.Container
}

// runJob starts a job with a policy and returns its container once it runs.
func (w *walled) runJob(policy spec.Network) inside {
	w.t.Helper()
	id := w.submit(func(j *spec.Job) { j.Network = policy }, "trap-term", "0")
	w.placeGang(id, w.m)
	w.until("it runs", func() bool {
		c, err := w.engine.Inspect(w.t.Context(), berth.ContainerName(id, 0, 1))
		return err == nil && c.State == node.ContainerRunning
	})
	return w.inside(id, 0, policy)
}

// inside returns the container of a member.
func (w *walled) inside(id berth.JobID, number int, policy spec.Network) inside {
	w.t.Helper()
	c, err := w.engine.Inspect(w.t.Context(), berth.ContainerName(id, number, 1))
	if err != nil || c.PID == 0 {
		w.t.Fatalf("container is %+v, %v", c, err)
	}
	return inside{netnstest.Existing(w.t, fmt.Sprintf("/proc/%d/ns/net", c.PID)), policy.Policy(), c}
}

// resolves reports whether the container resolves a name by the engine's resolver.
func (c inside) resolves(ctx context.Context, name string) error {
	r := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return c.Open("udp", "127.0.0.11:53", patience)
	}}
	_, err := r.LookupHost(ctx, name+".")
	return err
}

// check compares the reach of a container with its policy. neighbours listen at gangPort.
func (w *walled) check(c inside, open []string, neighbours ...inside) {
	w.t.Helper()
	const waiting = 20 * time.Second
	shut := []string{outsideMetadata + ":80", machinePublic + ":" + machinePort, "10.9.0.1:" + machinePort,
		"169.254.169.253:" + machinePort}
	for _, n := range append(neighbours, c) {
		gateway := netip.MustParsePrefix(n.Address + "/29").Masked().Addr().Next()
		shut = append(shut, net.JoinHostPort(gateway.String(), machinePort))
	}
	for _, n := range neighbours {
		shut = append(shut, n.Address+":"+gangPort)
	}
	for _, a := range []string{outsidePublic + ":80", outsidePrivate + ":80"} {
		if !slices.Contains(open, a) {
			shut = append(shut, a)
		}
	}
	for _, a := range open {
		if err := c.Reach("tcp", a, waiting); err != nil {
			w.t.Errorf("policy %s: %s should answer: %v", c.policy, a, err)
		}
	}
	for _, a := range shut {
		if err := c.Reach("tcp", a, waiting); err == nil {
			w.t.Errorf("policy %s: %s answers", c.policy, a)
		}
	}
}

// checkNames compares the names that a container resolves with its policy.
func (w *walled) checkNames(c inside) {
	w.t.Helper()
	err := c.resolves(w.t.Context(), "known.test")
	if names := c.policy == spec.EgressPublic; (err == nil) != names { // the lists have no names
		w.t.Errorf("policy %s: resolving a name: %v", c.policy, err)
	}
}

var (
	noEgress   = spec.Network{Egress: spec.EgressNone}
	listEgress = spec.Network{Egress: spec.EgressList, Allow: []spec.Destination{{To: outsidePrivate, Ports: "80"}}}
)

// From inside containers of each policy, before and after everything that could lose the rules.
func TestWallsHoldOverRestartsAndFlushes(t *testing.T) {
	t.Parallel()
	w := newWalled(t, "--live-restore")
	open, shut, list := w.runJob(spec.Network{}), w.runJob(noEgress), w.runJob(listEgress)
	for _, c := range []inside{open, shut, list} {
		c.Listen("tcp", "0.0.0.0:"+gangPort)
	}
	named := true
	check := func(when string) {
		t.Helper()
		t.Log(when)
		w.check(open, []string{outsidePublic + ":80"}, shut, list)
		w.check(shut, nil, open, list)
		w.check(list, []string{outsidePrivate + ":80"}, open, shut)
		for _, c := range []inside{open, shut, list} {
			if named {
				w.checkNames(c)
			}
		}
	}
	check("at first")
	w.stop()
	named = false // the agent answers the questions about names
	check("without an agent")
	named = true
	w.host.Run("nft", "flush", "ruleset")
	w.restart()
	check("after a restart of the agent that found no rules")
	w.d.Kill()
	named = false // the engine answers the questions about names
	check("without an engine")
	named = true
	w.d.Start()
	check("after a restart of the engine")
	name := w.m.cfg.Egress.Table.Name()
	w.host.Run("nft", "flush", "ruleset")
	w.until("the rules are back", func() bool { return strings.Contains(w.host.Run("nft", "list", "ruleset"), name) })
	check("after a flush")
	if rules := w.host.Run("nft", "list", "table", "inet", name); !strings.Contains(rules, "masquerade") {
		t.Errorf("the rules are\n%s", rules)
	}
}

// Without resolvers the engine would ask its own in the host's namespace, past the rules. So a job
// without names has one that does not answer.
func TestAJobWithoutNamesHasADeadResolver(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	w.mute = true
	w.restart()
	c := w.runJob(noEgress)
	engine, err := client.NewClientWithOpts(client.WithHost(w.d.Host()), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	is, err := engine.ContainerInspect(t.Context(), c.Name)
	if err != nil {
		t.Fatal(err)
	}
	gateway := netip.MustParsePrefix(c.Address + "/29").Masked().Addr().Next().String()
	if got := is.HostConfig.DNS; !slices.Equal(got, []string{gateway}) {
		t.Errorf("the resolvers are %v, want %s", got, gateway)
	}
	go w.names.ServePackets(w.host.ListenPacket(gateway + ":53"))
	w.checkNames(c)
}

// An agent that enforces no policies has made the gang's network. The default policy joins it, and
// its walls outlast each comparison; a policy of its own does not join it.
func TestANetworkOfAnUnwalledAgent(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	cluster, err := w.db.Cluster.ID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	prepare := func(policy spec.Network) berth.JobID {
		id := w.submit(func(j *spec.Job) { j.Network = policy }, "trap-term", "0")
		_, err := w.engine.EnsureNetwork(t.Context(), node.Network{Name: berth.GangNetworkName(id, 1), Labels: map[string]string{
			berth.LabelCluster: cluster, berth.LabelJob: string(id), berth.LabelAttempt: "1"}})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	w.m.cfg.Timing.EnginePatience = 10 * time.Millisecond
	w.restart()
	_, wait := w.m.run(prepare(noEgress))
	if x := wait.exit(); x.Cause != failure.CauseNetwork || x.Started() {
		t.Errorf("exit is %+v", x)
	}
	id := prepare(spec.Network{})
	w.placeGang(id, w.m)
	w.until("it runs", func() bool {
		c, err := w.engine.Inspect(t.Context(), berth.ContainerName(id, 0, 1))
		return err == nil && c.State == node.ContainerRunning
	})
	c := w.inside(id, 0, spec.Network{})
	if err := c.Reach("tcp", outsidePrivate+":80", patience); err == nil {
		t.Error("the default policy reaches a private network")
	}
}

// The network goes with the job, and its rules go with the network.
func TestAWalledJobLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	id := w.submit(nil, "read-file", "/var/run/docker.sock")
	req, wait := w.m.run(id)
	if x := wait.exit(); x.Code == 0 {
		t.Errorf("the engine's socket is in the container: %+v", x)
	}
	w.settle(id)
	w.m.cleared(req)
	w.until("the network is gone", func() bool { return len(w.networks(w.engine, id)) == 0 })
	w.until("its rules are gone", func() bool {
		return !strings.Contains(w.host.Run("nft", "list", "table", "inet", w.m.cfg.Egress.Table.Name()), `"bn`)
	})
}

// Members of a gang meet, by name and by address, under the strictest policy.
func TestMembersOfAWalledGangMeet(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	m2 := w.machineOn("m2", w.engine)
	if err := m2.stop(); err != nil {
		t.Fatal(err)
	}
	m2.cfg.Egress = w.egress("m2")
	m2.start()
	id := w.submit(func(j *spec.Job) { j.Members, j.Network = 2, noEgress }, "trap-term", "0")
	w.placeGang(id, w.m, m2)
	w.until("both run", func() bool {
		for number := range 2 {
			c, err := w.engine.Inspect(t.Context(), berth.ContainerName(id, number, 1))
			if err != nil || c.State != node.ContainerRunning {
				return false
			}
		}
		return true
	})
	first, second := w.inside(id, 0, noEgress), w.inside(id, 1, noEgress)
	second.Listen("tcp", "0.0.0.0:"+gangPort)
	if err := first.Reach("tcp", second.Address+":"+gangPort, patience); err != nil {
		t.Errorf("members do not meet: %v", err)
	}
	if err := first.resolves(t.Context(), berth.ContainerName(id, 1, 1)); err != nil {
		t.Errorf("a member's name: %v", err)
	}
	w.check(first, nil)
	w.checkNames(first)
}

// A machine refuses a policy that it cannot enforce, and networks that its operator keeps.
func TestPoliciesBeyondTheMachineAreRefused(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	id := w.submit(func(j *spec.Job) {
		j.Network = spec.Network{Egress: spec.EgressList, Allow: []spec.Destination{{To: "10.9.0.0/24"}, {To: "10.8.0.0/24"}}}
	}, "echo", "x")
	_, wait := w.m.run(id)
	if x := wait.exit(); x.Cause != failure.CauseInputInvalid || !strings.Contains(x.Message, "network.allow[1].to: 10.8.0.0/24") {
		t.Errorf("exit is %+v", x)
	}
	if j := w.settle(id); j.Status != berth.Failed {
		t.Errorf("job is %s", j.Status)
	}
	if err := w.m.stop(); err != nil {
		t.Fatal(err)
	}
	w.m.cfg.Egress = agent.Egress{}
	w.m.start()
	id = w.submit(func(j *spec.Job) { j.Network = noEgress }, "echo", "x")
	_, wait = w.m.run(id)
	if x := wait.exit(); x.Started() || !strings.Contains(x.Message, "enforces no policies") {
		t.Errorf("exit is %+v", x)
	}
}
