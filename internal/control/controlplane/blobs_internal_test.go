package controlplane

import (
	"os"
	"path/filepath"
	"testing"

	"berth/db"
	"berth/db/dbtest"
)

// A folder of an earlier version has no id.
func TestTheStartGivesTheObjectStoreAnID(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := Default()
	cfg.DatabaseURL, cfg.BlobURL = "postgres://localhost/berth", "file://"+dir
	c, err := New(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := &assembly{ControlPlane: c, db: dbtest.DB(t, db.Options{})}
	if err := a.openBlobs(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer a.blobs.Close()
	if _, err := os.Stat(filepath.Join(dir, "@berth-store")); err != nil {
		t.Error(err)
	}
}
