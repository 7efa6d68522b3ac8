package golden_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/lib/golden"
)

// failures records the failures of Check, which would end the test that watches
// it.
type failures struct {
	testing.TB
	texts []string
}

func (f *failures) Helper() {}

func (f *failures) Errorf(format string, args ...any) {
	f.texts = append(f.texts, fmt.Sprintf(format, args...))
}

func TestCheckNamesTheFileAndTheDifference(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "doc.md")
	if err := os.WriteFile(path, []byte("one\ntwo\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := &failures{TB: t}
	golden.Check(f, path, "one\ntwo\n")
	if len(f.texts) != 0 {
		t.Errorf("an equal text fails: %q", f.texts)
	}
	golden.Check(f, path, "one\nthree\n")
	if len(f.texts) != 1 || !strings.Contains(f.texts[0], path) || !strings.Contains(f.texts[0], "three") {
		t.Errorf("a different text gives %q", f.texts)
	}
}
