package backup_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/backup"
	"berth/internal/lib/sealer"
)

// elsewhere returns the options to restore the site's backup into an empty database and an empty store.
func (s *site) elsewhere() backup.RestoreOptions {
	return backup.RestoreOptions{Dir: s.dir, DatabaseURL: dbtest.EmptyURL(s.t), BlobURL: "file://" + s.t.TempDir(), Keys: s.keys}
}

// count returns a number from a database.
func count(t *testing.T, url, sql string) (n int) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
	return n
}

// tables counts the tables of a database.
const tables = `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`

// TestARestoredClusterIsQuarantinedUntilItIsAdopted checks that rows and objects come back, that no leader is
// elected before the adoption, and that ids leap.
func TestARestoredClusterIsQuarantinedUntilItIsAdopted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.exec(`INSERT INTO doomed_objects (prefix) VALUES ('x')`)
	lease := s.db.Leader.OpenLease(db.LeaseLeader, "old")
	if _, ok, err := lease.Acquire(t.Context(), time.Hour); !ok || err != nil {
		t.Fatalf("%v, %v", ok, err)
	}
	m := s.create()
	o := s.elsewhere()
	r, err := backup.Restore(t.Context(), o)
	if err != nil || r.Copied != 2 || r.Cluster != m.Cluster {
		t.Fatalf("restored %+v, %v", r, err)
	}
	object := filepath.Join(strings.TrimPrefix(o.BlobURL, "file://"), "tenants/a/logs/two")
	if text, err := os.ReadFile(object); err != nil || string(text) != "second" {
		t.Errorf("the object is %q, %v", text, err)
	}
	if n := count(t, o.DatabaseURL, `SELECT count(*) FROM doomed_objects`); n != 1 {
		t.Errorf("%d rows came back, want 1", n)
	}
	if err := db.Migrate(t.Context(), o.DatabaseURL); err != nil {
		t.Fatalf("a start of berthd: %v", err)
	}
	d := dbtest.Open(t, o.DatabaseURL, db.Options{})
	q, quarantined, err := d.Cluster.Quarantine(t.Context())
	if err != nil || !quarantined || !q.Taken.Equal(m.StartedAt.Truncate(time.Microsecond)) {
		t.Errorf("quarantine is %+v, %v, %v", q, quarantined, err)
	}
	if a, err := d.Cluster.Admission(t.Context()); err != nil || !a.Paused || !a.Quarantined || !strings.Contains(a.Reason, "berthd backup adopt") {
		t.Errorf("admission is %+v, %v", a, err)
	}
	if _, err := d.Cluster.SetAdmission(t.Context(), false, "", "test"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("admission is resumed in the quarantine: %v", err)
	}
	for _, holder := range []string{"old", "new"} { // the one of the dump, which lives on, too
		for _, name := range []string{db.LeaseLeader, "cloud-sweep/lab"} {
			if _, ok, err := d.Leader.OpenLease(name, holder).Acquire(t.Context(), time.Hour); ok || err != nil {
				t.Errorf("%s holds lease %s in the quarantine, err %v", holder, name, err)
			}
		}
	}
	if list, err := d.Objects.Doomed(t.Context(), 10); err != nil || len(list) != 0 {
		t.Errorf("objects are removed in the quarantine: %v, %v", list, err)
	}
	before := count(t, o.DatabaseURL, `SELECT incarnation FROM cluster`)
	if _, err := backup.Adopt(t.Context(), o.DatabaseURL); err != nil {
		t.Fatal(err)
	}
	if after := count(t, o.DatabaseURL, `SELECT incarnation FROM cluster`); after <= before || before < 2 {
		t.Errorf("incarnation %d, and %d after the adoption: neither restore nor adoption may be without a leap", before, after)
	}
	term, ok, err := d.Leader.OpenLease(db.LeaseLeader, "new").Acquire(t.Context(), time.Hour)
	if !ok || err != nil || term.Epoch < 10_000_000 {
		t.Errorf("after the adoption: term %+v, %v, %v", term, ok, err)
	}
	if _, leapt, err := d.Leader.Incarnate(t.Context()); leapt || err != nil {
		t.Errorf("the first leader leaps once more: %v, %v", leapt, err)
	}
	if a, err := d.Cluster.Admission(t.Context()); err != nil || a.Paused {
		t.Errorf("after the adoption admission is %+v, %v", a, err)
	}
	if _, err := backup.Adopt(t.Context(), o.DatabaseURL); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a second adoption: %v", err)
	}
}

