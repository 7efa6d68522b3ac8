package treetar_test

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"berth/internal/lib/treetar"
)

func root(t *testing.T, dir string) *os.Root {
	t.Helper()
	r, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func write(t *testing.T, file, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func TestATreeArrivesAsItWas(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	write(t, filepath.Join(from, "tree/a.txt"), "a", 0o644)
	write(t, filepath.Join(from, "tree/deep/run.sh"), "#!/bin/sh", 0o755)
	if err := os.Symlink("a.txt", filepath.Join(from, "tree/link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(from, "tree/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	var skipped []string
	if err := treetar.Pack(&text, root(t, from), "tree", "tree", func(p string) { skipped = append(skipped, p) }); err != nil {
		t.Fatal(err)
	}
	if len(skipped) != 1 || skipped[0] != "tree/pipe" {
		t.Errorf("left out %q", skipped)
	}
	var owned []string
	files, n, err := treetar.Unpack(&text, root(t, to), "other", func(p string) { owned = append(owned, p) })
	if err != nil || files != 2 || n != 10 || len(owned) != 5 {
		t.Fatalf("%d files, %d bytes, owned %q, %v", files, n, owned, err)
	}
	if got, err := os.ReadFile(filepath.Join(to, "other/link")); err != nil || string(got) != "a" {
		t.Errorf("by the link: %q, %v", got, err)
	}
	if info, err := os.Stat(filepath.Join(to, "other/deep/run.sh")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the script is %v, %v", info, err)
	}
}

func TestOneFileTakesTheNewName(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	write(t, filepath.Join(from, "a.txt"), "new", 0o600)
	write(t, filepath.Join(to, "b.txt"), "old and longer", 0o644)
	var text bytes.Buffer
	if err := treetar.Pack(&text, root(t, from), "a.txt", "a.txt", nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := treetar.Unpack(&text, root(t, to), "b.txt", nil); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(to, "b.txt")); err != nil || string(got) != "new" {
		t.Errorf("it is %q, %v", got, err)
	}
}

// Neither names nor links lead out of the folder.
func TestAHostileTarStaysInItsFolder(t *testing.T) {
	t.Parallel()
	outside, inside := t.TempDir(), t.TempDir()
	for name, entries := range map[string][]tar.Header{
		"names":   {{Name: "x/../../../escape", Typeflag: tar.TypeReg}, {Name: "/abs/escape", Typeflag: tar.TypeReg}},
		"links":   {{Name: "x/l", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "x/l/escape", Typeflag: tar.TypeReg}},
		"devices": {{Name: "x/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		"hard":    {{Name: "x/hard", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}},
	} {
		var text bytes.Buffer
		w := tar.NewWriter(&text)
		if err := w.WriteHeader(&tar.Header{Name: "x/", Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
		for _, h := range entries {
			h.Mode = 0o6755
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		_, _, err := treetar.Unpack(&text, root(t, inside), name, nil)
		if name != "names" && err == nil {
			t.Errorf("%s: taken", name)
		}
		if left, _ := filepath.Glob(outside + "/*"); len(left) > 0 {
			t.Errorf("%s: wrote %q", name, left)
		}
		for _, above := range []string{filepath.Join(filepath.Dir(inside), "escape"), "/abs/escape"} {
			if _, err := os.Lstat(above); err == nil {
				t.Errorf("%s: wrote %s", name, above)
			}
		}
	}
	if info, err := os.Lstat(filepath.Join(inside, "names/escape")); err != nil || info.Mode()&os.ModeSetuid != 0 {
		t.Errorf("inside: %v, %v", info, err)
	}
}
