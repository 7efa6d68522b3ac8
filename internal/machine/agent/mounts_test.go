package agent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/activities/node/fakeruntime"
	"berth/db"
	"berth/failure"
	"berth/internal/machine/mounts"
	"berth/spec"
	"berth/wire"
)

// sharesMounts is shares on a machine that can mount the folder. Other machines skip the test.
func (m *machine) sharesMounts() (dir string) {
	m.s.t.Helper()
	if err := mounts.New(filepath.Join(m.s.t.TempDir(), "probe")).Check(); err != nil {
		m.s.t.Skipf("this process cannot mount: %v", err)
	}
	dir = m.shares()
	found, err := m.s.db.Machines.Get(m.s.t.Context(), "", m.id)
	if err != nil || found.Labels["berth.mount.datasets"] != "yes" {
		m.s.t.Fatalf("labels are %v, %v", found.Labels, err)
	}
	m.s.t.Cleanup(func() { // of a failed test
		_ = m.stop()
		m.unmount()
	})
	return dir
}

// unmount removes all mounts in the agent's folder.
func (m *machine) unmount() {
	table := mounts.New(filepath.Join(m.cfg.StateDir, "mounts"))
	names, err := table.Names()
	for _, name := range names {
		err = errors.Join(err, table.Remove(context.Background(), name)) // the test's context is over
	}
	if err != nil {
		m.s.t.Error(err)
	}
}

// mounted lists the kernel's mounts in the agent's folder.
func (m *machine) mounted() (list []string) {
	m.s.t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		m.s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, m.cfg.StateDir) {
			list = append(list, at)
		}
	}
	return list
}

// wantUnmounted fails the test if a mount is left, or if the shared folder lacks its file.
func (m *machine) wantUnmounted(dir string) {
	m.s.t.Helper()
	if left := m.mounted(); len(left) > 0 {
		m.s.t.Errorf("mounts are left: %q", left)
	}
	if _, err := os.Stat(filepath.Join(dir, "a.txt")); err != nil {
		m.s.t.Errorf("the shared file: %v", err)
	}
}

// share writes a file of the shared folder.
func (s *site) share(dir, content string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte(content), 0o666); err != nil {
		s.t.Fatal(err)
	}
}

// mounting makes a job mount the shared folder.
func mounting(j *spec.Job) {
	j.Inputs = append(j.Inputs, spec.Input{From: "file:///datasets/", To: "/data", Mode: spec.InputMount})
}

