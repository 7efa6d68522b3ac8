package db_test

import (
	"maps"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/db"
	"berth/db/dbtest"
	"berth/spec"
)

// An upgrade changes how no job receives its secrets; a new database has the safer default.
func TestOnlyNewDatabasesGiveSecretsAsFilesAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, want string }{
		"new":     {"", spec.SecretsFile},
		"used":    {`INSERT INTO tokens (id, tenant, name, role, sha256) VALUES ('t', 'default', 'admin', 'admin', 'x')`, spec.SecretsBoth},
		"machine": {`INSERT INTO machines (id, pool, state, cpu_m, mem_mb) VALUES ('m1', 'default', 'ready', 4000, 8192)`, spec.SecretsBoth},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := dbtest.EmptyURL(t)
			files := migrationFiles(t)
			maps.DeleteFunc(files, func(name string, _ *fstest.MapFile) bool { return name >= "0066" })
			if err := db.MigrateWith(t.Context(), url, files, time.Minute); err != nil {
				t.Fatal(err)
			}
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			_, err = conn.Exec(t.Context(), c.before)
			if err := conn.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Migrate(t.Context(), url); err != nil {
				t.Fatal(err)
			}
			d := dbtest.Open(t, url, db.Options{})
			if as, err := d.Cluster.SecretsAs(t.Context()); err != nil || as != c.want {
				t.Errorf("secrets are %q, want %q; %v", as, c.want, err)
			}
		})
	}
}
