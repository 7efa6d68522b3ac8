package agent_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/activities/node"
	"berth/activities/node/runtimetest"
	"berth/activities/node/runtimetest/prog"
	"berth/failure"
	"berth/internal/machine/docker"
	"berth/spec"
	"berth/wire"
)

// dockerMachine is a machine over the host's own Docker Engine.
func dockerMachine(t *testing.T) (*site, *machine) {
	t.Helper()
	s, engine := dockerSite(t)
	return s, s.machineOn("m1", engine)
}

// dockerSite is a control plane, and the host's own Docker Engine for machines. A cleanup removes the containers
// that a failed test leaves in the engine.
func dockerSite(t *testing.T) (*site, *docker.Engine) {
	t.Helper()
	s := newSite(t)
	s.image = runtimetest.Image(t, "")
	engine, err := docker.Open("", docker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := s.db.Cluster.ID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer engine.Close()
		ctx := context.Background() // the test's own is over
		all, err := engine.List(ctx, map[string]string{berth.LabelCluster: cluster})
		if err != nil {
			t.Error(err)
		}
		for _, c := range all {
			if err := engine.Remove(ctx, c.Name); err != nil {
				t.Error(err)
			}
		}
		networks, err := engine.Networks(ctx, map[string]string{berth.LabelCluster: cluster})
		if err != nil {
			t.Error(err)
		}
		for _, n := range networks {
			if err := engine.RemoveNetwork(ctx, n.Name); err != nil {
				t.Error(err)
			}
		}
	})
	return s, engine
}

func TestDockerRunsAShortJob(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	id := s.submit(nil, "do", "echo one two", "write-file /workspace/x hello", "read-file /workspace/x", "env BERTH_MEMBER NVIDIA_VISIBLE_DEVICES", "exit 3")
	req, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseExited || x.Code != 3 {
		t.Errorf("exit is %+v", x)
	}
	want := []string{"one", "two", "hello", "BERTH_MEMBER=0", "NVIDIA_VISIBLE_DEVICES=void"}
	if diff := cmp.Diff(want, s.log(id, 1)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	s.settle(id)
	m.cleared(req)
}

func TestDockerContainersOutliveTheirAgent(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	id := s.submit(nil, "do", "lines 300 2ms", "trap-term 5") // it runs until it is stopped
	req, _ := m.run(id)
	s.until("some of the log is stored", func() bool { return len(s.log(id, 1)) > 20 })
	before, err := m.container(req)
	if err != nil {
		t.Fatal(err)
	}
	m.restart()
	if after, err := m.container(req); err != nil || after.ID != before.ID {
		t.Errorf("container was %+v and is %+v, %v", before, after, err)
	}
	w := m.wait(req)
	m.endsWhenReady(req)
	if x := w.exit(); x.Code != 5 || x.Cause != failure.CauseEngine { // the cause of a container that somebody else ended
		t.Errorf("exit is %+v", x)
	}
	s.wantLines(id, 300)
	s.settle(id)
	m.cleared(req)
}

func TestDockerTrainingIsCanceledAndResumed(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	id := s.submit(checkpointed(2), "train", "/checkpoint", "100000", "40ms", "10")
	req, w := m.run(id)
	s.until("two checkpoints are stored", func() bool { return len(s.verified(id)) >= 2 })
	if err := m.cfg.Runtime.Signal(t.Context(), berth.ContainerName(id, 0, 1), "SIGKILL"); err != nil {
		t.Fatal(err)
	}
	if x := w.exit(); x.Code != 137 || x.Cause != failure.CauseEngine || !strings.Contains(x.Message, "outside Berth") {
		t.Errorf("exit is %+v", x)
	}
	s.settle(id)
	m.cleared(req)
	newest := s.verified(id)[0]
	steps := int(newest) + 50
	s.trainsFor(id, steps)
	_, w = m.run(id)
	if x := w.exit(); x.Code != 0 || !x.Complete {
		t.Errorf("exit is %+v", x)
	}
	log := s.log(id, 2)
	if log[0] != fmt.Sprintf("restored step %d", newest) || log[len(log)-1] != prog.TrainResult(steps) {
		t.Errorf("the second attempt begins with %q and ends with %q", log[0], log[len(log)-1])
	}
	s.settle(id)

	deaf := s.submit(func(j *spec.Job) { j.StopGrace = ptr(spec.Duration(500 * time.Millisecond)) }, "ignore-term")
	req, w = m.run(deaf)
	s.until("the program listens", func() bool { return slices.Contains(s.log(deaf, 1), "ready") })
	s.cancel(deaf)
	if x := w.exit(); x.Cause != failure.CauseOrdered || x.Code != 137 {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(deaf); j.Status != berth.Canceled {
		t.Errorf("job is %s", j.Status)
	}
	m.cleared(req)
}

func TestF34DockerKeepsMemoryLimits(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	id := s.submit(nil, "eat-memory", "200")
	_, w := m.run(id)
	if x := w.exit(); !x.OOMKilled || x.Code != 137 {
		t.Errorf("exit is %+v", x)
	}
	s.settle(id)
	if c, err := m.container(wire.RunRequest{Job: id, Attempt: 1}); err == nil && c.State == node.ContainerRunning {
		t.Errorf("container runs on: %+v", c)
	}
}
