package agent_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// disk is a job with so much disk space.
func disk(limit spec.MiB) func(*spec.Job) {
	return func(j *spec.Job) { j.Resources.Disk = limit }
}

// goOn creates the file for which a job waits in its workspace.
func (m *machine) goOn(req wire.RunRequest) {
	m.s.t.Helper()
	if err := os.WriteFile(filepath.Join(m.scratch(req), "workspace", "go"), nil, 0o600); err != nil {
		m.s.t.Fatal(err)
	}
}

// endsForDisk checks that a job was ended for its disk space and has failed for that reason.
func (s *site) endsForDisk(id berth.JobID, w *waiter) {
	s.t.Helper()
	x := w.exit()
	if x.Cause != failure.CauseDiskLimit || x.Code != 137 ||
		!strings.Contains(x.Message, "more than its resources.disk of 2MiB") {
		s.t.Errorf("exit is %+v", x)
	}
	j := s.settle(id)
	if r := j.Reason; j.Status != berth.Failed || r == nil || r.Code != berth.ReasonDiskLimit || r.Rule != "disk_limit" {
		s.t.Errorf("job is %s for %+v", j.Status, r)
	}
}

func TestF31AJobBeyondItsDiskIsEndedAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	modest := s.submit(disk(16), "do", "fill /workspace/a 1", "await-file /workspace/go")
	req, modestly := m.run(modest)
	s.until("the modest job has written", func() bool { return slices.Contains(s.log(modest, 1), "filled 1 MiB") })
	greedy := s.submit(disk(2), "do", "fill /workspace/a 4", "ignore-term")
	_, w := m.runOn(1, greedy)
	s.endsForDisk(greedy, w)
	m.goOn(req)
	if x := modestly.exit(); x.Code != 0 || x.Cause != failure.CauseExited {
		t.Errorf("the modest job ended as %+v", x)
	}
}

// The writable layer counts, also for an agent process that finds the container running.
func TestF31AnAdoptedJobBeyondItsDiskIsEnded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(disk(2), "ignore-term")
	req, w := m.run(id)
	s.until("the job runs", func() bool { return slices.Contains(s.log(id, 1), "ready") })
	m.restart()
	m.runtime.SetLayer(berth.ContainerName(id, 0, 1), 2<<20+1, 1)
	s.endsForDisk(id, w)
	m.cleared(req)
}

// A job that may use a long grace to save its work must not fill the disk meanwhile. It was
// canceled first, so that it does not fail.
func TestF31AJobThatStopsIsHeldToItsDisk(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(func(j *spec.Job) { disk(2)(j); j.StopGrace = ptr(spec.Duration(time.Hour)) }, "ignore-term")
	_, w := m.run(id)
	s.until("the job runs", func() bool { return slices.Contains(s.log(id, 1), "ready") })
	s.cancel(id)
	s.until("the job ignores SIGTERM", func() bool { return slices.Contains(s.log(id, 1), "ignored SIGTERM") })
	m.runtime.SetLayer(berth.ContainerName(id, 0, 1), 3<<20, 1)
	if x := w.exit(); x.Cause != failure.CauseOrdered || x.Code != 137 {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Canceled {
		t.Errorf("job is %s", j.Status)
	}
}

// Files in the image's own folders, and files without a name, are disk space of the job, too.
func TestF31DockerJobsBeyondTheirDiskAreEnded(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	for _, command := range []string{"fill /filled 4", "fill-unnamed /workspace/filled 4"} {
		id := s.submit(disk(2), "do", command, "ignore-term")
		_, w := m.run(id)
		s.endsForDisk(id, w)
	}
	// The memory of /dev/shm is no disk.
	id := s.submit(disk(2), "do", "fill /dev/shm/filled 8", "await-file /workspace/go")
	req, w := m.run(id)
	s.until("the job has written", func() bool { return slices.Contains(s.log(id, 1), "filled 8 MiB") })
	m.goOn(req)
	if x := w.exit(); x.Code != 0 || x.Cause != failure.CauseExited {
		t.Errorf("exit is %+v", x)
	}
	s.settle(id)
}
