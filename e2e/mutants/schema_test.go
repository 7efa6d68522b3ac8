package mutants

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const migrations = "db/migrations/"

// definition matches a statement that creates what a later migration may create again.
var definition = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?(?:CONSTRAINT )?(?:FUNCTION|TRIGGER|VIEW) (\w+)`)

// A later migration may replace the function or the trigger that a patch breaks. The database then has the later
// definition, and the patch breaks nothing.
func TestPatchesOfTheSchemaBreakTheDefinitionInForce(t *testing.T) {
	t.Parallel()
	patches, err := filepath.Glob("*.patch")
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob("../../" + migrations + "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for _, patch := range patches {
		file := migrationOf(t, patch)
		if file == "" {
			continue
		}
		for _, name := range brokenDefinitions(t, patch, file) {
			looked++
			for _, later := range all {
				if filepath.Base(later) > file && defines(t, later, name) {
					t.Errorf("%s breaks %s in %s, which %s replaces", patch, name, file, filepath.Base(later))
				}
			}
		}
	}
	if looked < 10 {
		t.Errorf("found %d definitions that patches break: the search is broken", looked)
	}
}

// migrationOf returns the name of the migration that a patch changes, or nothing.
func migrationOf(t *testing.T, patch string) string {
	t.Helper()
	for line := range strings.SplitSeq(read(t, patch), "\n") {
		if name, ok := strings.CutPrefix(line, "+++ b/"+migrations); ok {
			return name
		}
	}
	return ""
}

var hunk = regexp.MustCompile(`^@@ -(\d+)`)

// brokenDefinitions returns the names of the definitions that hold the lines which a patch removes from a migration.
// Line numbers of a patch may be old, so the removed line nearest to its place counts.
func brokenDefinitions(t *testing.T, patch, file string) (names []string) {
	t.Helper()
	text := read(t, "../../"+migrations+file)
	at, here := 0, false
	for line := range strings.SplitSeq(read(t, patch), "\n") {
		if path, ok := strings.CutPrefix(line, "+++ "); ok {
			here = path == "b/"+migrations+file
			continue
		}
		if m := hunk.FindStringSubmatch(line); m != nil {
			first, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			at = offset(text, max(first-1, 0))
		}
		if !here || !strings.HasPrefix(line, "-") || strings.HasPrefix(line, "---") {
			continue
		}
		place, ok := nearest(text, line[1:]+"\n", at)
		if !ok {
			t.Errorf("%s: %s has no line %q", patch, file, line[1:])
			continue
		}
		found := definition.FindAllStringSubmatch(text[:place+len(line)], -1)
		if len(found) > 0 {
			names = append(names, found[len(found)-1][1])
		}
	}
	return names
}

// nearest returns the index of the occurrence of a line that is nearest to a place.
func nearest(text, line string, at int) (place int, found bool) {
	before := strings.LastIndex(text[:at], line)
	after := strings.Index(text[at:], line)
	switch {
	case after >= 0 && (before < 0 || after <= at-before):
		return at + after, true
	case before >= 0:
		return before, true
	}
	return 0, false
}

// offset returns the index of a line of a text, counted from 0.
func offset(text string, line int) int {
	at := 0
	for range line {
		next := strings.IndexByte(text[at:], '\n')
		if next < 0 {
			return at
		}
		at += next + 1
	}
	return at
}

func defines(t *testing.T, path, name string) bool {
	t.Helper()
	for _, m := range definition.FindAllStringSubmatch(read(t, path), -1) {
		if m[1] == name {
			return true
		}
	}
	return false
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
