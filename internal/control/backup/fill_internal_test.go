package backup

import (
	"path/filepath"
	"strings"
	"testing"

	"berth"
	"berth/db"
	"berth/db/dbtest"
)

// TestAFilledDatabaseCannotBeUsedBeforeItsQuarantine checks the state in which a killed restore leaves the database:
// filled and not quarantined. No berthd starts on it, and it cannot be restored into.
func TestAFilledDatabaseCannotBeUsedBeforeItsQuarantine(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "one")
	m, err := Create(t.Context(), Options{NoObjects: true, Dir: dir, DatabaseURL: dbtest.URL(t), Actor: "test"})
	if err != nil {
		t.Fatal(err)
	}
	o := RestoreOptions{Dir: dir, DatabaseURL: dbtest.EmptyURL(t)}
	tool, err := findProgram(t.Context(), "pg_restore", "", m.Database.Tool)
	if err != nil {
		t.Fatal(err)
	}
	if err := fillDatabase(t.Context(), tool, o); err != nil {
		t.Fatal(err)
	}
	if err := db.Migrate(t.Context(), o.DatabaseURL); berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "interrupted restore") {
		t.Errorf("a start of berthd: %v", err)
	}
	if _, err := Restore(t.Context(), o); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a restore into it: %v", err)
	}
}

// TestAServerRestoresNoDumpsOfProgramsThatSetWhatItDoesNotKnow checks the versions around PostgreSQL 17, whose programs
// set a parameter that older servers refuse.
func TestAServerRestoresNoDumpsOfProgramsThatSetWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		program, server int
		refused         bool
	}{{15, 15, false}, {16, 15, false}, {17, 16, true}, {18, 14, true}, {17, 17, false}, {18, 17, false}} {
		err := program{"/bin/pg_dump", c.program}.checkServer(c.server)
		if (err != nil) != c.refused || (err != nil && !strings.Contains(err.Error(), "postgresql-client-")) {
			t.Errorf("programs %d, server %d: %v", c.program, c.server, err)
		}
	}
}
