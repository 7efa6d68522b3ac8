package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth"
	"berth/wire"
)

// folder creates a member's folder as a container leaves it.
func folder(t *testing.T, state, name string) {
	t.Helper()
	for file, text := range map[string]string{
		"workspace/a.txt": "a", "checkpoint/step-1/x": "x", "input-0/data": "d", "rank.json": "{}", "execs/1": "", "log.json": "{}",
	} {
		path := filepath.Join(scratchDir(state, name), file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAKeptFolderIsTakenOnceWithoutTheMemoOfItsMember(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	k := newKeptFolders(state)
	folder(t, state, "failed")
	if ok, err := k.take(7, "debug"); ok || err != nil {
		t.Fatalf("taken before it was kept: %t, %v", ok, err)
	}
	for range 2 { // the agent may have died after the first one
		if err := k.put("failed", 7); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(scratchDir(state, "failed")); !os.IsNotExist(err) {
		t.Errorf("the failed member still has its folder: %v", err)
	}
	if ok, _ := k.take(8, "other"); ok {
		t.Error("the hold of another member took the folder")
	}
	for range 2 {
		if ok, err := k.take(7, "debug"); !ok || err != nil {
			t.Fatalf("not taken: %t, %v", ok, err)
		}
	}
	if ok, _ := k.take(7, "second"); ok {
		t.Error("two members have the folder")
	}
	entries, err := os.ReadDir(scratchDir(state, "debug"))
	if err != nil {
		t.Fatal(err)
	}
	names := ""
	for _, e := range entries {
		names += e.Name() + " "
	}
	if names != "checkpoint input-0 workspace " {
		t.Errorf("the debug job has %s", names)
	}
}

func TestOnlyTheOrderToForgetKeepsAFolder(t *testing.T) {
	t.Parallel()
	k := newKeptFolders(t.TempDir())
	k.hear([]wire.Assignment{
		{Alloc: 1, Orders: berth.Orders{Forget: true, Keep: true}},
		{Alloc: 2, Orders: berth.Orders{Forget: true}},
		{Alloc: 3, Orders: berth.Orders{Keep: true}},
	})
	if !k.wants(1) || k.wants(2) || k.wants(3) {
		t.Errorf("kept are %t, %t, %t", k.wants(1), k.wants(2), k.wants(3))
	}
	k.drop(1)
	if k.wants(1) {
		t.Error("a member that is gone is kept")
	}
}

func TestAFolderThatNoDebugJobTakesIsRemoved(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	k := newKeptFolders(state)
	if n, err := k.sweep(t.Context(), 0); n != 0 || err != nil {
		t.Errorf("without folders: %d, %v", n, err)
	}
	folder(t, state, "failed")
	old := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(scratchDir(state, "failed"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := k.put("failed", 7); err != nil {
		t.Fatal(err)
	}
	if n, err := k.sweep(t.Context(), keptFor); n != 0 || err != nil {
		t.Errorf("a folder just kept, of a member that ran for days: %d removed, %v", n, err)
	}
	if err := os.Chtimes(k.dir(7), old, old); err != nil {
		t.Fatal(err)
	}
	if n, err := k.sweep(t.Context(), keptFor); n != 1 || err != nil {
		t.Errorf("%d removed, %v", n, err)
	}
	if ok, _ := k.take(7, "debug"); ok {
		t.Error("a removed folder is taken")
	}
}
