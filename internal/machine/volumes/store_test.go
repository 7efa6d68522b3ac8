package volumes_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"berth"
	"berth/internal/machine/volumes"
	"berth/spec"
)

const mib = 1 << 20

// Users of two tenants.
var red, blue = spec.UserID{UID: 2010000000, GID: 2010000000}, spec.UserID{UID: 2010001000, GID: 2010001000}

func open(t *testing.T, dir string, change ...func(*volumes.Options)) *volumes.Store {
	t.Helper()
	o := volumes.Options{Dir: dir, Total: 100 * mib, Log: slog.New(slog.DiscardHandler)}
	for _, c := range change {
		c(&o)
	}
	s, err := volumes.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// acquire acquires one volume of the tenant red.
func acquire(t *testing.T, s *volumes.Store, member berth.AllocationID, name string, size int64) (folder string) {
	t.Helper()
	folders, err := s.Acquire(member, "red", red, wants(name, size))
	if err != nil {
		t.Fatal(err)
	}
	return folders[0]
}

func wants(name string, size int64) []volumes.Want { return []volumes.Want{{Name: name, Size: size}} }

func put(t *testing.T, path string, size int) {
	t.Helper()
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
}

func has(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// sweep sweeps with a disk that is full or not.
func sweep(t *testing.T, s *volumes.Store, full bool) {
	t.Helper()
	if err := s.Sweep(t.Context(), func() bool { return full }); err != nil {
		t.Error(err)
	}
}

// mark sets the time of the last use of a volume of the tenant red.
func mark(t *testing.T, dir, name string, ago time.Duration) {
	t.Helper()
	then := time.Now().Add(-ago)
	if err := os.Chtimes(filepath.Join(dir, "red", name, "volume.json"), then, then); err != nil {
		t.Fatal(err)
	}
}

func TestAVolumeOutlivesItsJobAndTheAgent(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	folder := acquire(t, s, 1, "hf", mib)
	put(t, filepath.Join(folder, "model"), 10)
	if again := acquire(t, s, 2, "hf", mib); again != folder {
		t.Errorf("two jobs at once get %s and %s", folder, again)
	}
	s.Release(1)
	s.Release(2)
	s.Release(2)
	sweep(t, s, false)
	s = open(t, dir)
	if !has(filepath.Join(acquire(t, s, 3, "hf", mib), "model")) {
		t.Error("the file of the earlier job is gone")
	}
}

func TestAVolumeBelongsToItsTenantAlone(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	folder := acquire(t, s, 1, "hf", mib)
	other, err := s.Acquire(2, "blue", blue, wants("hf", mib))
	if err != nil || other[0] == folder {
		t.Fatalf("the other tenant gets %v (%v)", other, err)
	}
	info, err := os.Lstat(folder)
	if err != nil {
		t.Fatal(err)
	}
	if stat := info.Sys().(*syscall.Stat_t); int(stat.Uid) != red.UID || int(stat.Gid) != red.GID {
		t.Errorf("the folder belongs to %d:%d", stat.Uid, stat.Gid)
	}
	for at := folder; at != filepath.Dir(dir); at = filepath.Dir(at) {
		if info, err := os.Lstat(at); at != dir && (err != nil || info.Mode().Perm() != 0o700) {
			t.Errorf("%s has mode %v (%v): other users could pass", at, info.Mode(), err)
		}
	}
}

// The name of a deleted tenant can be given again, and the new tenant has another user.
func TestAnotherUserFindsAnEmptyVolume(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, filepath.Join(acquire(t, s, 1, "hf", mib), "old"), 10)
	if _, err := s.Acquire(2, "red", blue, wants("hf", mib)); err == nil {
		t.Error("another user shares a volume in use")
	}
	s.Release(1)
	folders, err := s.Acquire(3, "red", blue, wants("hf", mib))
	if err != nil {
		t.Fatal(err)
	}
	if has(filepath.Join(folders[0], "old")) {
		t.Error("the new tenant sees the files of the old one")
	}
}

func TestAVolumeInUseIsNeverRemoved(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, func(o *volumes.Options) { o.Age = time.Hour })
	used, idle := acquire(t, s, 1, "used", mib), acquire(t, s, 2, "idle", mib)
	s.Release(2)
	mark(t, dir, "used", 2*time.Hour)
	sweep(t, s, false)
	if !has(used) || !has(idle) {
		t.Errorf("in use and old: there is %v; unused and young: there is %v", has(used), has(idle))
	}
	sweep(t, s, true)
	if !has(used) || has(idle) {
		t.Errorf("full disk: in use there is %v, unused there is %v", has(used), has(idle))
	}
	s.Release(1)
	mark(t, dir, "used", 2*time.Hour)
	sweep(t, s, false)
	if has(used) {
		t.Error("an old volume stays")
	}
}

func TestAnAdoptedVolumeStays(t *testing.T) {
	dir := t.TempDir()
	folder := acquire(t, open(t, dir), 1, "hf", mib)
	s := open(t, dir)
	s.Adopt(1, "red", wants("hf", mib))
	sweep(t, s, true)
	if !has(folder) {
		t.Error("a volume is removed under its container")
	}
	s.Release(1)
	sweep(t, s, true)
	if has(folder) {
		t.Error("the volume stays after its use")
	}
}

func TestTheLeastRecentlyUsedGoesFirst(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	first, second := acquire(t, s, 1, "first", mib), acquire(t, s, 1, "second", mib)
	s.Release(1)
	mark(t, dir, "first", time.Minute)
	mark(t, dir, "second", 2*time.Minute)
	err := s.Sweep(t.Context(), func() bool { return has(second) })
	if err != nil || !has(first) || has(second) {
		t.Errorf("%v; there is the newer %v, the older %v", err, has(first), has(second))
	}
}

func TestATenantHasATotal(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	idle := acquire(t, s, 1, "idle", 60*mib)
	s.Release(1)
	acquire(t, s, 2, "used", 60*mib)
	if has(idle) {
		t.Error("an unused volume makes no room for one that is needed")
	}
	_, err := s.Acquire(3, "red", red, wants("more", 41*mib))
	if !errors.Is(err, volumes.ErrNoRoom) {
		t.Errorf("beyond the total: %v", err)
	}
	acquire(t, s, 3, "used", 100*mib)
	if _, err := s.Acquire(4, "blue", blue, wants("more", 100*mib)); err != nil {
		t.Errorf("another tenant: %v", err)
	}
}

func TestAHalfMadeVolumeIsRemoved(t *testing.T) {
	dir := t.TempDir()
	half := filepath.Join(dir, ".new-1", "data")
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if has(filepath.Dir(half)) {
		t.Error("it stays")
	}
}
