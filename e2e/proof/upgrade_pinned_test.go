package proof_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMigrationsOfThePreviousVersionAreUnchanged compares the migrations of the commit that make upgrade-test upgrades
// from with the migrations of this tree. A berthd refuses a database whose migrations had another content than its own, so a
// changed file would end every upgrade.
func TestMigrationsOfThePreviousVersionAreUnchanged(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../scripts/previous-version")
	if err != nil {
		t.Fatal(err)
	}
	commit := string(regexp.MustCompile(`(?m)^[0-9a-f]{40}$`).Find(b))
	if commit == "" {
		t.Fatalf("scripts/previous-version names no commit by its 40 digits:\n%s", b)
	}
	git := func(args ...string) ([]byte, error) {
		return exec.Command("git", append([]string{"-C", "../.."}, args...)...).Output()
	}
	shallow, err := git("rev-parse", "--is-shallow-repository")
	if err != nil || strings.TrimSpace(string(shallow)) != "false" {
		t.Skipf("this clone has no history to read the commit from: %s %v", shallow, err)
	}
	list, err := git("ls-tree", "--name-only", commit, "db/migrations/")
	if err != nil {
		t.Fatalf("the history has no commit %s: %v", commit, err)
	}
	names := strings.Fields(string(list))
	if len(names) < 65 {
		t.Fatalf("commit %s has %d migrations", commit, len(names))
	}
	for _, name := range names {
		was, err := git("show", commit+":"+name)
		if err != nil {
			t.Fatal(err)
		}
		is, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil || !bytes.Equal(was, is) {
			t.Errorf("%s has changed since commit %.12s: write a new migration instead (%v)", name, commit, err)
		}
	}
}