// TestARestoreIsRefused checks that a restore that must not happen leaves the database without tables.
func TestARestoreIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.exec(`INSERT INTO secrets (tenant, name, key_id, sealed) VALUES ('default', 'x', $1, 'y')`, s.keys.Current())
	s.create()
	other := filepath.Join(t.TempDir(), "other")
	if err := sealer.Make(other); err != nil {
		t.Fatal(err)
	}
	wrong, err := sealer.Load(other)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile(filepath.Join(s.dir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	copied := func(t *testing.T) string {
		dir := filepath.Join(t.TempDir(), "copy")
		if err := os.CopyFS(dir, os.DirFS(s.dir)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for name, c := range map[string]struct {
		edit   func(t *testing.T, o *backup.RestoreOptions)
		says   string
		tables bool // the database has some, and keeps them
	}{
		"another key": {func(_ *testing.T, o *backup.RestoreOptions) { o.Keys = wrong }, "lacks " + s.keys.Current(), false},
		"no key":      {func(_ *testing.T, o *backup.RestoreOptions) { o.Keys = nil }, "--secret-key-file", false},
		"no store":    {func(_ *testing.T, o *backup.RestoreOptions) { o.BlobURL = "" }, "--blob-url", false},
		"damage": {func(t *testing.T, o *backup.RestoreOptions) {
			o.Dir = copied(t)
			if err := os.Remove(filepath.Join(o.Dir, "objects/tenants/a/logs/one")); err != nil {
				t.Fatal(err)
			}
		}, "is damaged", false},
		"other schema": {func(t *testing.T, o *backup.RestoreOptions) {
			o.Dir = copied(t)
			text := strings.Replace(string(manifest), `"schema_version": `, `"schema_version": 9`, 1)
			if err := os.WriteFile(filepath.Join(o.Dir, "manifest.json"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "has schema version 9", false},
		"tables": {func(t *testing.T, o *backup.RestoreOptions) { o.DatabaseURL = dbtest.URL(t) }, "restore into an empty one", true},
		"session": {func(t *testing.T, o *backup.RestoreOptions) {
			pool, err := pgxpool.New(t.Context(), o.DatabaseURL)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			if err := pool.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, "stop all of berthd", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := backup.RestoreOptions{Dir: s.dir, DatabaseURL: dbtest.EmptyURL(t), BlobURL: "file://" + t.TempDir(), Keys: s.keys}
			c.edit(t, &o)
			if _, err := backup.Restore(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
			if n := count(t, o.DatabaseURL, tables); n > 0 != c.tables {
				t.Errorf("the database has %d tables", n)
			}
		})
	}
}

// TestARestoreKeepsLaterUploads checks that a restore into a store that survived keeps an object that has grown since the
// backup, and replaces one of the same size whose content is not that of the backup.
func TestARestoreKeepsLaterUploads(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.put("tenants/a/logs/three", "third")
	s.create()
	o := s.elsewhere()
	o.BlobURL = "file://" + s.blobs
	write := func(key, content string) {
		if err := os.WriteFile(filepath.Join(s.blobs, key), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("tenants/a/logs/one", "first and more")
	write("tenants/a/logs/two", "broken")
	r, err := backup.Restore(t.Context(), o)
	if err != nil || r.Changed != 1 || r.Replaced != 1 || r.Present != 1 || r.Copied != 0 {
		t.Errorf("restored %+v, %v", r, err)
	}
	for key, want := range map[string]string{"one": "first and more", "two": "second", "three": "third"} {
		if text, err := os.ReadFile(filepath.Join(s.blobs, "tenants/a/logs", key)); err != nil || string(text) != want {
			t.Errorf("object %s is %q, %v; want %q", key, text, err, want)
		}
	}
}
