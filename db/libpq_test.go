package db_test

import (
	"slices"
	"testing"

	"berth/db"
)

// TestProgramsOfPostgreSQLGetTheConnection checks that both forms of a connection string become variables of
// libpq, without parameters of the driver.
func TestProgramsOfPostgreSQLGetTheConnection(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url  string
		want []string
	}{
		{
			"postgres://u:p%40ss@h1:5433/berth?sslmode=verify-full&sslrootcert=system&idle_in_transaction_session_timeout=5&connect_timeout=7",
			[]string{"PGCONNECT_TIMEOUT=7", "PGDATABASE=berth", "PGHOST=h1", "PGPASSWORD=p@ss", "PGPORT=5433", "PGSSLMODE=verify-full",
				"PGSSLROOTCERT=system", "PGUSER=u"},
		},
		{
			"postgres://u@h1,h2:5433/berth?sslmode=disable&target_session_attrs=read-write",
			[]string{"PGDATABASE=berth", "PGHOST=h1,h2", "PGPORT=5432,5433", "PGSSLMODE=disable", "PGTARGETSESSIONATTRS=read-write", "PGUSER=u"},
		},
		{
			`host=/run/postgresql user=u dbname='the \'db' password = 'a b' sslmode=disable`,
			[]string{"PGDATABASE=the 'db", "PGHOST=/run/postgresql", "PGPASSWORD=a b", "PGPORT=5432", "PGSSLMODE=disable", "PGUSER=u"},
		},
	} {
		got, err := db.LibpqEnv(c.url)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %q, %v\nwant %q", c.url, got, err, c.want)
		}
	}
	if _, err := db.LibpqEnv("postgres://h:port/x"); err == nil {
		t.Error("an invalid connection string is accepted")
	}
}
