package agent_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/activities/node/runtimetest/prog"
	"berth/db"
	"berth/e2e/commands"
	"berth/internal/machine/docker"
	"berth/spec"
	"berth/wire"
)

// two machines that share an engine, as two agents on one host do.
func (s *site) pair(engine node.Runtime) [2]*machine {
	s.t.Helper()
	return [2]*machine{s.machineOn("m1", engine), s.machineOn("m2", engine)}
}

// placeGang begins the next attempt of a gang, a rank on each of the machines.
func (s *site) placeGang(id berth.JobID, on ...*machine) (attempt int) {
	s.t.Helper()
	if _, err := s.db.Jobs.Load(s.t.Context(), id); err != nil {
		s.t.Fatal(err)
	}
	start := berth.Start{Job: id}
	if err := s.db.Pool().QueryRow(s.t.Context(), `SELECT version, attempt + 1 FROM jobs WHERE id = $1`, id).Scan(&start.Version, &start.Attempt); err != nil {
		s.t.Fatal(err)
	}
	for _, m := range on {
		mach, err := s.db.Machines.Get(s.t.Context(), "", m.id)
		if err != nil {
			s.t.Fatal(err)
		}
		start.Ranks = append(start.Ranks, berth.Grant{Machine: m.id, Epoch: mach.Epoch, Capacity: berth.Capacity{CPUMilli: 500, MemoryMiB: 64}})
	}
	c, err := s.db.Queue.CommitStarts(s.t.Context(), s.term, []berth.Start{start})
	if err != nil || len(c.Started) != 1 {
		s.t.Fatalf("place: %+v, %v", c, err)
	}
	for _, m := range on {
		s.db.Hub().Publish(db.TopicMachine, string(m.id))
	}
	return start.Attempt
}

// gangEnds waits until every rank of an attempt is sealed.
func (s *site) gangEnds(id berth.JobID, attempt int) {
	s.t.Helper()
	s.until("the gang ends", func() bool {
		var open int
		if err := s.db.Pool().QueryRow(s.t.Context(), `SELECT count(*) FROM allocations WHERE job = $1 AND attempt = $2 AND sealed_at IS NULL`, id, attempt).Scan(&open); err != nil {
			s.t.Fatal(err)
		}
		return open == 0
	})
}

func (s *site) networks(engine node.Runtime, id berth.JobID) []string {
	s.t.Helper()
	found, err := engine.Networks(s.t.Context(), map[string]string{berth.LabelJob: string(id)})
	if err != nil {
		s.t.Fatal(err)
	}
	var names []string
	for _, n := range found {
		names = append(names, n.Name)
	}
	return names
}

func gangOf(n int) func(*spec.Job) { return func(j *spec.Job) { j.Members = n } }

func TestMembersOfAGangOnOneEngineShareANetwork(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	t.Cleanup(engine.Shutdown)
	m := s.pair(engine)
	for _, x := range m {
		var network string
		if err := s.db.Pool().QueryRow(t.Context(), `SELECT network FROM machines WHERE id = $1`, string(x.id)).Scan(&network); err != nil || !strings.HasPrefix(network, "engine/fake-") {
			t.Errorf("machine %s is on network %q, %v", x.id, network, err)
		}
	}
	reached, free := make(chan struct{}, 10), make(chan struct{})
	engine.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "Create" && strings.HasSuffix(c.Subject, "-1-1") {
			reached <- struct{}{}
			<-free
		}
		return nil
	})
	id := s.submit(gangOf(2), "env", "MASTER_ADDR", "MASTER_PORT", "BERTH_PEERS", "NODE_RANK", "NNODES", "BERTH_MEMBERS")
	attempt := s.placeGang(id, m[0], m[1])
	<-reached
	s.until("rank 0 is ready", func() bool {
		c, err := engine.Inspect(t.Context(), berth.ContainerName(id, 0, attempt))
		return err == nil && c.State == node.ContainerCreated
	})
	if j := s.job(id); j.Status != berth.Scheduled {
		t.Errorf("the gang is %s before its last rank is ready", j.Status)
	}
	if got := s.networks(engine, id); !slices.Equal(got, []string{berth.GangNetworkName(id, 1)}) {
		t.Errorf("networks are %q", got)
	}
	close(free)
	s.gangEnds(id, attempt)
	name := berth.ContainerName(id, 0, 1)
	want := []string{"MASTER_ADDR=" + name, "MASTER_PORT=29500", "BERTH_PEERS=" + name + ":29500," + berth.ContainerName(id, 1, 1) + ":29500", "NODE_RANK=0", "NNODES=2", "BERTH_MEMBERS=2"}
	if got := s.log(id, 1); !slices.Equal(got, want) {
		t.Errorf("rank 0 sees %q, want %q", got, want)
	}
	if j := s.settle(id); j.Status != berth.Succeeded {
		t.Errorf("the gang is %s: %+v", j.Status, j.Reason)
	}
	s.until("the network goes with the last of them", func() bool { return len(s.networks(engine, id)) == 0 })
}

