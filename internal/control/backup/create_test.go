package backup_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/backup"
	"berth/internal/control/blob"
	"berth/internal/lib/sealer"
)

// site is an installation with a database and an object store in a folder.
type site struct {
	t     *testing.T
	url   string
	blobs string
	pool  *pgxpool.Pool
	db    *db.DB
	keys  *sealer.Keys
	key   string // in hexadecimal digits
	dir   string // of the next backup
}

func newSite(t *testing.T) *site {
	t.Helper()
	dir := t.TempDir()
	s := &site{t: t, url: dbtest.URL(t), blobs: filepath.Join(dir, "blobs"), dir: filepath.Join(dir, "backups", "one")}
	s.db = dbtest.Open(t, s.url, db.Options{})
	s.pool = dbtest.Beside(t, s.db)
	file := filepath.Join(dir, "keys")
	if err := sealer.Make(file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s.key = strings.TrimSpace(string(text))
	if s.keys, err = sealer.Load(file); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{filepath.Dir(s.dir), s.blobs} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// put stores an object.
func (s *site) put(key, content string) {
	s.t.Helper()
	store, err := blob.Open(s.t.Context(), "file://"+s.blobs)
	if err != nil {
		s.t.Fatal(err)
	}
	defer store.Close()
	if err := store.Create(s.t.Context(), key, []byte(content)); err != nil {
		s.t.Fatal(err)
	}
}

// exec executes a statement.
func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.pool.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatalf("%v\n%s", err, sql)
	}
}

// options returns the options of a backup of the site.
func (s *site) options() backup.Options {
	return backup.Options{Dir: s.dir, DatabaseURL: s.url, BlobURL: "file://" + s.blobs, Keys: s.keys, Actor: "test", Version: "1.2.3"}
}

// create takes a backup with two objects.
func (s *site) create() backup.Manifest {
	s.t.Helper()
	s.put("tenants/a/logs/one", "first")
	s.put("tenants/a/logs/two", "second")
	m, err := backup.Create(s.t.Context(), s.options())
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

// files lists the files below the folder of backups.
func (s *site) files() (list []string) {
	s.t.Helper()
	root := filepath.Dir(s.dir)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(root, path)
			list = append(list, rel)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// TestABackupIsWhole checks the files of a backup and its manifest, that no key is among them, and that an
// existing folder is left alone.
func TestABackupIsWhole(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.put("clusters/x/watermarks/1", "of the running cluster")
	s.put("tenants/a/x.18d3f2a9c0ffee00.tmp", "unfinished")
	m := s.create()
	want := []string{"one/database.dump", "one/manifest.json", "one/objects/tenants/a/logs/one", "one/objects/tenants/a/logs/two",
		"one/objects.jsonl"}
	if got := s.files(); !slices.Equal(got, want) {
		t.Errorf("the backup has the files %q, want %q", got, want)
	}
	if info, err := os.Stat(filepath.Join(s.dir, "database.dump")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the dump has the mode %v, %v", info.Mode(), err)
	}
	for _, name := range s.files() {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(s.dir), name))
		raw, _ := hex.DecodeString(s.key)
		if err != nil || strings.Contains(string(text), s.key) || strings.Contains(string(text), string(raw)) {
			t.Errorf("%s has the key, or cannot be read: %v", name, err)
		}
	}
	id, err := s.db.Cluster.ID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m.Cluster != id || m.Schema < 66 || m.Berth != "1.2.3" || !slices.Equal(m.Keys, s.keys.IDs()) || m.EndedAt.Before(m.StartedAt) ||
		m.Objects.Kind != backup.ObjectsCopied || m.Objects.Count != 2 || m.Objects.Bytes != 11 {
		t.Errorf("the manifest is %+v", m)
	}
	got, err := backup.Verify(t.Context(), s.dir)
	if err != nil || got.Database != m.Database || got.Objects != m.Objects {
		t.Errorf("verified %+v, %v", got, err)
	}
	var whole bool
	if err := s.pool.QueryRow(t.Context(), `SELECT whole FROM backups WHERE ended_at IS NOT NULL`).Scan(&whole); err != nil || !whole {
		t.Errorf("the database records a whole backup: %v, %v", whole, err)
	}
	if _, err := backup.Create(t.Context(), s.options()); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a second backup into the folder: %v", err)
	}
}

