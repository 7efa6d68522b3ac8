package cgroupstats_test

import (
	"context"
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
	var s, memories unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &s), unix.Stat("/dev/shm", &memories)); err != nil {
		t.Fatal(err)
	}
	if s.Dev == memories.Dev {
		t.Skip("the folder for tests is on the device of /dev/shm")
	}
	gone, memory := unnamed(t, dir, 1<<20), unnamed(t, "/dev/shm", 8<<20)
	named, err := os.Create(filepath.Join(dir, "named"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = named.Close() })
	open := func(pid, fd int, f *os.File, flags string) {
		t.Helper()
		process := filepath.Join(h.Proc, fmt.Sprint(pid))
		if err := errors.Join(
			os.MkdirAll(filepath.Join(process, "fd"), 0o700), os.MkdirAll(filepath.Join(process, "fdinfo"), 0o700),
			os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()), filepath.Join(process, "fd", fmt.Sprint(fd))),
			os.WriteFile(filepath.Join(process, "fdinfo", fmt.Sprint(fd)), []byte("pos:\t0\nflags:\t"+flags+"\nmnt_id:\t1\n"), 0o600),
		); err != nil {
			t.Fatal(err)
		}
	}
	open(42, 1, gone, "0100000") // also open for reading
	open(42, 2, memory, "0100002")
	open(42, 3, gone, "0100001")
	open(43, 1, gone, "0100002") // the same file
	open(43, 2, named, "0100002")
	open(43, 3, unnamed(t, dir, 4<<20), "0100000") // perhaps the file of another container
	g := h.Open(42)
	if bytes, files := g.Deleted(t.Context(), s.Dev); bytes < 1<<20 || bytes >= 2<<20 || files != 1 {
		t.Errorf("%d bytes in %d files, want 1 MiB in 1", bytes, files)
	}
	if bytes, files := g.Deleted(t.Context()); bytes != 0 || files != 0 {
		t.Errorf("without a device: %d bytes in %d files", bytes, files)
	}
	// The root of a container counts without being named.
	if err := os.Symlink(dir, filepath.Join(h.Proc, "42", "root")); err != nil {
		t.Fatal(err)
	}
	if _, files := g.Deleted(t.Context()); files != 1 {
		t.Errorf("%d files are counted by the device of the root, want 1", files)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, files := g.Deleted(over, s.Dev); files != 0 {
		t.Errorf("%d files are counted after the end of the context", files)
	}
}
