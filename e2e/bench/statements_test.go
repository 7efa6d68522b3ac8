package bench_test

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// countStatements makes the server count the statements that it executes.
func (s *stack) countStatements() {
	s.alter("postgres", `ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'`)
	s.must(s.postgres.Stop(s.b.Context()))
	s.must(s.launchPostgres())
	s.alter("template1", `CREATE EXTENSION pg_stat_statements`, `ALTER SYSTEM SET pg_stat_statements.track_planning = on`,
		`ALTER SYSTEM SET track_functions = 'all'`, `SELECT pg_reload_conf()`)
}

func (s *stack) alter(database string, statements ...string) {
	conn, err := pgx.Connect(s.b.Context(), s.postgres.URL(database))
	s.must(err)
	for _, sql := range statements {
		_, err := conn.Exec(s.b.Context(), sql)
		s.must(err)
	}
	s.must(conn.Close(s.b.Context()))
}

func (s *stack) forgetStatements() {
	_, err := s.db.Pool().Exec(s.b.Context(), `SELECT pg_stat_statements_reset(), pg_stat_reset()`)
	s.must(err)
}

// printStatements prints the dearest statements for each of n things done, and
// the whole of each database.
func (s *stack) printStatements(what string, n, most int) {
	rows, err := s.db.Pool().Query(s.b.Context(), `
		SELECT d.datname, sum(s.calls)::float8, sum(s.total_exec_time)::float8, sum(s.plans)::float8, sum(s.total_plan_time)::float8, sum(s.wal_bytes)::float8, s.query
		FROM pg_stat_statements s
		JOIN pg_database d ON d.oid = s.dbid
		GROUP BY GROUPING SETS ((d.datname), (d.datname, s.query))
		ORDER BY s.query IS NULL DESC, sum(s.total_exec_time + s.total_plan_time) DESC
		LIMIT $1`, most)
	s.must(err)
	defer rows.Close()
	fmt.Printf("%-20s %8s %8s %8s %8s %9s  statement (for each %s)\n", "database", "calls", "ms", "plans", "plan ms", "WAL bytes", what)
	for rows.Next() {
		var database string
		var query *string
		var calls, spent, plans, planning, wal float64
		s.must(rows.Scan(&database, &calls, &spent, &plans, &planning, &wal, &query))
		text := "all"
		if query != nil {
			text = strings.Join(strings.Fields(*query), " ")
		}
		each := float64(n)
		fmt.Printf("%-20s %8.2f %8.3f %8.2f %8.3f %9.0f  %.120s\n", database, calls/each, spent/each, plans/each, planning/each, wal/each, text)
	}
	s.must(rows.Err())
}

// printFunctions prints the dearest functions of the database berth for each of n things done, triggers among them. The
// time of a function has no time of the functions that it calls.
func (s *stack) printFunctions(what string, n, most int) {
	rows, err := s.db.Pool().Query(s.b.Context(), `
		SELECT f.funcname, f.calls, f.self_time
		FROM pg_stat_user_functions f
		ORDER BY f.self_time DESC
		LIMIT $1`, most)
	s.must(err)
	defer rows.Close()
	fmt.Printf("%-32s %8s %8s  (for each %s)\n", "function", "calls", "ms", what)
	for rows.Next() {
		var name string
		var calls int64
		var spent float64
		s.must(rows.Scan(&name, &calls, &spent))
		fmt.Printf("%-32s %8.2f %8.3f\n", name, float64(calls)/float64(n), spent/float64(n))
	}
	s.must(rows.Err())
}