// TestDamageIsFound checks that Verify refuses every kind of damage, and folders without a whole backup.
func TestDamageIsFound(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.create()
	edit := func(name string, change func([]byte) []byte) func(dir string) error {
		return func(dir string) error {
			path := filepath.Join(dir, name)
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, change(text), 0o600)
		}
	}
	flip := func(text []byte) []byte { text[len(text)/2] ^= 1; return text }
	for name, c := range map[string]struct {
		damage func(dir string) error
		says   string
	}{
		"dump":          {edit("database.dump", flip), "database.dump is damaged"},
		"dump, cut":     {edit("database.dump", func(b []byte) []byte { return b[:len(b)-1] }), "database.dump is damaged"},
		"object":        {edit("objects/tenants/a/logs/two", flip), "object tenants/a/logs/two is damaged"},
		"no object":     {func(dir string) error { return os.Remove(filepath.Join(dir, "objects/tenants/a/logs/one")) }, "object tenants/a/logs/one is missing"},
		"listing":       {edit("objects.jsonl", func(b []byte) []byte { return b[:len(b)/2] }), "is not the listing of this backup"},
		"no manifest":   {func(dir string) error { return os.Remove(filepath.Join(dir, "manifest.json")) }, "is no backup"},
		"torn manifest": {edit("manifest.json", func(b []byte) []byte { return b[:len(b)/2] }), "not the manifest"},
		"other format": {edit("manifest.json", func(b []byte) []byte {
			var m map[string]any
			if err := json.Unmarshal(b, &m); err != nil {
				t.Error(err)
			}
			m["format"] = 2
			b, _ = json.Marshal(m)
			return b
		}), "format 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "copy")
			if err := os.CopyFS(dir, os.DirFS(s.dir)); err != nil {
				t.Fatal(err)
			}
			if _, err := backup.Verify(t.Context(), dir); err != nil {
				t.Fatalf("before the damage: %v", err)
			}
			if err := c.damage(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := backup.Verify(t.Context(), dir); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
}

// TestAFailedBackupLeavesNothing checks that a backup that lost its lease, or was interrupted, leaves neither a
// folder nor a lease.
func TestAFailedBackupLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]struct {
		dumped func(s *site, stop context.CancelFunc)
		code   berth.Code
	}{
		"lost lease": {func(s *site, _ context.CancelFunc) {
			s.exec(`UPDATE backups SET expires_at = clock_timestamp() - interval '1 s'`)
		}, berth.CodeConflict},
		"interrupted": {func(_ *site, stop context.CancelFunc) { stop() }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.put("tenants/a/logs/one", "first")
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			o := s.options()
			o.Dumped = func() { fail.dumped(s, stop) }
			_, err := backup.Create(ctx, o)
			if err == nil || fail.code != "" && berth.CodeOf(err) != fail.code {
				t.Errorf("got %v", err)
			}
			if list, err := os.ReadDir(filepath.Dir(s.dir)); err != nil || len(list) != 0 {
				t.Errorf("left %v, %v", list, err)
			}
			var held bool
			if err := s.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT 1 FROM backups WHERE ended_at IS NULL)`).Scan(&held); err != nil || held {
				t.Errorf("the lease lasts: %v, %v", held, err)
			}
		})
	}
}

// TestABackupHasTheObjectsOfItsDump checks that an object whose row the dump has is not removed before it is
// copied, although the row was deleted after the dump.
func TestABackupHasTheObjectsOfItsDump(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.put("tenants/a/logs/one", "first")
	doomed := func() int {
		list, err := s.db.Objects.Doomed(t.Context(), 10)
		if err != nil {
			t.Error(err)
		}
		return len(list)
	}
	o := s.options()
	o.Dumped = func() {
		s.exec(`INSERT INTO doomed_objects (prefix) VALUES ('tenants/a/logs')`)
		if doomed() != 0 {
			t.Error("objects may be removed between the dump and the copies")
		}
	}
	m, err := backup.Create(t.Context(), o)
	if err != nil || m.Objects.Count != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	if doomed() != 1 {
		t.Error("the objects stay after the end of the backup")
	}
}

// TestPgDumpMustKnowTheServer checks the errors about a pg_dump that is missing, or older than the server.
func TestPgDumpMustKnowTheServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	o := s.options()
	o.PgBin = t.TempDir()
	if _, err := backup.Create(t.Context(), o); err == nil || !strings.Contains(err.Error(), "there is no pg_dump in "+o.PgBin) {
		t.Errorf("without pg_dump: %v", err)
	}
	script := "#!/bin/sh\necho 'pg_dump (PostgreSQL) 9.6.1'\n"
	if err := os.WriteFile(filepath.Join(o.PgBin, "pg_dump"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Create(t.Context(), o); err == nil || !strings.Contains(err.Error(), "has version 9 and the database needs") {
		t.Errorf("with an old pg_dump: %v", err)
	}
	if list, err := os.ReadDir(filepath.Dir(s.dir)); err != nil || len(list) != 0 {
		t.Errorf("left %v, %v", list, err)
	}
}

// TestABackupNamesItsObjectStore checks that a backup without objects needs a word of the operator, and that a store whose
// folder is absent is refused and not created.
func TestABackupNamesItsObjectStore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if err := os.Remove(s.blobs); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		edit func(o *backup.Options)
		says string
	}{
		"no store":  {func(o *backup.Options) { o.BlobURL = "" }, "--no-objects"},
		"both":      {func(o *backup.Options) { o.NoObjects = true }, "--no-objects is given"},
		"no folder": {func(*backup.Options) {}, "has no folder"},
	} {
		o := s.options()
		c.edit(&o)
		if _, err := backup.Create(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", name, err, c.says)
		}
	}
	if _, err := os.Stat(s.blobs); err == nil {
		t.Error("the folder of the store was created")
	}
	o := s.options()
	o.BlobURL, o.NoObjects = "", true
	if m, err := backup.Create(t.Context(), o); err != nil || m.Objects.Kind != backup.ObjectsNone {
		t.Errorf("a backup without objects: %+v, %v", m, err)
	}
}

// TestABackupFollowsALinkToTheStore checks that a store whose folder is a link is copied, and that a backup into the
// folder that the link names is refused.
func TestABackupFollowsALinkToTheStore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.put("tenants/a/logs/one", "first")
	o := s.options()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(s.blobs, link); err != nil {
		t.Fatal(err)
	}
	o.BlobURL = "file://" + link
	if m, err := backup.Create(t.Context(), o); err != nil || m.Objects.Count != 1 {
		t.Errorf("a backup of a linked store: %+v, %v", m, err)
	}
	o.Dir = filepath.Join(s.blobs, "two")
	if _, err := backup.Create(t.Context(), o); err == nil || !strings.Contains(err.Error(), "lies in the object store") {
		t.Errorf("a backup into the store: %v", err)
	}
}