// Any agent on the same engine removes the networks that a dead agent left, and leaves networks
// in use alone.
func TestNetworksThatGangsLeftAreSwept(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	t.Cleanup(engine.Shutdown)
	m := s.machineOn("m1", engine)
	cluster, err := s.db.Cluster.ID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ours := map[string]string{berth.LabelCluster: cluster, berth.LabelJob: "gone", berth.LabelAttempt: "1"}
	theirs := map[string]string{berth.LabelCluster: "another", berth.LabelJob: "gone", berth.LabelAttempt: "1"}
	for name, labels := range map[string]map[string]string{"left": ours, "used": ours, "theirs": theirs} {
		if _, err := engine.EnsureNetwork(t.Context(), node.Network{Name: name, Labels: labels}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := engine.Create(t.Context(), node.ContainerSpec{Name: "x", Image: "x", CPUMilli: 1, MemoryMiB: 1, Network: "used"}); err != nil {
		t.Fatal(err)
	}
	m.cfg.Timing.NetworkSweep, m.cfg.Timing.NetworkAge = 5*time.Millisecond, time.Millisecond
	m.restart()
	s.until("the network is swept", func() bool {
		found, err := engine.Networks(t.Context(), nil)
		return err == nil && len(found) == 2
	})
	found, err := engine.Networks(t.Context(), nil)
	if err != nil || found[0].Name != "theirs" || found[1].Name != "used" {
		t.Errorf("found %+v, %v", found, err)
	}
	if err := engine.RemoveNetwork(t.Context(), "used"); !errors.Is(err, node.ErrNetworkInUse) {
		t.Errorf("remove: %v", err)
	}
}

// On the real engine the ranks find each other by name, begin together, and the
// network is gone with them, though the agent of one of them was another one
// when they ended.
func TestDockerGangMeets(t *testing.T) {
	t.Parallel()
	s, m1 := dockerMachine(t)
	engine, err := docker.Open("", docker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	m2 := s.machineOn("m2", engine)
	id := s.submit(func(j *spec.Job) {
		j.Members, j.Checkpoint = 2, &spec.CheckpointPolicy{Path: "/checkpoint"}
	}, "descend", "/checkpoint", "40", "20ms", "10")
	attempt := s.placeGang(id, m1, m2)
	s.until("they are under way", func() bool { return slices.Contains(s.log(id, 1), "step 5") })
	m2.restart()
	s.gangEnds(id, attempt)
	if got := s.log(id, 1); !slices.Contains(got, prog.DescendResult(40, 2)) {
		t.Errorf("log is %q, want %q", got, prog.DescendResult(40, 2))
	}
	j := s.settle(id)
	// An agent that is behind stores only the newest of the waiting checkpoints.
	if j.Status != berth.Succeeded || len(j.Checkpoints) == 0 || j.Checkpoints[0].Step != 40 || j.Checkpoints[0].State != berth.CheckpointVerified {
		t.Errorf("the gang is %s, %+v, checkpoints %+v", j.Status, j.Reason, j.Checkpoints)
	}
	s.until("the network is gone", func() bool { return len(s.networks(engine, id)) == 0 })
}

// meeting are two machines on the host's own network, whose programs reach each
// other there.
func (s *site) meeting() (*fakeruntime.Fake, [2]*machine) {
	s.t.Helper()
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	s.t.Cleanup(engine.Shutdown)
	port, err := commands.Port()
	if err != nil {
		s.t.Fatal(err)
	}
	pair := s.pair(engine)
	for _, m := range pair {
		m.cfg.GangNetwork, m.cfg.Address, m.cfg.GangPorts = node.HostNetwork, "127.0.0.1", wire.PortRange{First: port, Last: port}
		m.restart()
	}
	return engine, pair
}

// A part of a checkpoint that turns out damaged takes the whole gang back to the
// step before: no rank goes on from another step than the rest.
func TestAGangGoesBackTogetherFromADamagedPart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	engine, m := s.meeting()
	id := s.submit(func(j *spec.Job) {
		j.Members, j.Checkpoint = 2, &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 3}
		j.Retry = spec.RetryPolicy{MaxAttempts: 5, Backoff: spec.Backoff{Initial: spec.Duration(time.Millisecond), Factor: 1, Max: spec.Duration(time.Millisecond)}}
	}, "descend", "/checkpoint", "100000", "5ms", "20")
	attempt := s.placeGang(id, m[0], m[1])
	s.until("two steps are whole", func() bool { return len(s.verified(id)) >= 2 })
	if err := engine.Signal(t.Context(), berth.ContainerName(id, 1, attempt), "SIGKILL"); err != nil {
		t.Fatal(err)
	}
	s.gangEnds(id, attempt)
	if j := s.settle(id); j.Status != berth.Retrying || j.Failures != 1 {
		t.Fatalf("the gang is %s with %d failures: %+v", j.Status, j.Failures, j.Reason)
	}
	steps := s.verified(id)
	parts, err := filepath.Glob(filepath.Join(s.blobDir, filepath.FromSlash(berth.CheckpointKey("default", id, 1, 1, steps[0])), "file-*"))
	if err != nil || len(parts) == 0 {
		t.Fatal(parts, err)
	}
	for _, p := range parts {
		if err := os.WriteFile(p, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.until("the backoff is over", func() bool { return s.job(id).EligibleAt == nil || time.Now().After(*s.job(id).EligibleAt) })
	attempt = s.placeGang(id, m[0], m[1])
	s.until("the others are stopped", func() bool {
		stopped, err := s.db.Attempts.Stop(t.Context(), id, attempt)
		return err == nil && stopped
	})
	s.db.Hub().Publish(db.TopicMachine, "m1", "m2")
	s.gangEnds(id, attempt)
	j := s.settle(id)
	if j.Status != berth.Retrying || j.Losses != 1 || j.Failures != 1 || !strings.Contains(j.Reason.Message, "falls back to an older checkpoint") {
		t.Fatalf("the gang is %s with %d losses: %+v", j.Status, j.Losses, j.Reason)
	}
	if len(s.log(id, attempt)) != 0 {
		t.Errorf("rank 0 began without the other: %q", s.log(id, attempt))
	}
	attempt = s.placeGang(id, m[0], m[1])
	together := fmt.Sprintf("together at step %d", steps[1])
	s.until("they go on", func() bool { return len(s.log(id, attempt)) > 0 })
	if got := s.log(id, attempt)[0]; got != together {
		t.Errorf("they go on %q, want %q", got, together)
	}
	s.cancel(id)
	s.gangEnds(id, attempt)
	if j := s.settle(id); j.Status != berth.Canceled {
		t.Errorf("the gang is %s", j.Status)
	}
}
