package archive_test

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/lib/archive"
)

// folder makes files below a new folder. A content that begins with -> is a
// link, a name that ends with / a folder, one that ends with * is executable.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		at := filepath.Join(dir, filepath.FromSlash(strings.TrimSuffix(name, "*")))
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if err != nil {
			t.Fatal(err)
		}
		target, link := strings.CutPrefix(content, "->")
		switch {
		case link:
			err = os.Symlink(target, at)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(at, 0o755)
		case strings.HasSuffix(name, "*"):
			err = os.WriteFile(at, []byte(content), 0o755)
		default:
			err = os.WriteFile(at, []byte(content), 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func packed(t *testing.T, dir string) ([]byte, archive.Summary) {
	t.Helper()
	var b bytes.Buffer
	sum, err := archive.Pack(t.Context(), &b, dir, archive.Default)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), sum
}

// root opens a new folder.
func root(t *testing.T) (*os.Root, string) {
	t.Helper()
	dir := t.TempDir()
	r, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r, dir
}

// tree lists the content of a folder, in the notation of folder.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || at == dir {
			return err
		}
		name, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			files[name+"/"] = ""
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(at)
			files[name] = "->" + target
			return err
		default:
			b, err := os.ReadFile(at)
			if info.Mode()&0o100 != 0 {
				name += "*"
			}
			files[name] = string(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestAFolderComesOutAsItWentIn(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"train.py": "print(1)", "run.sh*": "#!/bin/sh", "lib/": "", "lib/util.py": "", "empty/": "",
		"latest": "->lib/util.py", "lib/up": "->../train.py", "äöü/": "", "äöü/日本": "x", strings.Repeat("n", 200): "long",
	}
	text, sum := packed(t, folder(t, want))
	to, dir := root(t)
	got, err := archive.Unpack(bytes.NewReader(text), to, archive.Default)
	if err != nil || got != sum {
		t.Fatalf("packed %+v, unpacked %+v, %v", sum, got, err)
	}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	copied, second := root(t)
	sum.Address = "" // not compared here
	if found, err := archive.Copy(copied, to, nil); err != nil || found != sum {
		t.Fatalf("copied %+v, %v", found, err)
	}
	if diff := cmp.Diff(want, tree(t, second)); diff != "" {
		t.Errorf("the copy (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(filepath.Join(second, "train.py")); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("a container may not write its copy: %v, %v", info, err)
	}
	linked, third := root(t)
	if found, err := archive.Share(linked, to); err != nil || found != sum {
		t.Fatalf("linked %+v, %v", found, err)
	}
	if diff := cmp.Diff(want, tree(t, third)); diff != "" {
		t.Errorf("the links (-want +got):\n%s", diff)
	}
	if err := archive.Clear(to, ""); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, tree(t, third)); diff != "" {
		t.Errorf("the links without the first names (-want +got):\n%s", diff)
	}
	for name, mode := range map[string]os.FileMode{"train.py": 0o644, "run.sh": 0o755, "lib": 0o755} {
		if info, err := os.Stat(filepath.Join(third, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("any user reads %s: %v, %v", name, info, err)
		}
	}
	if err := archive.Clear(copied, "lib"); err != nil {
		t.Fatal(err)
	}
	if left := tree(t, second); len(left) != 3 {
		t.Errorf("cleared to %v", left)
	}
}

// The same content has the same address, whenever, wherever and by whomever it
// was written.
func TestTheSameContentHasTheSameAddress(t *testing.T) {
	t.Parallel()
	files := map[string]string{"a": "1", "b/c": "2", "b/d*": "3", "l": "->a"}
	first, second := folder(t, files), folder(t, files)
	if err := os.Chmod(filepath.Join(second, "a"), 0o600); err != nil {
		t.Fatal(err)
	}
	one, sumOne := packed(t, first)
	two, sumTwo := packed(t, second)
	if sumOne != sumTwo || !bytes.Equal(one, two) {
		t.Errorf("%+v and %+v", sumOne, sumTwo)
	}
	measured, err := archive.Measure(t.Context(), second, archive.Default)
	if err != nil || measured != sumTwo {
		t.Errorf("measured %+v, %v", measured, err)
	}
	for _, change := range []func() error{
		func() error { return os.WriteFile(filepath.Join(second, "a"), []byte("x"), 0o600) },
		func() error { return os.Chmod(filepath.Join(second, "b/c"), 0o755) },
		func() error { return os.Rename(filepath.Join(second, "b/d"), filepath.Join(second, "b/e")) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		_, sum := packed(t, second)
		if sum.Address == sumTwo.Address {
			t.Errorf("another content has the same address")
		}
		sumTwo = sum
	}
}

func TestFoldersThatCannotBePackedSayWhy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		files map[string]string
		l     archive.Limits
		says  string
	}{
		{"a link out", map[string]string{"l": "->../x"}, archive.Default, "leads out of the folder"},
		{"an absolute link", map[string]string{"l": "->/etc/passwd"}, archive.Default, "relative targets"},
		{"chained links", map[string]string{"a/b/top": "->../..", "out": "->a/b/top/../.."}, archive.Default, "leads out of the folder"},
		{"links in a circle", map[string]string{"a": "->b", "b": "->a"}, archive.Default, "circle"},
		{"too many files", map[string]string{"data/1": "", "data/2": "", "x": ""}, archive.Limits{Bytes: 100, Files: 3}, "the most are in data (2 files"},
		{"too much", map[string]string{"data/1": strings.Repeat("x", 60), "y": strings.Repeat("x", 50)}, archive.Limits{Bytes: 100, Files: 9}, "name what is no code in .berthignore"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := archive.Pack(t.Context(), new(bytes.Buffer), folder(t, c.files), c.l)
			if !archive.IsRefused(err) && (err == nil || !strings.Contains(err.Error(), c.says)) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
	if _, err := archive.Pack(t.Context(), new(bytes.Buffer), filepath.Join(t.TempDir(), "none"), archive.Default); !os.IsNotExist(err) {
		t.Errorf("no such folder: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := archive.Pack(ctx, new(bytes.Buffer), folder(t, map[string]string{"a": ""}), archive.Default); err == nil {
		t.Error("packed although nobody waits")
	}
}
