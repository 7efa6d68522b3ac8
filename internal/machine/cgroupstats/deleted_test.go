package cgroupstats_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// unnamed returns an open file of so many bytes without a name.
func unnamed(t *testing.T, dir string, bytes int) *os.File {
	t.Helper()
	f, err := os.CreateTemp(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	_, err = f.Write(make([]byte, bytes))
	if err := errors.Join(err, f.Sync(), os.Remove(f.Name())); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestOpenFilesWithoutANameAreCounted(t *testing.T) {
	t.Parallel()
	h := host(t, "net:[2]", map[string]string{
		"proc/42/cgroup": "0::/c\n", "cgroup/c/cpu.stat": "usage_usec 1\n", "cgroup/c/cgroup.procs": "42\n43\n44\n",
	})
	dir := t.TempDir()
	gone, memory := unnamed(t, dir, 1<<20), unnamed(t, "/dev/shm", 8<<20)
	named, err := os.Create(filepath.Join(dir, "named"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = named.Close() })
	open := func(pid, fd int, f *os.File) {
		t.Helper()
		folder := filepath.Join(h.Proc, fmt.Sprint(pid), "fd")
		err := os.MkdirAll(folder, 0o700)
		if err := errors.Join(err, os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()), filepath.Join(folder, fmt.Sprint(fd)))); err != nil {
			t.Fatal(err)
		}
	}
	open(42, 1, gone)
	open(42, 2, memory)
	open(43, 1, gone) // the same file
	open(43, 2, named)
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err != nil {
		t.Fatal(err)
	}
	g := h.Open(42)
	if bytes, files := g.Deleted(s.Dev); bytes < 1<<20 || bytes >= 2<<20 || files != 1 {
		t.Errorf("%d bytes in %d files, want 1 MiB in 1", bytes, files)
	}
	if bytes, files := g.Deleted(); bytes != 0 || files != 0 {
		t.Errorf("without a device: %d bytes in %d files", bytes, files)
	}
	// The root of a container counts without being named.
	if err := os.Symlink(dir, filepath.Join(h.Proc, "42", "root")); err != nil {
		t.Fatal(err)
	}
	if _, files := g.Deleted(); files != 1 {
		t.Errorf("%d files are counted by the device of the root, want 1", files)
	}
}
