package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// placeAccounts places the content in a new file and returns its path.
func placeAccounts(t *testing.T, a *accountFiles, content string) string {
	t.Helper()
	at := filepath.Join(t.TempDir(), "passwd")
	placeAccountsAt(t, a, at, content)
	return at
}

func placeAccountsAt(t *testing.T, a *accountFiles, at, content string) {
	t.Helper()
	if err := a.place(at, []byte(content)); err != nil {
		t.Fatal(err)
	}
	wantAccounts(t, at, content)
}

func wantAccounts(t *testing.T, at, content string) {
	t.Helper()
	got, err := os.ReadFile(at)
	if err != nil || string(got) != content {
		t.Fatalf("the file has %q (%v), want %q", got, err, content)
	}
	info, err := os.Stat(at)
	if err != nil || info.Mode() != 0o444 {
		t.Fatalf("the file's mode is %v (%v), want %v", info.Mode(), err, os.FileMode(0o444))
	}
}

func sameFile(t *testing.T, one, other string) bool {
	t.Helper()
	a, errA := os.Stat(one)
	b, errB := os.Stat(other)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	return os.SameFile(a, b)
}

func TestMembersWithEqualAccountsShareAFile(t *testing.T) {
	t.Parallel()
	a := openAccounts(t.TempDir())
	one, two, three := placeAccounts(t, a, "root"), placeAccounts(t, a, "root"), placeAccounts(t, a, "root, berth")
	if !sameFile(t, one, two) {
		t.Error("two members with equal accounts have a file each")
	}
	if sameFile(t, one, three) {
		t.Error("two members with different accounts have the same file")
	}
}

func TestAReplacedFileOfAccountsLeavesOtherMembersAsTheyAre(t *testing.T) {
	t.Parallel()
	a := openAccounts(t.TempDir())
	one, two := placeAccounts(t, a, "root"), placeAccounts(t, a, "root")
	placeAccountsAt(t, a, one, "root, berth")
	placeAccountsAt(t, a, one, "root, berth") // a repeated try
	wantAccounts(t, two, "root")

	placeAccountsAt(t, a, one, "root")
	if err := os.RemoveAll(a.folder); err != nil { // without the folder there is nothing to link to
		t.Fatal(err)
	}
	placeAccountsAt(t, a, one, "root, berth")
	wantAccounts(t, two, "root")
}

func TestTheFolderOfAccountsIsBounded(t *testing.T) {
	t.Parallel()
	a := openAccounts(t.TempDir())
	first := placeAccounts(t, a, "0")
	for i := range mostAccounts {
		placeAccounts(t, a, fmt.Sprint(i+1))
	}
	entries, err := os.ReadDir(a.folder)
	if err != nil || len(entries) != 1 {
		t.Errorf("the folder has %d files after %d contents (%v), want 1", len(entries), mostAccounts+1, err)
	}
	wantAccounts(t, first, "0")
	placeAccounts(t, a, "0")
}

func TestAccountsOfAnEarlierProcessAreWrittenAgain(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	before := openAccounts(state)
	placeAccounts(t, before, "root")
	for name := range before.written { // as after a crash of the machine
		if err := os.Chmod(filepath.Join(before.folder, name), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(before.folder, name), 0); err != nil {
			t.Fatal(err)
		}
	}
	placeAccounts(t, openAccounts(state), "root")
}
