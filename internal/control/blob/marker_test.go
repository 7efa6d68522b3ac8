package blob_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"berth"
	"berth/internal/control/blob"
)

const marker = "@berth-store"

// open opens a folder as berthd does.
func open(t *testing.T, dir string) *blob.Store {
	t.Helper()
	s, err := blob.Open(t.Context(), "file://"+dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := blob.Mark(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// down fails unless the store is unavailable with an error that contains a text.
func down(t *testing.T, s *blob.Store, when, text string) {
	t.Helper()
	if err := s.Check(t.Context()); berth.CodeOf(err) != berth.CodeUnavailable || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v", when, err)
	}
}

// The roots of two file systems have the same inode number, so the test replaces the content of one folder.
func TestAnotherFileSystemAtTheSamePlaceIsAnotherStore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "blobs")
	s := open(t, dir)
	if err := s.Create(t.Context(), "a/b", []byte("x")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, marker)
	id, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	down(t, s, "without the file of the id", "write the id "+strings.TrimSpace(string(id))+" to that file")
	for _, found := range [][2]string{{strings.Repeat("Z", 26), "it is another store"}, {"", "remove the file"}} {
		if err := os.WriteFile(file, []byte(found[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		down(t, s, "with the id "+found[0], found[1])
	}
	if _, err := blob.Open(t.Context(), "file://"+dir); err == nil || !strings.Contains(err.Error(), "allowed is") {
		t.Errorf("a store with an empty id is opened: %v", err)
	}
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("once the id is back: %v", err)
	}
}

// A copy of the folder, as for a move to another disk, has another inode number.
func TestACopyWithTheIDIsTheSameStore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "blobs")
	s := open(t, dir)
	if err := s.Create(t.Context(), "a/b", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir+".copy", os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(dir, dir+".away"), os.Rename(dir+".copy", dir)); err != nil {
		t.Fatal(err)
	}
	if b, err := s.ReadAll(t.Context(), "a/b", 10); err != nil || string(b) != "x" {
		t.Errorf("read %q, %v", b, err)
	}
}

func TestProcessesAgreeOnOneID(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "blobs")
	old, err := blob.Open(t.Context(), "file://"+dir) // of a tool, or before the id
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := old.Create(t.Context(), "a/b", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("a tool left %v, %v", entries, err)
	}
	stores := make([]*blob.Store, 16)
	for i := range stores {
		if stores[i], err = blob.Open(t.Context(), "file://"+dir); err != nil {
			t.Fatal(err)
		}
		defer stores[i].Close()
	}
	var all sync.WaitGroup
	for _, s := range stores {
		all.Go(func() {
			if err := blob.Mark(s); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, s := range append(stores, old) {
		if err := s.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 || entries[0].Name() != marker {
		t.Errorf("the folder holds %v, %v", entries, err)
	}
	var keys []string
	if err := stores[0].Walk(t.Context(), func(o blob.Object) error { keys = append(keys, o.Key); return nil }); err != nil ||
		len(keys) != 1 {
		t.Errorf("the store lists %q, %v", keys, err)
	}
}

// No process can create a file in /proc, as in a file system that is mounted read-only.
func TestAFolderThatCannotBeWrittenIsKnownByItsInode(t *testing.T) {
	t.Parallel()
	s, err := blob.Open(t.Context(), "file:///proc")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := blob.Mark(s); err == nil {
		t.Error("/proc has an id")
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAStoreElsewhereNeedsNoID(t *testing.T) {
	t.Parallel()
	s, err := blob.Open(t.Context(), "mem://")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := errors.Join(blob.Mark(s), s.Check(t.Context())); err != nil {
		t.Error(err)
	}
}

// A mount that is lost during a walk leaves folders empty that the walk has not read yet.
func TestAWalkOfAFolderThatGoesFails(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"within a folder", "at the last object"} {
		dir := filepath.Join(t.TempDir(), "blobs")
		s := open(t, dir)
		keys := []string{"a/1"}
		if when == "within a folder" {
			keys = append(keys, "a/2", "b/3")
		}
		for _, key := range keys {
			if err := s.Create(t.Context(), key, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		seen := 0
		err := s.Walk(t.Context(), func(blob.Object) error {
			if seen++; seen == 1 {
				return errors.Join(os.Rename(dir, dir+".away"), os.Mkdir(dir, 0o700))
			}
			return nil
		})
		if berth.CodeOf(err) != berth.CodeUnavailable || seen != 1 {
			t.Errorf("%s: the walk saw %d objects, and ended with %v", when, seen, err)
		}
	}
}
