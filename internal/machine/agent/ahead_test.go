package agent_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/activities/node"
	"berth/internal/machine/docker"
	"berth/spec"
)

// aheadPrefix begins the names of networks that were created ahead of jobs.
const aheadPrefix = "berth-ahead-"

// ahead returns the networks of the engine that were created ahead, by name.
func (w *walled) ahead() (list []node.Network) {
	w.t.Helper()
	found, err := w.engine.Networks(w.t.Context(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.DeleteFunc(found, func(n node.Network) bool { return !strings.HasPrefix(n.Name, aheadPrefix) })
}

// rules returns the rules of the machine's table.
func (w *walled) rules() string {
	w.t.Helper()
	return w.host.Run("nft", "list", "table", "inet", w.m.cfg.Egress.Table.Name())
}

// untilPooled waits until there are some networks ahead of jobs, with rules, in addition to networks of jobs.
func (w *walled) untilPooled(size int, jobs ...string) (pool []node.Network) {
	w.t.Helper()
	w.until("the pool is full", func() bool {
		pool = slices.DeleteFunc(w.ahead(), func(n node.Network) bool { return slices.Contains(jobs, n.Name) })
		rules := w.rules()
		return len(pool) == size && !slices.ContainsFunc(pool, func(n node.Network) bool {
			return !strings.Contains(rules, `"`+n.Bridge+`" : goto from_`)
		})
	})
	return pool
}

// networkOf returns the network of a container.
func networkOf(c inside) string { return c.Labels[berth.LabelNetwork] }

// A network waits for its job without egress. The job's policy holds on it from the start on, and after everything
// that could lose the rules; the network serves one job alone, and goes with it.
func TestNetworksAreCreatedAhead(t *testing.T) {
	t.Parallel()
	w := newWalled(t, "--live-restore")
	w.spare = 3
	w.restart()
	rules := w.rules
	for _, n := range w.untilPooled(3) {
		if !strings.Contains(rules(), `"`+n.Bridge+`" : goto from_none`) {
			t.Errorf("network %s waits with egress:\n%s", n.Name, rules())
		}
	}
	open, shut, list := w.runJob(spec.Network{}), w.runJob(noEgress), w.runJob(listEgress)
	jobs := []string{networkOf(open), networkOf(shut), networkOf(list)}
	for i, name := range jobs {
		if !strings.HasPrefix(name, aheadPrefix) || slices.Contains(jobs[:i], name) {
			t.Errorf("the networks of the jobs are %q", jobs)
		}
	}
	for _, c := range []inside{open, shut, list} {
		c.Listen("tcp", "0.0.0.0:"+gangPort)
	}
	check := func(when string) {
		t.Helper()
		t.Log(when)
		w.check(open, []string{outsidePublic + ":80"}, shut, list)
		w.check(shut, nil, open, list)
		w.check(list, []string{outsidePrivate + ":80"}, open, shut)
	}
	check("at first")
	w.untilPooled(3, jobs...)
	if err := w.m.stop(); err != nil {
		t.Fatal(err)
	}
	if left := w.ahead(); len(left) != 3 {
		t.Errorf("after the agent's stop the engine has %d networks, want the 3 of the jobs", len(left))
	}
	check("without an agent")
	w.host.Run("nft", "flush", "ruleset")
	w.restart()
	check("after a restart of the agent that found no rules")
	pool := w.untilPooled(3, jobs...)
	w.d.Kill()
	w.d.Start()
	check("after a restart of the engine")
	name := w.m.cfg.Egress.Table.Name()
	w.host.Run("nft", "flush", "ruleset")
	w.until("the rules are back", func() bool { return strings.Contains(w.host.Run("nft", "list", "ruleset"), name) })
	check("after a flush")
	for _, n := range pool {
		if !strings.Contains(rules(), `"`+n.Bridge+`" : goto from_none`) {
			t.Errorf("network %s waits with egress after a flush", n.Name)
		}
	}
}

// A process knows none of the networks that an earlier one created ahead, and removes those without a container.
func TestNetworksOfAnEarlierProcessAreRemoved(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	cluster, err := w.db.Cluster.ID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const foreign = aheadPrefix + "of-another-agent"
	left := map[string]string{aheadPrefix + "left": w.m.cfg.Egress.Table.Name(), foreign: "berth_of_another"}
	for name, owner := range left {
		_, err := w.engine.EnsureNetwork(t.Context(), node.Network{Name: name, Hosts: 1, Labels: map[string]string{
			berth.LabelCluster: cluster, "berth.pool": owner}})
		if err != nil {
			t.Fatal(err)
		}
	}
	w.restart()
	w.until("the network is gone", func() bool { return len(w.ahead()) == 1 })
	if left := w.ahead(); left[0].Name != foreign {
		t.Errorf("left is %s, and not the network of another agent", left[0].Name)
	}
	if strings.Contains(w.rules(), w.ahead()[0].Bridge) {
		t.Error("the table has rules for another agent's network without a job")
	}
}

// The ranges have two subnets, and the pool takes both. A gang gets one of them all the same.
func TestAGangGetsASubnetOfThePool(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	if err := w.m.stop(); err != nil {
		t.Fatal(err)
	}
	engine, err := docker.Open(w.d.Host(), docker.Options{
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.71.0.0/28")}, NetNS: w.host.Path,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	w.m.cfg.Runtime, w.engine, w.spare = engine, engine, 2
	w.m.cfg.Egress = w.egress("m1")
	w.m.start()
	w.untilPooled(2)
	m2 := w.machineOn("m2", w.engine)
	if err := m2.stop(); err != nil {
		t.Fatal(err)
	}
	w.spare = 0
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
}
