package db_test

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/db/dbtest"
)

func TestMigrationsThatWereChangedAreRefused(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ damage, says string }{
		"edited":   {`UPDATE applied_migrations SET sha256 = 'x' WHERE sequence = 1`, "another content"},
		"unknown":  {`DROP TABLE applied_migrations`, "empty database"},
		"too new":  {`UPDATE schema_version SET version = 1000`, "newer"},
		"half old": {`DELETE FROM applied_migrations WHERE sequence = 1`, "another content"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := dbtest.URL(t)
			if err := db.Migrate(t.Context(), url); err != nil {
				t.Fatalf("again, and nothing to do: %v", err)
			}
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			if _, err := conn.Exec(t.Context(), c.damage); err != nil {
				t.Fatal(err)
			}
			err = db.Migrate(t.Context(), url)
			if berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), c.says) {
				t.Errorf("refused with %v", err)
			}
		})
	}
}

// A migration that waits for a table has every writer of it wait behind it: so it
// gives up soon, says who is there, and goes on from where it was when called again.
func TestAMigrationGivesUpOnATableThatSomebodyHas(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := dbtest.URL(t)
	files := migrationFiles(t)
	known := len(files)
	last := fmt.Sprintf("%04d_next.sql", known+2)
	files[fmt.Sprintf("%04d_before.sql", known+1)] = &fstest.MapFile{Data: []byte(`CREATE TABLE before_it (n integer);`)}
	files[last] = &fstest.MapFile{Data: []byte(`ALTER TABLE attempts ADD COLUMN next integer;`)}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	version := func() (n int) {
		t.Helper()
		if err := conn.QueryRow(ctx, `SELECT version FROM public.schema_version`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, sql := range []string{`SET application_name = 'a dump'`, `BEGIN`, `SELECT 1 FROM attempts`} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	err = db.MigrateWith(ctx, url, files, time.Millisecond)
	if berth.CodeOf(err) != berth.CodeUnavailable || !strings.Contains(err.Error(), last) || !strings.Contains(err.Error(), "a dump of ") {
		t.Errorf("beside a dump: %v", err)
	}
	if n := version(); n != known+1 {
		t.Errorf("the schema is at version %d, want %d", n, known+1)
	}
	if _, err := conn.Exec(ctx, `COMMIT`); err != nil {
		t.Fatal(err)
	}
	if err := db.MigrateWith(ctx, url, files, time.Hour); err != nil {
		t.Errorf("after the dump: %v", err)
	}
	if n := version(); n != known+2 {
		t.Errorf("the schema is at version %d, want %d", n, known+2)
	}
}

// migrationFiles returns the migrations of this version, which a test may cut or extend.
func migrationFiles(t *testing.T) fstest.MapFS {
	t.Helper()
	files := fstest.MapFS{}
	names, err := fs.Glob(db.Migrations, "migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := fs.ReadFile(db.Migrations, name)
		if err != nil {
			t.Fatal(err)
		}
		files[path.Base(name)] = &fstest.MapFile{Data: b}
	}
	return files
}
