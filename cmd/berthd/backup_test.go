package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/db/dbtest"
	"berth/internal/lib/sealer"
)

// TestABackupFromCreateToAdopt runs the commands of docs/operate/backup.md in their order.
func TestABackupFromCreateToAdopt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	if err := sealer.Make(keys); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "blobs/tenants"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "blobs/tenants/x"), []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"BERTH_DATABASE_URL": dbtest.URL(t), "BERTH_BLOB_URL": "file://" + filepath.Join(dir, "blobs"),
		"BERTH_SECRET_KEY_FILE": keys}
	run := func(want string, args ...string) {
		t.Helper()
		out, _, err := berthd(t, env, args...)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("berthd %s: %v\n%s\nwant %q", strings.Join(args, " "), err, out, want)
		}
	}
	refuses := func(want string, args ...string) {
		t.Helper()
		if _, _, err := berthd(t, env, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("berthd %s: %v, want %q", strings.Join(args, " "), err, want)
		}
	}
	to := filepath.Join(dir, "one")
	run("objects   1 objects with 5 bytes, copied from file://"+dir+"/blobs", "backup", "create", to)
	run("verified "+to, "backup", "verify", to)
	refuses("is no backup", "backup", "verify", dir)
	refuses("restore into an empty one", "backup", "restore", to)
	refuses("only a restored one can be adopted", "backup", "adopt")
	env["BERTH_DATABASE_URL"], env["BERTH_BLOB_URL"] = dbtest.EmptyURL(t), "file://"+filepath.Join(dir, "elsewhere")
	run("store     1 objects copied, 0 were there", "backup", "restore", to)
	run("0 containers were started after the backup", "backup", "adopt")
	delete(env, "BERTH_BLOB_URL")
	refuses("--no-objects", "backup", "create", filepath.Join(dir, "two"))
	run("objects   no object store", "backup", "create", "--no-objects", filepath.Join(dir, "two"))
	delete(env, "BERTH_DATABASE_URL")
	refuses("no database", "backup", "create", filepath.Join(dir, "two"))
}
