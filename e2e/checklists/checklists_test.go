package checklists

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root is the top of the repository, and pages the folder of the checklists in it.
const (
	root  = "../.."
	pages = "docs/checklists"
)

// examples are the pages with an example change, and the most files that the change
// may touch, tests and generated documents apart. A number here may only fall.
var examples = map[string]int{"api-endpoint": 3, "gpu-health-check": 2, "quota-kind": 4}

// generated are documents that `make generate` rewrites.
var generated = []string{"docs/reference/", "docs/design/states.md", "docs/operate/checking.md", "docs/glossary.md"}

// change is an example change, read from its patch.
type change struct {
	text  string
	files []string    // names in the repository, new files included
	added []string    // files new in this change
	tests [][2]string // package and pattern of each line "Test:"
}

// next stands for the number of the next migration: other migrations must not make
// the patch stale.
const next = "migrations/NEXT_"

func readChange(t *testing.T, name string) change {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".patch"))
	if err != nil {
		t.Fatal(err)
	}
	migrations, err := filepath.Glob(filepath.Join(root, "db/migrations/*.sql"))
	if err != nil || len(migrations) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	c := change{text: strings.ReplaceAll(string(raw), next, fmt.Sprintf("migrations/%04d_", len(migrations)+1))}
	created := false
	for line := range strings.Lines(c.text) {
		line = strings.TrimSpace(line)
		if test, ok := strings.CutPrefix(line, "Test: "); ok {
			pkg, pattern, _ := strings.Cut(test, " ")
			c.tests = append(c.tests, [2]string{pkg, pattern})
		}
		if file, ok := strings.CutPrefix(line, "+++ b/"); ok {
			c.files = append(c.files, file)
			if created {
				c.added = append(c.added, file)
			}
		}
		created = line == "--- /dev/null"
	}
	if len(c.tests) == 0 || len(c.files) == 0 {
		t.Fatalf("the patch %s names no test, or changes no file", name)
	}
	return c
}

// product lists the files of the change that a person writes and that are no tests.
func (c change) product() []string {
	return slices.DeleteFunc(slices.Clone(c.files), func(file string) bool {
		return strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/testdata/") ||
			slices.ContainsFunc(generated, func(g string) bool { return strings.HasPrefix(file, g) })
	})
}

// packages lists the folders of Go packages that the change touches: its Go files, and files that
// a package embeds from a folder below.
func (c change) packages() []string {
	folders := map[string]bool{}
	for _, file := range c.files {
		switch folder := path.Dir(file); {
		case path.Ext(file) == ".go":
			folders["./"+folder] = true
		case path.Base(folder) == "migrations":
			folders["./"+path.Dir(folder)] = true
		}
	}
	return slices.Sorted(maps.Keys(folders))
}

// apply applies the patch to copies of its files and returns the overlay with which
// the go command reads them in place of the repository's.
func (c change) apply(t *testing.T, name string) (overlay string) {
	t.Helper()
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replace := map[string]string{}
	for _, file := range c.files {
		copied := filepath.Join(dir, file)
		replace[filepath.Join(top, file)] = copied
		if slices.Contains(c.added, file) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(top, file))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(copied), 0o755)
		}
		if err == nil {
			err = os.WriteFile(copied, content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "git", "apply", "-C1", "-")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(c.text)
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir)) // no repository is meant
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the patch does not apply (%v)\n%s%s", err, out, howToRefresh(name))
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// howToRefresh says how a patch follows the code.
func howToRefresh(name string) string {
	patch := "e2e/checklists/testdata/" + name + ".patch"
	return fmt.Sprintf(`
The code has changed around the example of %[1]s/%[2]s.md. To refresh it, in a clean working tree:
    git apply --3way %[3]s        # or --reject; then make the change by hand where it failed
    go test ...                   # the packages that the patch names in its lines "Test:"
    git add -A && { sed '/^diff /,$d' %[3]s; git diff --cached --full-index HEAD; } >/tmp/%[2]s.patch
    git reset --hard && mv /tmp/%[2]s.patch %[3]s
A new migration has the number NEXT in the patch: give it a real one for the tests, and NEXT again for the diff.
Correct the page if the change has other files now.
`, pages, name, patch)
}

