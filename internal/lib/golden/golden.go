// Package golden compares texts that a test produces with files in the
// repository: generated documents and recorded results. A test binary that
// imports it has the flag -update, which writes the files.
//
//	golden.Check(t, "testdata/plan.txt", got)
package golden

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the generated documents and recorded results of this package's tests")

// Updating reports whether the test was started with -update. Call it after the
// flags are parsed: from a test, not from an initializer.
func Updating() bool { return *update }

// Check fails the test unless the file at path, relative to the package's
// folder, holds got. With -update it writes got to the file instead.
func Check(t testing.TB, path, got string) {
	t.Helper()
	if *update {
		Write(t, path, got)
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; -update writes it", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs from what the code produces; -update rewrites it (-file +code):\n%s", path, diff)
	}
}

// Write writes got to the file at path.
func Write(t testing.TB, path, got string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
		t.Fatal(err)
	}
}
