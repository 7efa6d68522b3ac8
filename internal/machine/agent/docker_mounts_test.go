package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/failure"
	"berth/internal/lib/fusetest"
	"berth/internal/machine/fetch"
	"berth/spec"
	"berth/wire"
)

// links prepares a shared folder with the links that a tenant with write access to it can make.
func links(t *testing.T, dir, outside string) {
	t.Helper()
	for name, target := range map[string]string{"absolute": outside, "relative": "../../../../../../.." + outside, "host": "/etc/hostname"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// A container sees the opened folder, even if its path leads elsewhere afterwards, and
// links in it lead to places in the container.
func TestDockerMountsTheFolderThatWasChecked(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	dir := m.sharesMounts()
	outside := t.TempDir()
	set := filepath.Join(dir, "set")
	if err := os.Mkdir(set, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{set, outside} {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.share(set, "data")
	links(t, set, outside)
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte(canary), 0o644); err != nil {
		t.Fatal(err)
	}
	id := s.submit(func(j *spec.Job) { mounting(j); j.Inputs[0].From = "file:///datasets/set/" }, "do",
		"read-file /data/a.txt", "await-file /workspace/go", "read-file /data/a.txt", "list /data /data/absolute", "list /data/relative",
		"read-file /data/absolute/secret", "exit 0")
	req, w := m.run(id)
	s.until("it reads the folder", func() bool { return slices.Contains(s.log(id, 1), "data") })
	// While it runs, the folder's name leads to another one.
	if err := errors.Join(os.Rename(set, set+"-was"), os.Symlink(outside, set)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.scratch(req), "workspace", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if x := w.exit(); x.Code == 0 || x.Cause != failure.CauseExited {
		t.Errorf("exit is %+v", x)
	}
	log := strings.Join(s.log(id, 1), "\n")
	if strings.Contains(log, canary) || strings.Contains(log, "secret\n") || strings.Count(log, "data") < 2 {
		t.Errorf("it prints %s", log)
	}
	s.settle(id)
	m.cleared(req)

	id = s.submit(func(j *spec.Job) { mounting(j); j.Inputs[0].From = "file:///datasets/set-was/" }, "do",
		"write-file /data/a.txt mine")
	req, w = m.run(id)
	if x := w.exit(); x.Code == 0 {
		t.Error("a container writes to a shared folder")
	}
	if log := strings.Join(s.log(id, 1), "\n"); !strings.Contains(log, "read-only file system") {
		t.Errorf("it prints %s", log)
	}
	s.settle(id)
	m.cleared(req)
	if left := m.mounted(); len(left) > 0 {
		t.Errorf("mounts are left: %q", left)
	}
	if text, err := os.ReadFile(filepath.Join(set+"-was", "a.txt")); err != nil || string(text) != "data" {
		t.Errorf("the shared file has %q, %v", text, err)
	}
}

// A file server dies under a mount: its readers are in a sleep that no signal ends. The job is
// canceled all the same, its capacity stays taken, the machine gets no new work, and all other work
// goes on. Once the server answers, everything recovers by itself.
func TestDockerADeadFileServerHarmsNoOtherJob(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	probe := t.TempDir()
	server := fusetest.Mount(t, probe)
	_ = m.sharesMounts() // or skip
	m.cfg.Volumes = fetch.Volumes{"datasets": probe}
	m.cfg.Timing.DeafAfter, m.cfg.Timing.EngineProbe = 100*time.Millisecond, 20*time.Millisecond
	m.restart()
	t.Cleanup(server.Revive) // before the agent stops
	other := s.submit(nil, "do", "lines 3 1ms", "trap-term 5")
	otherReq, otherEnd := m.runOn(1, other)
	id := s.submit(func(j *spec.Job) {
		mounting(j)
		j.Inputs[0].From, j.StopGrace = "file:///datasets/set/", ptr(spec.Duration(0))
	}, "do", "read-file /data/a.txt", "await-file /workspace/go", "read-file /data/a.txt")
	req, _ := m.run(id)
	s.until("it reads the folder", func() bool { return slices.Contains(s.log(id, 1), strings.TrimSpace(fusetest.Content)) })
	server.Die()
	if err := os.WriteFile(filepath.Join(m.scratch(req), "workspace", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.until("it waits for the server", func() bool { return server.Asked() > 0 })
	s.cancel(id)
	s.until("the member is given up", func() bool { return s.hasEvent(id, wire.EventOrphaned, "does not end on SIGKILL") })
	if j := s.settle(id); j.Status != berth.Canceled {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	s.until("the machine gets no new work", func() bool { return s.engineSilent("m1") })
	if state, held := s.allocation(req); state != berth.AllocOrphaned || held != 1000 {
		t.Errorf("the allocation is %s and the machine has %d milli-CPU of it in use", state, held)
	}

	m.endsWhenReady(otherReq)
	if x := otherEnd.exit(); x.Code != 5 {
		t.Errorf("the other job ended with %+v", x)
	}
	s.settle(other)
	m.cleared(otherReq)
	m.restart()
	s.until("the next process reports it as well", func() bool { return s.engineSilent("m1") })

	server.Revive()
	m.cleared(req)
	s.until("the machine takes work again", func() bool { return !s.engineSilent("m1") })
	if left := m.mounted(); len(left) > 0 {
		t.Errorf("mounts are left: %q", left)
	}
	after := s.submit(func(j *spec.Job) { mounting(j); j.Inputs[0].From = "file:///datasets/set/" }, "read-file", "/data/a.txt")
	m.wantLog(after, strings.TrimSpace(fusetest.Content))
}

// allocation returns the state of a member and the milli-CPU in use on its machine.
func (s *site) allocation(req wire.RunRequest) (state berth.AllocationState, used int64) {
	s.t.Helper()
	if err := s.db.Pool().QueryRow(s.t.Context(), `
		SELECT a.state, (SELECT sum(o.cpu_m) FROM allocations o WHERE o.machine_id = m.id AND counts(o.state) AND o.id = a.id)
		FROM allocations a
		JOIN machines m ON m.id = a.machine_id
		WHERE a.id = $1`, int64(req.Alloc)).Scan(&state, &used); err != nil {
		s.t.Fatal(err)
	}
	return state, used
}
