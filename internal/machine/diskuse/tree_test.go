package diskuse_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/machine/diskuse"
)

func write(t *testing.T, path string, bytes int) {
	t.Helper()
	content := make([]byte, bytes)
	for i := range content {
		content[i] = byte(i*7 + i>>8)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync()); err != nil { // some file systems allocate blocks late
		t.Fatal(err)
	}
}

func measure(t *testing.T, dir string) diskuse.Use {
	t.Helper()
	use, err := diskuse.Tree(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	return use
}

func TestTreeCountsAllocatedSpaceOnce(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	write(t, filepath.Join(outside, "other"), 4<<20)
	empty := measure(t, dir)
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	one := filepath.Join(dir, "sub", "one")
	write(t, one, 2<<20)
	for _, err := range []error{
		os.Link(one, filepath.Join(dir, "two")),
		os.Link(one, filepath.Join(dir, "sub", "three")),
		os.Symlink(outside, filepath.Join(dir, "away")),
		os.Symlink(".", filepath.Join(dir, "loop")),
		os.WriteFile(filepath.Join(dir, "sparse"), nil, 0o600),
		os.Truncate(filepath.Join(dir, "sparse"), 1<<40),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	use := measure(t, dir)
	bytes, inodes := use.Bytes-empty.Bytes, use.Inodes-empty.Inodes
	if bytes < 2<<20 || bytes >= 3<<20 {
		t.Errorf("%d bytes are counted, want 2 MiB and some folders", bytes)
	}
	if inodes != 6 { // sub, one, away, loop, sparse, pipe
		t.Errorf("%d inodes are counted, want 6", inodes)
	}
}

func TestTreeOfAMissingFolderIsEmpty(t *testing.T) {
	t.Parallel()
	if use := measure(t, filepath.Join(t.TempDir(), "none")); use != (diskuse.Use{}) {
		t.Errorf("use is %+v", use)
	}
}

// A folder that is a link may lead out of the container.
func TestTreeDoesNotFollowALinkInItsPlace(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if use, err := diskuse.Tree(t.Context(), link, 0); err == nil {
		t.Errorf("a link is measured as %+v", use)
	}
}

func TestTreeStopsEarly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 8 {
		write(t, filepath.Join(dir, strconv.Itoa(i)), 1<<20)
	}
	use, err := diskuse.Tree(t.Context(), dir, 1<<20)
	if err != nil || use.Bytes <= 1<<20 {
		t.Errorf("with enough: %+v, %v", use, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := diskuse.Tree(over, dir, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that is over: %v", err)
	}
}

// Paths deeper than this cannot be named in one system call, so a program could hide files there.
func TestTreeReportsFoldersThatAreTooDeep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 600 {
		if err := at.Mkdir("d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := at.OpenRoot("d")
		if err != nil {
			t.Fatal(err)
		}
		_ = at.Close()
		at = next
	}
	_ = at.Close()
	use, err := diskuse.Tree(t.Context(), dir, 0)
	if !errors.Is(err, diskuse.ErrTooDeep) || use.Inodes < 500 {
		t.Errorf("measured %+v, %v", use, err)
	}
}

func TestSpaceIsThatOfTheFileSystem(t *testing.T) {
	t.Parallel()
	s, err := diskuse.SpaceOf(t.TempDir())
	if err != nil || s.Total <= 0 || s.Free < 0 || s.Free > s.Total || s.FreeInodes > s.Inodes {
		t.Errorf("space is %+v, %v", s, err)
	}
	if _, err := diskuse.SpaceOf(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("space of a missing folder: %v", err)
	}
}

func TestReserveIsAShare(t *testing.T) {
	t.Parallel()
	s := diskuse.Space{Total: 1000, Free: 40, Inodes: 2000, FreeInodes: 100}
	reserve := s.Share(5)
	if reserve != (diskuse.Use{Bytes: 50, Inodes: 100}) {
		t.Errorf("reserve is %+v", reserve)
	}
	if missing := s.Missing(reserve); missing != (diskuse.Use{Bytes: 10}) {
		t.Errorf("missing is %+v", missing)
	}
	// Some file systems have no fixed number of inodes.
	s = diskuse.Space{Total: 1000, Free: 50}
	if missing := s.Missing(s.Share(5)); missing != (diskuse.Use{}) {
		t.Errorf("missing is %+v", missing)
	}
}
