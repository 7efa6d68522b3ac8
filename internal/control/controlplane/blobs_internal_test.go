package controlplane

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/blob"
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

// A start with another store than the cluster's is refused, and leaves no id in it: an empty folder may be the mount
// point of the right one.
func TestAStartOnAnotherStoreIsRefused(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	start := func(dir string) error {
		cfg := Default()
		cfg.DatabaseURL, cfg.BlobURL = "postgres://localhost/berth", "file://"+dir
		c, err := New(cfg, Options{})
		if err != nil {
			t.Fatal(err)
		}
		a := &assembly{ControlPlane: c, db: d}
		err = a.openBlobs(t.Context())
		return errors.Join(err, a.blobs.Close())
	}
	first, second := t.TempDir(), t.TempDir()
	if err := errors.Join(start(first), start(first)); err != nil {
		t.Fatal(err)
	}
	if err := start(second); !errors.Is(err, blob.ErrOtherStore) {
		t.Fatalf("a start on an empty folder: %v", err)
	}
	if entries, err := os.ReadDir(second); err != nil || len(entries) > 0 {
		t.Errorf("the refused start leaves %v, %v", entries, err)
	}
	id, before, err := AdoptStore(t.Context(), d.Pool().Config().ConnString(), "file://"+second)
	if err != nil || id == before || before == "" {
		t.Fatalf("adopted %q after %q, %v", id, before, err)
	}
	if err := start(second); err != nil {
		t.Errorf("a start on the adopted store: %v", err)
	}
	if err := start(first); !errors.Is(err, blob.ErrOtherStore) {
		t.Errorf("a start on the store before: %v", err)
	}
}
