package blob_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"berth"
	"berth/internal/control/blob"
)

func folder(t *testing.T) (*blob.Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "blobs")
	s, err := blob.Open(t.Context(), "file://"+dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, dir
}

const job = berth.JobID("018f0000-0000-7000-8000-000000000001")

func TestOnlyAStoreInAFolderHasAFreeShare(t *testing.T) {
	t.Parallel()
	s, dir := folder(t)
	if share, ok := s.FreeShare(); !ok || share <= 0 || share > 1 {
		t.Errorf("a folder has the free share %g, %v", share, ok)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if share, ok := s.FreeShare(); ok {
		t.Errorf("a folder that is gone has the free share %g", share)
	}
	memory, err := blob.Open(t.Context(), "mem://")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	if share, ok := memory.FreeShare(); ok {
		t.Errorf("a store in memory has the free share %g", share)
	}
}

// A folder whose file system is unmounted is gone or empty, and its objects are not deleted.
func TestAFolderThatIsGoneIsNoEmptyStore(t *testing.T) {
	t.Parallel()
	s, dir := folder(t)
	if _, err := s.Put(t.Context(), "a/b", strings.NewReader("hello"), 5); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	unusable := func(when string) {
		t.Helper()
		_, put := s.Put(t.Context(), "a/c", strings.NewReader("hello"), 5)
		_, _, open := s.Open(t.Context(), "a/b")
		_, exists := s.Exists(t.Context(), "a/b")
		_, names := s.Names(t.Context(), "a")
		_, folders := s.Folders(t.Context(), "a")
		for call, err := range map[string]error{
			"Check": s.Check(t.Context()), "Put": put, "Open": open, "Exists": exists,
			"Names": names, "Folders": folders, "Delete": s.Delete(t.Context(), "a/b"), "DeleteFolder": s.DeleteFolder(t.Context(), "a"),
			"Walk": s.Walk(t.Context(), func(blob.Object) error { return nil }),
		} {
			if berth.CodeOf(err) != berth.CodeUnavailable {
				t.Errorf("%s while the folder is %s: %v", call, when, err)
			}
		}
	}
	unusable("gone")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder was created: %v", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	unusable("another one")
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
		t.Fatal(err)
	}
	if b, err := s.ReadAll(t.Context(), "a/b", 10); err != nil || string(b) != "hello" || s.Check(t.Context()) != nil {
		t.Errorf("once the folder is back, read %q, %v", b, err)
	}
}

func TestObjectsAppearWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	s, dir := folder(t)
	if _, err := s.Put(t.Context(), "a/b", strings.NewReader("hello"), 5); err != nil {
		t.Fatal(err)
	}
	if b, err := s.ReadAll(t.Context(), "a/b", 10); err != nil || string(b) != "hello" {
		t.Errorf("read %q, %v", b, err)
	}
	if _, err := s.Put(t.Context(), "a/short", strings.NewReader("hello"), 6); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("a short body: %v", err)
	}
	broken := io.MultiReader(strings.NewReader("hel"), iotest.ErrReader(errors.New("cut off")))
	if _, err := s.Put(t.Context(), "a/b", broken, -1); err == nil {
		t.Error("a broken body was stored")
	}
	if b, _ := s.ReadAll(t.Context(), "a/b", 10); string(b) != "hello" {
		t.Errorf("a failed write left %q", b)
	}
	if _, _, err := s.Open(t.Context(), "a/short"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("the short object: %v", err)
	}
	files, err := filepath.Glob(dir + "/a/*")
	if err != nil || len(files) != 1 {
		t.Errorf("folder holds %v, %v", files, err)
	}
	if err := s.Create(t.Context(), "a/b", []byte("other")); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("second create: %v", err)
	}
	if err := s.DeleteFolder(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Open(t.Context(), "a/b"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("after deletion: %v", err)
	}
	if err := s.DeleteFolder(t.Context(), "a"); err != nil {
		t.Errorf("second deletion: %v", err)
	}
}

func TestKeysCannotEscape(t *testing.T) {
	t.Parallel()
	s, dir := folder(t)
	outside := filepath.Join(filepath.Dir(dir), "secret")
	if err := os.WriteFile(outside, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"", "/", "../secret", "a/../../secret", "a//b", "./a", "a/.", "/etc/passwd", "a\x00b", "a b", "%2e%2e/secret", "a\\..\\b", strings.Repeat("a", 1000)} {
		if _, err := s.Put(t.Context(), key, strings.NewReader("x"), 1); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("put %q: %v", key, err)
		}
		if _, _, err := s.Open(t.Context(), key); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("open %q: %v", key, err)
		}
		if _, err := blob.ParseKey(key); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("parse %q: %v", key, err)
		}
	}
}

func TestOnlyKeysOfAttemptsAreParsed(t *testing.T) {
	t.Parallel()
	good := berth.CheckpointKey("default", job, 3, 1, 20) + "/" + berth.ManifestName
	p, err := blob.ParseKey(good)
	if want := (blob.Place{Tenant: "default", Job: job, Attempt: 3, Rank: 1, Path: "checkpoints/step-20/" + berth.ManifestName}); err != nil || p != want {
		t.Errorf("%s is %+v, %v", good, p, err)
	}
	prefix := "tenants/default/jobs/" + string(job)
	for _, key := range []string{
		prefix, prefix + "/attempt-3/rank-1", prefix + "/attempt-03/rank-1/x", prefix + "/attempt-0/rank-1/x",
		prefix + "/3/1/x", prefix + "/attempt-3/rank--1/x", "uploads/default/jobs/" + string(job) + "/attempt-3/rank-1/x",
		strings.ToUpper(good),
	} {
		if p, err := blob.ParseKey(key); err == nil {
			t.Errorf("%s is %+v", key, p)
		}
	}
}

func TestDescribeLogWantsWholeLines(t *testing.T) {
	t.Parallel()
	at := []byte("2026-01-02T03:04:05.5Z o first\n2026-01-02T03:04:06Z e \n")
	lines, first, last, err := blob.DescribeLog(at)
	if err != nil || lines != 2 || first.Second() != 5 || last.Second() != 6 {
		t.Errorf("%d lines from %s to %s, %v", lines, first, last, err)
	}
	for _, bad := range []string{"", "x", "2026-01-02T03:04:05Z o no newline", "no stamp\n", "2026-01-02T03:04:05Z x stream\n", "2026-01-02T03:04:05Z o ok\nbad\n"} {
		if _, _, _, err := blob.DescribeLog([]byte(bad)); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestAWalkFollowsALinkedRoot checks that the objects of a store whose folder is a link are listed, and that an entry that
// is neither a file nor a folder is an error.
func TestAWalkFollowsALinkedRoot(t *testing.T) {
	t.Parallel()
	_, dir := folder(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	s, err := blob.Open(t.Context(), "file://"+link)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Create(t.Context(), "a/b", []byte("x")); err != nil {
		t.Fatal(err)
	}
	var keys []string
	note := func(o blob.Object) error { keys = append(keys, o.Key); return nil }
	if err := s.Walk(t.Context(), note); err != nil || len(keys) != 1 || keys[0] != "a/b" {
		t.Errorf("a linked store lists %q, %v", keys, err)
	}
	if err := os.Symlink(filepath.Join(dir, "a", "b"), filepath.Join(dir, "a", "c")); err != nil {
		t.Fatal(err)
	}
	if err := s.Walk(t.Context(), note); err == nil || !strings.Contains(err.Error(), "neither a file nor a folder") {
		t.Errorf("a link in the store: %v", err)
	}
}
