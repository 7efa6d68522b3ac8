package agent_test

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/activities/node/fakeruntime"
	"berth/api/client"
	"berth/failure"
	"berth/spec"
)

// heldJob is a job that writes files and fails, with a checkpoint folder and code.
func (s *site) heldJob() berth.JobID {
	s.t.Helper()
	return s.submit(func(j *spec.Job) {
		j.HoldOnFailure = spec.Duration(30 * time.Minute)
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint"}
	}, "do", "write-file /workspace/a.txt found", "write-file /checkpoint/b.txt too", "exit 3")
}

// debugOf returns the debug job that holds a job's failed attempt. The test program stands in for sleep.
func (s *site) debugOf(id berth.JobID) (debug berth.JobID) {
	s.t.Helper()
	pool := s.db.Pool()
	if err := pool.QueryRow(s.t.Context(), `SELECT debug::text FROM holds WHERE job = $1`, id).Scan(&debug); err != nil {
		s.t.Fatal(err)
	}
	if _, err := pool.Exec(s.t.Context(), `UPDATE job_specs SET spec = spec - 'entrypoint' || '{"command": ["sleep", "1h"]}' WHERE job = $1`,
		debug); err != nil {
		s.t.Fatal(err)
	}
	return debug
}

// content returns the only file that a session copies out of a job.
func (s *site) content(c *client.Client, id berth.JobID, path string) string {
	s.t.Helper()
	out, err := copies(s.t, c, id, spec.NewSession{Copy: spec.CopyOut, Path: path}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r := tar.NewReader(strings.NewReader(out))
	if _, err := r.Next(); err != nil {
		s.t.Fatalf("%s: %v", path, err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// TestADebugJobHasTheFilesOfTheFailedMember checks the files of a hold, through a restart of the agent, and that nothing
// of both jobs stays on the machine.
func TestADebugJobHasTheFilesOfTheFailedMember(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	c := s.user()
	id := s.heldJob()
	failed, w := m.run(id)
	if x := w.exit(); x.Code != 3 {
		t.Fatalf("exit %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Failed {
		t.Fatalf("the job is %s", j.Status)
	}
	debug := s.debugOf(id)
	req, held := m.run(debug)
	m.running(req)
	m.cleared(failed)
	s.until("the debug job runs", func() bool { return s.job(debug).Status == berth.Running })
	if got := s.content(c, id, "/workspace/a.txt"); got != "found" {
		t.Errorf("the workspace has %q", got)
	}
	m.restart()
	s.until("a session through the next agent process", func() bool {
		_, err := copies(t, c, id, spec.NewSession{Copy: spec.CopyOut, Path: "/checkpoint/b.txt"}, nil)
		return err == nil
	})
	if got := s.content(c, id, "/checkpoint/b.txt"); got != "too" {
		t.Errorf("the folder of checkpoints has %q", got)
	}
	s.cancel(debug)
	if x := held.exit(); x.Cause != failure.CauseOrdered {
		t.Errorf("the debug job ended by %+v", x)
	}
	if j := s.settle(debug); j.Status != berth.Canceled {
		t.Errorf("the debug job is %s", j.Status)
	}
	m.cleared(req)
	if steps := s.job(debug).Checkpoints; len(steps) != 0 {
		t.Errorf("the debug job has stored %d checkpoints", len(steps))
	}
	left, err := os.ReadDir(filepath.Join(m.cfg.StateDir, "kept"))
	if err != nil || len(left) != 0 {
		t.Errorf("%d kept folders are left, %v", len(left), err)
	}
}

// TestAFailedMemberIsKeptByTheNextAgent checks that an agent that was away when the job was settled keeps the files,
// although the registration condemns the container.
func TestAFailedMemberIsKeptByTheNextAgent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.heldJob()
	_, w := m.run(id)
	w.exit()
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	s.settle(id)
	debug := s.debugOf(id)
	m.start()
	m.until("machine is ready", func() bool { return s.machineState(m.id) == berth.MachineReady })
	req, _ := m.run(debug)
	m.running(req)
	text, err := os.ReadFile(filepath.Join(m.scratch(req), "workspace", "a.txt"))
	if err != nil || string(text) != "found" {
		t.Errorf("the debug job has %q, %v", text, err)
	}
}

// TestADebugJobWithoutFilesFails checks that a hold never shows an empty folder.
func TestADebugJobWithoutFilesFails(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.cfg.Timing.KeptPatience = 300 * time.Millisecond
	m.restart()
	id := s.heldJob()
	failed, w := m.run(id)
	w.exit()
	s.settle(id)
	debug := s.debugOf(id)
	m.cleared(failed)
	if err := os.RemoveAll(filepath.Join(m.cfg.StateDir, "kept")); err != nil {
		t.Fatal(err)
	}
	_, held := m.run(debug)
	if x := held.exit(); x.Cause != failure.CauseInputInvalid || !strings.Contains(x.Message, "no longer on this machine") {
		t.Errorf("the debug job ended by %+v", x)
	}
	if j := s.settle(debug); j.Status != berth.Failed {
		t.Errorf("the debug job is %s", j.Status)
	}
}

// TestADebugJobWaitsForItsFilesWithinLimits checks that a removal of the failed member that hangs does not keep the
// machine's capacity: the debug job obeys a stop, and does not wait without an end.
func TestADebugJobWaitsForItsFilesWithinLimits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit  time.Duration
		cancel bool
		want   failure.ExitCause
	}{
		"a stop":    {0, true, failure.CauseNotStarted},
		"the limit": {time.Second, false, failure.CauseEngine},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			m := s.machine("m1")
			m.cfg.Timing.KeptLimit = c.limit
			m.restart()
			id := s.heldJob()
			_, w := m.run(id)
			w.exit()
			hang := make(chan struct{})
			defer close(hang)
			m.runtime.Intercept(func(c fakeruntime.Call) error {
				if c.Method == "Remove" {
					<-hang
				}
				return nil
			})
			s.settle(id)
			debug := s.debugOf(id)
			req, held := m.run(debug)
			if c.cancel {
				s.until("the debug job is claimed", func() bool {
					state, _ := s.allocation(req)
					return state == berth.AllocActive
				})
				s.cancel(debug)
			}
			if x := held.exit(); x.Cause != c.want {
				t.Errorf("the debug job ended by %+v", x)
			}
		})
	}
}