func TestAMountedFolderIsReadInPlaceAndNeverWritten(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	dir := m.sharesMounts()
	s.share(dir, "first")
	id := s.submit(mounting, "do", "read-file /data/a.txt", "await-file /data/later", "read-file /data/a.txt", "write-file /data/a.txt mine")
	req, w := m.run(id)
	s.until("it reads the folder", func() bool { return slices.Contains(s.log(id, 1), "first") })
	if _, err := os.Stat(filepath.Join(m.scratch(req), "input-0")); !os.IsNotExist(err) {
		t.Errorf("a copy was made: %v", err)
	}
	s.share(dir, "second")
	if err := os.WriteFile(filepath.Join(dir, "later"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if x := w.exit(); x.Code == 0 {
		t.Error("a container writes to a shared folder")
	}
	if got := s.log(id, 1); len(got) < 2 || got[1] != "second" {
		t.Errorf("it prints %q", got)
	}
	if !s.hasEvent(id, wire.EventFetched, "mounted inputs[0] read-only, unversioned") {
		t.Errorf("events %+v", s.events(id))
	}
	s.settle(id)
	m.cleared(req)
	m.wantUnmounted(dir)
	if text, err := os.ReadFile(filepath.Join(dir, "a.txt")); err != nil || string(text) != "second" {
		t.Errorf("the folder has %q, %v", text, err)
	}
}

// Attempts that read other states of a mounted folder are not compared: its state is unknown.
func TestAMountHasNoVersionThatCouldChange(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	dir := m.sharesMounts()
	s.share(dir, "first")
	id := s.submit(func(j *spec.Job) { mounting(j); j.Retry.MaxAttempts = 2 }, "do", "read-file /data/a.txt", "exit 1")
	for _, content := range []string{"first", "second"} {
		s.share(dir, content)
		if content == "second" {
			s.eligible(id)
		}
		req, w := m.run(id)
		w.exit()
		s.settle(id)
		m.cleared(req)
	}
	if s.hasEvent(id, wire.EventWarning, "has changed since") {
		t.Errorf("events %+v", s.events(id))
	}
	var inputs string
	if err := s.db.Pool().QueryRow(t.Context(), `SELECT inputs ->> 'inputs[0]' FROM attempts WHERE job = $1 AND attempt = 2`, string(id)).Scan(&inputs); err != nil || inputs != "unversioned" {
		t.Errorf("the attempt has %q, %v", inputs, err)
	}
}

// The permission is the one of the claim, and a link out of the folder is refused, as for copies.
func TestAFolderThatMayNotBeReadIsNotMounted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	dir := m.sharesMounts()
	s.share(dir, canary)
	if err := os.Symlink("/etc", filepath.Join(dir, "out")); err != nil {
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
		m.wantUnmounted(dir)
	}
	jobSpec := spec.Job{Name: "test", Image: s.image, Command: []string{"read-file", "/data/a.txt"}}
	mounting(&jobSpec)
	job, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "others", Actor: "user:test", Spec: jobSpec.WithDefaults()})
	if err != nil {
		t.Fatal(err)
	}
	ends(job.ID, failure.CauseInputInvalid, "inputs[0]: the operator of this cluster does not let jobs of tenant others read the folder /datasets any more")
	at := func(from string) func(*spec.Job) {
		return func(j *spec.Job) { mounting(j); j.Inputs[0].From = from }
	}
	ends(s.submit(at("file:///datasets/out/"), "list", "/data"), failure.CauseInputInvalid, "inputs[0]: file:///datasets/out leads out of the folder /datasets by a link")
	ends(s.submit(at("file:///datasets/a.txt/"), "list", "/data"), failure.CauseInputInvalid, "file:///datasets/a.txt is a file")
	ends(s.submit(at("file:///datasets/none/"), "list", "/data"), failure.CauseInputInvalid, "no such file or folder")
	if err := errors.Join(os.Rename(filepath.Join(dir, "a.txt"), filepath.Join(t.TempDir(), "a.txt")), os.Remove(filepath.Join(dir, "out"))); err != nil {
		t.Fatal(err)
	}
	req, w := m.run(s.submit(mounting, "list", "/data"))
	if x := w.exit(); x.Cause != failure.CauseInputUnavailable || !strings.Contains(x.Message, "is empty on this machine, as if it were not mounted") {
		t.Errorf("exit is %+v", x)
	}
	s.settle(req.Job)
	m.cleared(req)
}

// An agent that is killed leaves its mounts to the next process: to be used, replaced or removed.
func TestNoMountOutlivesItsJobThroughTheLossOfAnAgent(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"Create", "Start", "Remove"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			m := s.machine("m1")
			dir := m.sharesMounts()
			s.share(dir, "data")
			reached, free := make(chan struct{}, 10), make(chan struct{})
			m.runtime.Intercept(func(c fakeruntime.Call) error {
				if c.Method != method {
					return nil
				}
				reached <- struct{}{}
				<-free
				return errors.New("the call was cut off")
			})
			id := s.submit(mounting, "read-file", "/data/a.txt")
			req := m.place(id)
			if method == "Remove" {
				m.wait(req).exit()
				s.settle(id)
			}
			<-reached
			if len(m.mounted()) == 0 {
				t.Error("nothing is mounted")
			}
			m.cancel()
			m.until("the agent has released the member", func() bool {
				return strings.Contains(m.logs.text(), "agent stopping, containers keep running")
			})
			close(free)
			if err := m.stop(); err != nil {
				t.Fatal(err)
			}
			m.runtime.Intercept(nil)
			m.start()
			if method != "Remove" {
				s.until("rank is sealed", func() bool {
					v, err := s.db.Jobs.Load(t.Context(), id)
					return err == nil && len(v.Slots) == 1 && v.Slots[0].Sealed
				})
				if j := s.settle(id); j.Status != berth.Succeeded {
					t.Errorf("job is %s, %+v", j.Status, j.Reason)
				}
			}
			m.cleared(req)
			m.wantUnmounted(dir)
		})
	}
}

// Mounts of unknown members go at the first registration of a process.
func TestMountsOfUnknownMembersAreSwept(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	dir := m.sharesMounts()
	s.share(dir, "data")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := mounts.New(filepath.Join(m.cfg.StateDir, "mounts")).Add("berth-unknown-0-1", 0, f); err != nil {
		t.Fatal(err)
	}
	m.start()
	m.until("the mounts are removed", func() bool { return len(m.mounted()) == 0 })
	m.wantUnmounted(dir)
}
