package mounts_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/lib/fusetest"
	"berth/internal/machine/mounts"
)

// table returns a table in a folder of its own. It skips the test where mounts are not possible.
func table(t *testing.T) (*mounts.Table, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mounts")
	m := mounts.New(dir)
	if err := m.Check(); err != nil {
		t.Skipf("this process cannot mount: %v", err)
	}
	t.Cleanup(func() { // of a failed test
		for unix.Unmount(dir, unix.MNT_DETACH) == nil {
		}
	})
	return m, dir
}

// add mounts a folder under a name.
func add(t *testing.T, m *mounts.Table, name string, folder string) {
	t.Helper()
	f, err := os.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := m.Add(name, 0, f); err != nil {
		t.Fatal(err)
	}
}

// kernel returns the kernel's list of mounts below a folder.
func kernel(t *testing.T, below string) (list []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, below) {
			list = append(list, at)
		}
	}
	return list
}

func write(t *testing.T, dir, name string) string {
	t.Helper()
	at := filepath.Join(dir, name)
	if err := os.WriteFile(at, []byte(name), 0o666); err != nil {
		t.Fatal(err)
	}
	return at
}

// The agent itself cannot change a shared folder through its mount, and no removal deletes data.
func TestAMountIsReadOnlyForTheAgentItself(t *testing.T) {
	t.Parallel()
	m, dir := table(t)
	shared := t.TempDir()
	file := write(t, shared, "weights")
	add(t, m, "job", shared)
	seen := filepath.Join(m.Path("job", 0), "weights")
	if text, err := os.ReadFile(seen); err != nil || string(text) != "weights" {
		t.Fatalf("the mount has %q, %v", text, err)
	}
	if err := os.WriteFile(seen, nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("the file is written: %v", err)
	}
	var at unix.Statfs_t
	if err := unix.Statfs(m.Path("job", 0), &at); err != nil || at.Flags&unix.ST_NOSUID == 0 || at.Flags&unix.ST_NODEV == 0 {
		t.Errorf("the mount has the flags %x, %v", at.Flags, err)
	}
	if err := os.RemoveAll(dir); err == nil {
		t.Error("the folder of the mounts can be deleted")
	}
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("the shared file: %v", err)
	}
	if err := m.Remove(t.Context(), "job"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the shared file: %v", err)
	}
	if left := kernel(t, dir); len(left) > 0 {
		t.Errorf("mounts are left: %q", left)
	}
}

// A folder with content where a mount should be is never emptied.
func TestARemovalDeletesNoContent(t *testing.T) {
	t.Parallel()
	m, dir := table(t)
	add(t, m, "other", t.TempDir()) // keeps the tmpfs
	if err := os.MkdirAll(filepath.Join(dir, "job", "0"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := write(t, filepath.Join(dir, "job", "0"), "data")
	if err := m.Remove(t.Context(), "job"); err == nil {
		t.Error("a folder with content counts as removed")
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the content: %v", err)
	}
}

// The opened folder is mounted, even if its path leads elsewhere by now.
func TestTheOpenedFolderIsMounted(t *testing.T) {
	t.Parallel()
	m, _ := table(t)
	shared, outside := t.TempDir(), t.TempDir()
	write(t, outside, "secret")
	folder := filepath.Join(shared, "set")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, folder, "data")
	f, err := os.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(os.Rename(folder, folder+"-was"), os.Symlink(outside, folder)); err != nil {
		t.Fatal(err)
	}
	if err := m.Add("job", 0, f); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(m.Path("job", 0), "data")); err != nil {
		t.Errorf("another folder is mounted: %v", err)
	}
	if err := m.Remove(t.Context(), "job"); err != nil {
		t.Error(err)
	}
}

// File systems below a shared folder are neither shown nor unmounted with it, also where the folder's
// mount is shared with other namespaces, as on every system with systemd.
func TestMountsBelowTheFolderAreLeftAlone(t *testing.T) {
	t.Parallel()
	m, _ := table(t)
	shared := t.TempDir()
	if err := unix.Mount("tmpfs", shared, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(shared, unix.MNT_DETACH) })
	if err := unix.Mount("", shared, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	below := func(name string) string {
		at := filepath.Join(shared, name)
		if err := errors.Join(os.Mkdir(at, 0o700), unix.Mount("tmpfs", at, "tmpfs", 0, "size=1m")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		return write(t, at, "file")
	}
	before := below("before")
	add(t, m, "job", shared)
	after := below("after")
	for _, name := range []string{"before", "after"} {
		if list, err := os.ReadDir(filepath.Join(m.Path("job", 0), name)); err != nil || len(list) > 0 {
			t.Errorf("%s shows %v, %v", name, list, err)
		}
	}
	if err := m.Remove(t.Context(), "job"); err != nil {
		t.Error(err)
	}
	for _, file := range []string{before, after} {
		if _, err := os.Stat(file); err != nil {
			t.Errorf("it is unmounted on the host: %v", err)
		}
	}
}

// A process that dies leaves its mounts; the next one finds and removes them.
func TestTheNextProcessFindsTheMounts(t *testing.T) {
	t.Parallel()
	m, dir := table(t)
	shared := t.TempDir()
	add(t, m, "one", shared)
	add(t, m, "two", shared)
	next := mounts.New(dir)
	names, err := next.Names()
	if err != nil || len(names) != 2 {
		t.Fatalf("it finds %q, %v", names, err)
	}
	for _, name := range append(names, "never") {
		if err := next.Remove(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if names, err := next.Names(); err != nil || len(names) > 0 || len(kernel(t, dir)) > 0 {
		t.Errorf("left are %q, %q, %v", names, kernel(t, dir), err)
	}
}

// A file server that does not answer holds up neither a mount nor its removal.
func TestADeadFileServerIsMountedAndUnmounted(t *testing.T) {
	t.Parallel()
	m, dir := table(t)
	at := t.TempDir()
	s := fusetest.Mount(t, at)
	f, err := os.Open(filepath.Join(at, "set"))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := fusetest.ReadFile(filepath.Join(at, "set", "a.txt")); err != nil || text != fusetest.Content {
		t.Fatalf("the server has %q, %v", text, err)
	}
	s.Die()
	if err := m.Add("job", 0, f); err != nil {
		t.Fatal(err)
	}
	if names, err := m.Names(); err != nil || len(names) != 1 {
		t.Errorf("names are %q, %v", names, err)
	}
	if err := m.Remove(t.Context(), "job"); err != nil {
		t.Error(err)
	}
	if left := kernel(t, dir); len(left) > 0 {
		t.Errorf("mounts are left: %q", left)
	}
	if n := s.Asked(); n > 0 {
		t.Errorf("the dead server was asked %d times", n)
	}
	s.Revive()
	_ = f.Close()
}
