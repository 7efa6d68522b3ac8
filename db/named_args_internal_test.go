package db

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5"
)

// The first call of a text reads it, and later calls use what the first one found. A name without an argument is not
// kept, since a later call may have it.
func TestNamedArgsAreRewrittenAsByPgx(t *testing.T) {
	const twice = `SELECT @id, '@none', "@none", @name -- @none
		FROM jobs WHERE id = @id AND tenant = @tenant AND x ->> '@' = E'\'@none'`
	for _, c := range []struct {
		sql  string
		args namedArgs
	}{
		{twice, namedArgs{"id": 1, "name": "a", "tenant": nil}},
		{twice, namedArgs{"id": 2, "name": "b", "tenant": "t", "more": true}},
		{twice, namedArgs{"name": "c"}},
		{`SELECT @only_sometimes, @id`, namedArgs{"id": 1}},
		{`SELECT @only_sometimes, @id`, namedArgs{"id": 1, "only_sometimes": 2}},
		{`SELECT @only_sometimes, @id`, namedArgs{"only_sometimes": 3}},
		{`SELECT 1`, nil},
		{`SELECT 1`, namedArgs{"id": 1}},
	} {
		wantSQL, wantArgs, wantErr := pgx.NamedArgs(c.args).RewriteQuery(t.Context(), nil, c.sql, []any{c.args})
		for range 2 {
			gotSQL, gotArgs, err := c.args.RewriteQuery(t.Context(), nil, c.sql, []any{c.args})
			if gotSQL != wantSQL || !reflect.DeepEqual(gotArgs, wantArgs) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Errorf("%s with %v: %q %v %v, pgx makes %q %v %v",
					c.sql, c.args, gotSQL, gotArgs, err, wantSQL, wantArgs, wantErr)
			}
		}
	}
}

// Texts that a caller could make without end are not kept without end.
func TestKeptTextsAreBounded(t *testing.T) {
	k := numberings{limit: 10}
	for i := range 30 {
		sql := fmt.Sprintf("SELECT @id AS column_%d", i)
		n := k.of(t.Context(), nil, sql, namedArgs{"id": i})
		if n == nil || n.sql != fmt.Sprintf("SELECT $1 AS column_%d", i) {
			t.Fatalf("%s became %+v", sql, n)
		}
	}
	kept := 0
	k.byText.Range(func(any, any) bool { kept++; return true })
	if kept != 10 {
		t.Errorf("%d texts are kept, want 10", kept)
	}
}
