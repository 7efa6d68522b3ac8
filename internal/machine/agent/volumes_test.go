package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth"
	"berth/activities/node"
	"berth/db"
	"berth/failure"
	"berth/internal/lib/archive"
	"berth/internal/machine/agent"
	"berth/internal/machine/fetch"
	"berth/spec"
	"berth/wire"
)

// shares has a machine share a folder as /datasets from now on.
func (m *machine) shares() (dir string) {
	m.s.t.Helper()
	dir = m.s.t.TempDir()
	m.cfg.Volumes = fetch.Volumes{"datasets": dir}
	m.restart()
	m.until("the server knows of it", func() bool {
		found, err := m.s.db.Machines.Get(m.s.t.Context(), "", m.id)
		return err == nil && found.Labels["berth.volume.datasets"] == "yes"
	})
	return dir
}

func TestFoldersOfAMachineAreInputs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	dir := m.shares()
	write := func(content string) {
		if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := func(j *spec.Job) {
		j.Inputs = []spec.Input{{From: "file:///datasets/", To: "/data"}, {From: "file:///datasets/a.txt", To: "/more/b.txt"}}
	}
	write("first")
	for _, how := range []string{"fetched", "reused cached "} {
		id := s.submit(in, "do", "read-file /data/a.txt", "read-file /more/b.txt")
		m.wantLog(id, "first", "first")
		if !s.hasEvent(id, wire.EventFetched, "inputs[0] ") || !s.hasEvent(id, wire.EventFetched, "inputs[1] ") || !s.hasEvent(id, wire.EventFetched, how) {
			t.Errorf("events %+v", s.events(id))
		}
	}
	write("other")
	id := s.submit(in, "read-file", "/data/a.txt")
	m.wantLog(id, "other")
	if s.hasEvent(id, wire.EventFetched, "cached") {
		t.Errorf("events %+v", s.events(id))
	}
	id = s.submit(in, "write-file", "/data/a.txt", "mine")
	_, w := m.run(id)
	if x := w.exit(); x.Code == 0 {
		t.Error("a container writes to what others share")
	}
	s.settle(id)
	if text, err := os.ReadFile(filepath.Join(dir, "a.txt")); err != nil || string(text) != "other" {
		t.Errorf("the folder has %q, %v", text, err)
	}
}

// The machine reads only folders that its own operator shares and that the server names at the
// claim, regardless of the job's submitter.
func TestAFolderThatMayNotBeReadIsNot(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	dir := m.shares()
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte(canary), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	ends := func(id berth.JobID, cause failure.ExitCause, says string) {
		t.Helper()
		req, w := m.run(id)
		if x := w.exit(); x.Cause != cause || x.Started() || !strings.Contains(x.Message, says) || strings.Contains(x.Message, dir) {
			t.Errorf("exit is %+v, want %s with %q", x, cause, says)
		}
		s.settle(id)
		m.cleared(req)
	}
	job, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "others", Actor: "user:test", Spec: spec.Job{
		Name: "test", Image: s.image, Command: []string{"read-file", "/data/a.txt"}, Inputs: []spec.Input{{From: "file:///datasets/", To: "/data"}},
	}.WithDefaults()})
	if err != nil {
		t.Fatal(err)
	}
	ends(job.ID, failure.CauseInputInvalid, "inputs[0]: the operator of this cluster does not let jobs of tenant others read the folder /datasets any more")
	ends(s.submit(from("file:///datasets/out"), "read-file", "/data"), failure.CauseInputInvalid, "inputs[0]: file:///datasets/out leads out of the folder /datasets by a link")

	m.cfg.Volumes = nil
	m.restart()
	retried := s.submit(from("file:///datasets/"), "read-file", "/data/a.txt")
	req, w := m.run(retried)
	if x := w.exit(); x.Cause != failure.CauseInputUnavailable || !strings.Contains(x.Message, "this machine does not share the folder /datasets") {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(retried); j.Status != berth.Retrying {
		t.Errorf("job is %s, %+v: another machine may share it", j.Status, j.Reason)
	}
	m.cleared(req)
}

func TestAnAgentSharesNoFolderOfTheSystem(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	for says, edit := range map[string]func(*agent.Config){
		"/x: /etc/ssl holds, or lies in, /etc": func(c *agent.Config) { c.Volumes = fetch.Volumes{"x": "/etc/ssl"} },
		"jobs read no folder of the system or of the agent": func(c *agent.Config) {
			c.Volumes = fetch.Volumes{"x": filepath.Join(c.StateDir, "cache")}
		},
		"label berth.volume.x: the agent sets it": func(c *agent.Config) { c.Labels = map[string]string{"berth.volume.x": "yes"} },
	} {
		cfg := m.cfg
		edit(&cfg)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := agent.Run(ctx, cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("it starts: %v, want %q", err, says)
		}
		cancel()
	}
}

// Jobs that run on a machine need its agent, even while a file server is unreachable.
func TestAnAgentStartsWithoutAFolderThatIsAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	dir := m.shares()
	id := s.submit(nil, "trap-term", "5")
	req, w := m.run(id)
	m.running(req)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	engine := t.TempDir()
	m.cfg.Volumes = fetch.Volumes{"datasets": dir, "engine": engine}
	m.cfg.Runtime = movedEngine{m.cfg.Runtime, engine}
	m.restart()
	m.until("the server is told of neither folder", func() bool {
		found, err := s.db.Machines.Get(t.Context(), "", m.id)
		return err == nil && found.Labels["berth.volume.datasets"] == "" && found.Labels["berth.volume.engine"] == ""
	})
	for _, says := range []string{"no such file or directory", "holds, or lies in, " + engine} {
		if !strings.Contains(m.logs.text(), says) {
			t.Errorf("the log does not say %s:\n%s", says, m.logs.text())
		}
	}
	m.endsWhenReady(req)
	if x := w.exit(); x.Code != 5 || x.Cause != failure.CauseExited {
		t.Errorf("exit is %+v", x)
	}
}

// movedEngine keeps its data in an unusual folder.
type movedEngine struct {
	node.Runtime
	root string
}

func (m movedEngine) Info(ctx context.Context) (node.RuntimeInfo, error) {
	info, err := m.Runtime.Info(ctx)
	info.DataRoot = m.root
	return info, err
}

func TestAnAgentKeepsTheLimitsOfItsOperator(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.cfg.InputLimits = archive.Limits{Bytes: 3, Files: 10}
	dir := m.shares()
	for name, c := range map[string]struct {
		content string
		cause   failure.ExitCause
	}{"within": {"abc", failure.CauseExited}, "beyond": {"abcd", failure.CauseInputInvalid}} {
		if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		id := s.submit(from("file:///datasets/"), "read-file", "/data/a.txt")
		req, w := m.run(id)
		if x := w.exit(); x.Cause != c.cause || c.cause != failure.CauseExited && !strings.Contains(x.Message, "the limits of this machine are 10 objects and 3 bytes") {
			t.Errorf("%s: exit is %+v", name, x)
		}
		s.settle(id)
		m.cleared(req)
	}
}
