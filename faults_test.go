package berth_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// faults is how many faults the design counts with: F1 to F56.
const faults = 56

// told are faults that need hardware or a provider that tests do not have: a
// sentence describes the substitute.
var told = []int{38, 39, 40, 41, 42, 43}

// unproved are faults that may still be open in the table.
var unproved = []int{}

// The table in docs/design/failures.md names the tests of each fault; the tests exist.
func TestEveryFaultHasATestThatExists(t *testing.T) {
	t.Parallel()
	tests := testsInTree(t)
	rows := faultRows(t)
	name := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")
	for n := 1; n <= faults; n++ {
		proof, ok := rows[n]
		if !ok {
			t.Errorf("F%d is not in the table", n)
			continue
		}
		if proof == "open" {
			if !slices.Contains(unproved, n) {
				t.Errorf("F%d is open; name the tests that prove it", n)
			}
			continue
		}
		named := name.FindAllStringSubmatch(proof, -1)
		if len(named) == 0 && !slices.Contains(told, n) {
			t.Errorf("F%d names no test: %q", n, proof)
		}
		for _, m := range named {
			if !tests[m[1]] {
				t.Errorf("F%d names %s, which no file defines", n, m[1])
			}
		}
	}
}

// faultRows are the cells with the proof of each fault, by its number.
func faultRows(t *testing.T) map[int]string {
	t.Helper()
	b, err := os.ReadFile("docs/design/failures.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[int]string{}
	for _, line := range strings.Split(string(b), "\n") {
		cells := strings.Split(line, "|")
		var n int
		if len(cells) != 5 {
			continue
		}
		if _, err := fmt.Sscanf(strings.TrimSpace(cells[1]), "F%d", &n); err != nil {
			continue
		}
		if _, twice := rows[n]; twice {
			t.Errorf("F%d is in the table twice", n)
		}
		rows[n] = strings.TrimSpace(cells[3])
	}
	return rows
}

// testsInTree are the names of all test functions of the module.
func testsInTree(t *testing.T) map[string]bool {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
	names := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range function.FindAllStringSubmatch(string(b), -1) {
			names[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
