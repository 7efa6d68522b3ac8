package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"berth"
	"berth/failure"
	"berth/spec"
)

// owners checks that every file and folder below dir belongs to the user.
func owners(t *testing.T, dir string, u spec.UserID) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if s := info.Sys().(*syscall.Stat_t); int(s.Uid) != u.UID || int(s.Gid) != u.GID {
			t.Errorf("%s belongs to %d:%d, want %s", path, s.Uid, s.Gid, u)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A container finds its folders, its code and its secrets as files of its own user, and a name and a home.
func TestContainersRunAsTheirTenant(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.users = spec.UserTenant
	s.serves()
	m := s.machine("m1")
	s.secret("TOKEN", canary)
	a := s.upload(map[string]string{"main.txt": "hello", "lib/x.txt": "deep"})
	id := s.submit(func(j *spec.Job) {
		j.Workdir, j.Secrets, j.SecretsAs = string(a), []string{"TOKEN"}, spec.SecretsFile
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/ckpt"}
	}, "do", "id", "env HOME", "read-file /etc/passwd", "read-file /etc/group", "digest TOKEN /run/secrets/TOKEN",
		"await-file /workspace/go")
	req, w := m.run(id)
	s.until("it waits", func() bool { return len(s.log(id, 1)) >= 8 })
	u := s.usersOf("default").User()
	want := []string{
		u.String(), "HOME=/workspace/.berth/home", "root:x:0:0:root:/root:/bin/sh",
		fmt.Sprintf("berth:x:%d:%d:job of Berth:/workspace/.berth/home:/bin/sh", u.UID, u.GID),
		"root:x:0:", fmt.Sprintf("berth:x:%d:", u.GID),
	}
	if log := s.log(id, 1); !slices.Equal(log[:6], want) {
		t.Errorf("it prints %q, want %q", log[:6], want)
	}
	owners(t, filepath.Join(m.scratch(req), "workspace"), u)
	owners(t, filepath.Join(m.scratch(req), "checkpoint"), u)
	if info, err := os.Stat(filepath.Join(m.scratch(req), "workspace", ".berth", "home")); err != nil ||
		info.Mode().Perm() != 0o700 {
		t.Errorf("the home folder is %v, %v", info, err)
	}
	if err := os.WriteFile(filepath.Join(m.scratch(req), "workspace", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if x := w.exit(); x.Code != 0 || x.User != u.String() {
		t.Errorf("exit is %+v", x)
	}
	s.settle(id)
	m.cleared(req)
}

// A checkpoint and the code are the next user's, whoever saved them.
func TestACheckpointOfRootResumesAsTheTenant(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	edit := func(j *spec.Job) {
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/ckpt", Keep: 2}
		j.Retry.MaxAttempts = 2
	}
	id := s.submit(edit, "do", "id", "train /ckpt 4 1ms 2", "at BERTH_ATTEMPT 1 exit 1", "env BERTH_RESTORED_STEP",
		"await-file /workspace/go")
	req, w := m.run(id)
	if x := w.exit(); x.Code != 1 || x.User != "" {
		t.Errorf("the first exit is %+v", x)
	}
	s.settle(id)
	m.cleared(req)
	s.eligible(id)
	s.users = spec.UserTenant
	s.serves()
	req, w = m.run(id)
	s.until("it has resumed", func() bool { return slices.Contains(s.log(id, 2), "BERTH_RESTORED_STEP=4") })
	u := s.usersOf("default").User()
	if log := s.log(id, 2); log[0] != u.String() {
		t.Errorf("the second attempt prints %q", log)
	}
	owners(t, filepath.Join(m.scratch(req), "checkpoint", "step-4"), u)
	if err := os.WriteFile(filepath.Join(m.scratch(req), "workspace", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if x := w.exit(); x.Code != 0 || x.User != u.String() {
		t.Errorf("the second exit is %+v", x)
	}
	s.settle(id)
	m.cleared(req)
}

// Each choice of a job has the user that the rules of the claim give it.
func TestUsersAreChosenAtTheClaim(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.users = spec.UserTenant
	s.serves()
	m := s.machine("m1")
	first := s.usersOf("default").First
	run := func(user string) (failure.Exit, []string) {
		t.Helper()
		id := s.submit(func(j *spec.Job) { j.User = user }, "id")
		req, w := m.run(id)
		x := w.exit()
		s.settle(id)
		m.cleared(req)
		return x, s.log(id, 1)
	}
	in := fmt.Sprintf("%d:%d", first+5, first+7)
	for user, want := range map[string]string{
		"": fmt.Sprintf("%d:%[1]d", first), spec.UserTenant: fmt.Sprintf("%d:%[1]d", first), in: in,
	} {
		if x, log := run(user); x.Code != 0 || !slices.Equal(log, []string{want}) {
			t.Errorf("user %q: exit %+v, log %q, want %s", user, x, log, want)
		}
	}
	for _, user := range []string{spec.UserImage, "0", fmt.Sprintf("%d:0", first), fmt.Sprint(first + 1000)} {
		if x, _ := run(user); x.Cause != failure.CauseUserNotAllowed || x.Started() {
			t.Errorf("user %q: exit is %+v", user, x)
		}
	}
	allowed := true
	if err := s.db.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: "default", AnyUser: &allowed}); err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]string{spec.UserImage: "0:0", "0": "0:0", "1000": "1000:1000",
		"": fmt.Sprintf("%d:%[1]d", first)} {
		if x, log := run(user); x.Code != 0 || !slices.Equal(log, []string{want}) {
			t.Errorf("user %q of a tenant that may: exit %+v, log %q, want %s", user, x, log, want)
		}
	}
}

func TestDockerContainersRunAsTheirTenant(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	s.users = spec.UserTenant
	s.serves()
	s.secret("TOKEN", canary)
	a := s.upload(map[string]string{"main.txt": "hello"})
	id := s.submit(func(j *spec.Job) {
		j.Workdir, j.Secrets, j.SecretsAs = string(a), []string{"TOKEN"}, spec.SecretsFile
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/ckpt"}
		j.Outputs = []spec.Output{{Name: "out", Path: "/workspace/out"}}
		j.ReadOnlyRoot, j.TmpSize = true, 8
	}, "do", "id", "env HOME", "read-file /etc/passwd", "digest TOKEN /run/secrets/TOKEN", "read-file main.txt",
		"write-file main.txt changed", "write-file /workspace/.berth/home/x y", "write-file /tmp/x y", "train /ckpt 2 1ms 1",
		"write-file /workspace/out made")
	req, w := m.run(id)
	u := s.usersOf("default").User()
	x := w.exit()
	log := s.log(id, 1)
	if x.Code != 0 || len(log) < 6 || log[0] != u.String() || log[1] != "HOME=/workspace/.berth/home" ||
		!slices.ContainsFunc(log, func(l string) bool {
			return strings.HasPrefix(l, fmt.Sprintf("berth:x:%d:",
				u.UID))
		}) {
		t.Errorf("exit is %+v, log %q", x, log)
	}
	s.settle(id)
	m.cleared(req)

	for what, command := range map[string]string{
		"the root": "write-file /new y", "the image's file": "write-file /testprog y", "the list of users": "write-file /etc/passwd y",
		"more than the size of /tmp": "fill /tmp/x 9",
	} {
		id := s.submit(func(j *spec.Job) { j.ReadOnlyRoot, j.TmpSize = true, 8 }, "do", command)
		req, w := m.run(id)
		if x := w.exit(); x.Code != 1 {
			t.Errorf("%s: exit is %+v, log %q", what, x, s.log(id, 1))
		}
		s.settle(id)
		m.cleared(req)
	}
}

// A shared folder is read with the rights of the container's user: a file for its owner alone is not another
// tenant's to read, although the agent could.
func TestDockerMountsKeepTheModesOfFiles(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	s.users = spec.UserTenant
	s.serves()
	dir := m.sharesMounts()
	set := filepath.Join(dir, "set")
	if err := os.Mkdir(set, 0o755); err != nil {
		t.Fatal(err)
	}
	other := s.usersOf("other").User()
	for name, owner := range map[string]spec.UserID{"hers": other, "mine": s.usersOf("default").User()} {
		at := filepath.Join(set, name)
		if err := os.WriteFile(at, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(at, owner.UID, owner.GID); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) (failure.Exit, string) {
		t.Helper()
		id := s.submit(func(j *spec.Job) { mounting(j); j.Inputs[0].From = "file:///datasets/set/" }, "read-file",
			"/data/"+name)
		req, w := m.run(id)
		x := w.exit()
		s.settle(id)
		m.cleared(req)
		return x, strings.Join(s.log(id, 1), "\n")
	}
	if x, log := read("mine"); x.Code != 0 || !strings.Contains(log, "mine") {
		t.Errorf("its own file: exit %+v, %s", x, log)
	}
	if x, log := read("hers"); x.Code == 0 || !strings.Contains(log, "permission denied") {
		t.Errorf("another tenant's file: exit %+v, %s", x, log)
	}
}

// usersOf returns the users of a tenant, which it creates if need be.
func (s *site) usersOf(tenant berth.TenantID) spec.UserRange {
	s.t.Helper()
	if err := s.db.Tenants.Create(s.t.Context(), spec.NewTenant{ID: tenant}); err != nil &&
		berth.CodeOf(err) != berth.CodeConflict {
		s.t.Fatal(err)
	}
	r, err := s.db.Tenants.Users(s.t.Context(), tenant)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}
