package db_test

import (
	"strings"
	"testing"

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
