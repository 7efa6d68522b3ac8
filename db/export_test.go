package db

import "github.com/jackc/pgx/v5"

// Query is the statement behind the first page of a list.
func (f JobFilter) Query() (string, pgx.NamedArgs) { return f.query(nil) }
