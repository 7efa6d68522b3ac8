package archive_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/lib/archive"
)

// names lists the files and links that a folder is packed to.
func names(t *testing.T, dir string) []string {
	t.Helper()
	text, _ := packed(t, dir)
	var got []string
	_, err := archive.Read(bytes.NewReader(text), archive.Default, func(e archive.Entry, _ io.Reader) error {
		if e.Kind != archive.Folder {
			got = append(got, e.Name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	return got
}

// git runs git as one that has no configuration of its own.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "HOME="+dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %v: %v", args, err)
	}
	return string(out)
}

// The result is compared with git's own for the same tree.
func TestGitIgnoreMeansWhatGitMeans(t *testing.T) {
	t.Parallel()
	tree := map[string]string{}
	for _, name := range []string{
		"a.py", "a.pyc", "b.pyc", "keep.pyc", "#hash", "!bang", "trailing ", "sp ace", "build/x", "src/build/x", "src/build.py", "doc/a/b/c.txt", "doc/c.txt",
		"data/raw/1.bin", "data/raw/2.bin", "data/keep/1.bin", "log1.txt", "logA.txt", "log-.txt", "log].txt", "x/y/z/deep", "y/z/deep", "foo/bar", "foobar",
		"src/foo/bar", "anchored", "src/anchored", "star.a.b", "q1", "q22", "ü.txt", "uu.txt", "back\\slash", "venv/lib/p.py", "src/venv/p.py", "src/.gitignore2",
		"tmp/only/here", "x/tmp/only/here", "neg/a", "neg/b", "neg/sub/a", "case/A.TXT", "end/a/b", "end/c", "brackets[1]", "range5", "rangex",
	} {
		tree[name] = name
	}
	tree[".gitignore"] = strings.Join([]string{
		"# a comment", "", "*.pyc", "!keep.pyc", `\#hash`, `\!bang`, `trailing\ `, "sp ace   ", "build/", "/anchored", "doc/**/c.txt", "data/*", "!data/keep/",
		"log[0-9].txt", "log[!A-Z0-9].txt", "x/y", "**/foo/bar", "star.*", "q?", "ü*", `back\\slash`, "venv", "tmp/only/", "neg/*", "!neg/b",
		"case/a.txt", "end/**", "[unclosed", `brackets\[1]`, "range[[:digit:]]", "\ufeffx", "trail\\", "/", "**", "!**/",
	}[:32], "\n") + "\n"
	tree["src/.gitignore"] = "/foo\n!build/\n*.py\r\n"
	tree["neg/sub/.gitignore"] = "!a\n"
	dir := folder(t, tree)
	git(t, dir, "init", "-q")
	want := strings.Split(strings.TrimSuffix(git(t, dir, "ls-files", "--others", "--exclude-standard", "-z"), "\x00"), "\x00")
	slices.Sort(want)
	if len(want) < 10 || len(want) > len(tree)-20 {
		t.Fatalf("git lists %d of %d files: the tree tells little", len(want), len(tree))
	}
	if diff := cmp.Diff(want, names(t, dir)); diff != "" {
		t.Errorf("(-git +berth):\n%s", diff)
	}
}

func TestBerthIgnoreDecidesOverGitIgnore(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{
		".gitignore": "*.bin\nsecret\n", ".berthignore": "!model.bin\nnotebooks/\n*.md\n", "model.bin": "", "other.bin": "", "a.md": "", "notebooks/x": "",
		"sub/.berthignore": "!a.md\n", "sub/a.md": "", "secret": "", ".git/config": "", "sub/.git": "", ".berth/progress": "", "train.py": "",
	})
	want := []string{".berthignore", ".gitignore", "model.bin", "sub/.berthignore", "sub/a.md", "train.py"}
	if diff := cmp.Diff(want, names(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The files of the folders above count up to the repository's root, and not
// beyond; a folder that is named is packed, even if they name it too.
func TestTheRepositorysRulesCountInAFolderOfIt(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{
		".gitignore": "*.py\n", "repo/.git/HEAD": "", "repo/.gitignore": "__pycache__/\n/src/local\nlocal2\nsrc\n",
		"repo/src/train.py": "", "repo/src/__pycache__/x": "", "repo/src/local": "", "repo/src/deep/local2": "", "repo/src/deep/local": "",
	})
	want := []string{"deep/local", "train.py"}
	if diff := cmp.Diff(want, names(t, filepath.Join(dir, "repo", "src"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("repo/src", link); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, names(t, link)); diff != "" {
		t.Errorf("by a link to it (-want +got):\n%s", diff)
	}
}