// goCommand runs the go command in the repository. Callers let it work on one package
// at a time, because other tests run meanwhile.
func goCommand(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s%s", strings.Join(args, " "), err, out, howToRefresh(name))
	}
}

// The example of a page is a real change: it applies, touches the files that the page
// names and no more, compiles, and passes the tests that know every kind of its sort.
func TestExamplesWorkAndTouchTheFilesThatTheirPagePromises(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Sorted(maps.Keys(examples)) {
		t.Run(name, func(t *testing.T) {
			c := readChange(t, name)
			product := c.product()
			page := readPage(t, name+".md")
			if promised := promise(t, name, page); promised != len(product) || promised > examples[name] {
				t.Errorf("the page promises %d files, the limit is %d, and the example touches %d: %s",
					promised, examples[name], len(product), strings.Join(product, ", "))
			}
			for _, file := range product {
				if slices.Contains(c.added, file) {
					file = path.Dir(file) + "/" // pages name files that exist
				}
				if !strings.Contains(page, "`"+file) {
					t.Errorf("the page does not name %s, which its example touches", file)
				}
			}
			overlay := c.apply(t, name)
			goCommand(t, name, append([]string{"build", "-p=1", "-overlay", overlay, "-o", os.DevNull}, c.packages()...)...)
			for _, test := range c.tests {
				goCommand(t, name, "test", "-p=1", "-vet=off", "-timeout=30m", "-overlay", overlay, "-run", "^("+test[1]+")$", test[0])
			}
		})
	}
}

var promised = regexp.MustCompile(`\((\d+) files\)`)

// promise reads how many files a page says that its example touches.
func promise(t *testing.T, name, page string) int {
	t.Helper()
	for line := range strings.Lines(page) {
		if m := promised.FindStringSubmatch(line); m != nil && strings.Contains(line, "testdata/"+name+".patch") {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s/%s.md has no line with testdata/%s.patch and (N files)", pages, name, name)
	return 0
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, pages, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// mostLines is a screen.
const mostLines = 40

var (
	quotedPath = regexp.MustCompile("`((?:[\\w.-]+/)+[\\w.-]*|[\\w-]+\\.(?:go|md))`")
	quotedTest = regexp.MustCompile("`(Test\\w+)`")
)

// A checklist names files and tests that exist, and fits on a screen.
func TestChecklistsNameWhatExists(t *testing.T) {
	t.Parallel()
	tests := testNames(t)
	files, err := filepath.Glob(filepath.Join(root, pages, "*.md"))
	if err != nil || len(files) < 7 {
		t.Fatalf("found %d pages (%v); want at least 7", len(files), err)
	}
	index := readPage(t, "README.md")
	for _, file := range files {
		name := filepath.Base(file)
		page := readPage(t, name)
		if lines := strings.Count(page, "\n"); lines > mostLines {
			t.Errorf("%s has %d lines; allowed: %d", name, lines, mostLines)
		}
		if name != "README.md" && !strings.Contains(index, "("+name+")") {
			t.Errorf("README.md has no link to %s", name)
		}
		for _, m := range quotedPath.FindAllStringSubmatch(page, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s names %s, which does not exist", name, m[1])
			}
		}
		for _, m := range quotedTest.FindAllStringSubmatch(page, -1) {
			if !tests[m[1]] {
				t.Errorf("%s names %s, which is not a test", name, m[1])
			}
		}
	}
}

var declaredTest = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// testNames lists the test functions of the repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin"):
			return filepath.SkipDir
		case !strings.HasSuffix(file, "_test.go"):
			return nil
		}
		raw, err := os.ReadFile(file)
		for _, m := range declaredTest.FindAllSubmatch(raw, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
