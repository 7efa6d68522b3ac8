package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// countWrites makes the database log each row that is written from now on, by table and
// transaction. Each table gets its trigger in a transaction of its own: one transaction that
// locked all tables could deadlock with the agent's calls.
func (s *site) countWrites() {
	s.t.Helper()
	exec := func(sql string) {
		s.t.Helper()
		if _, err := s.db.Pool().Exec(s.t.Context(), sql); err != nil {
			s.t.Fatal(err)
		}
	}
	exec(`
		CREATE TABLE writes (n bigserial PRIMARY KEY, tab text, xid xid8 DEFAULT pg_current_xact_id());
		CREATE FUNCTION log_write() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO writes (tab) VALUES (TG_ARGV[0]);
			RETURN NULL;
		END $$`)
	rows, err := s.db.Pool().Query(s.t.Context(), `
		SELECT format('CREATE TRIGGER log_write AFTER INSERT OR UPDATE OR DELETE ON %s
			FOR EACH ROW EXECUTE FUNCTION log_write(%L)', oid::regclass, oid::regclass)
		FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
		  AND relname <> 'writes'`)
	if err != nil {
		s.t.Fatal(err)
	}
	triggers, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatal(err)
	}
	for _, sql := range triggers {
		exec(sql)
	}
}

// quiet returns the newest logged write once at least so many renewals in a row
// came with no other write between them.
func (s *site) quiet(renewals int) (last int64) {
	s.t.Helper()
	s.until(fmt.Sprintf("%d renewals come with no other write between them", renewals), func() bool {
		var other, leases int64
		if err := s.db.Pool().QueryRow(s.t.Context(), `
			SELECT coalesce(max(n), 0), coalesce(max(n) FILTER (WHERE tab <> 'machine_leases'), 0),
			       count(*) FILTER (WHERE n > (SELECT coalesce(max(n), 0) FROM writes WHERE tab <> 'machine_leases'))
			FROM writes`).Scan(&last, &other, &leases); err != nil {
			s.t.Fatal(err)
		}
		return leases >= int64(renewals)
	})
	return last
}

// Between changes of state a machine writes its lease. Progress that changes is
// written once a member, and travels in one call for all of them.
func TestRunningMembersWriteNothingButTheLeaseAndChangedProgress(t *testing.T) {
	t.Parallel()
	const members = 8
	s := newSite(t)
	m := s.machine("m1")
	var devices declared
	for i := range members {
		devices = append(devices, berth.GPU{Index: i, UUID: fmt.Sprintf("m1-%d", i), Model: "H100", MemoryMiB: 81920, Healthy: true})
	}
	m.cfg.GPUs, m.cfg.Timing.PollWait = devices, 200*time.Millisecond
	m.restart()
	var runs []wire.RunRequest
	for i := range members {
		runs = append(runs, m.placeOn(i, s.submit(nil, "sleep", "1h")))
	}
	for _, req := range runs {
		m.running(req)
	}
	s.countWrites()
	before := s.quiet(3)
	for i, req := range runs {
		file := filepath.Join(m.scratch(req), "workspace", ".berth", "progress")
		if err := os.WriteFile(file+".new", fmt.Appendf(nil, `{"step":%d,"total":100}`, i+1), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	count := func(sql string) (n int) {
		if err := s.db.Pool().QueryRow(context.WithoutCancel(t.Context()), sql, before).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	s.until("all progress is on record", func() bool {
		return count(`SELECT count(*) FROM allocations WHERE progress IS NOT NULL AND $1::bigint > 0`) == members
	})
	s.quiet(3)
	for _, table := range []string{"allocations", "attempts"} { // the latter has the step for the job's next attempt
		if n := count(`SELECT count(*) FROM writes WHERE n > $1 AND tab = '` + table + `'`); n != members {
			t.Errorf("%d rows of %s were written for the progress of %d members", n, table, members)
		}
	}
	if n := count(`SELECT count(DISTINCT xid) FROM writes WHERE n > $1 AND tab = 'allocations'`); n > members/2 {
		t.Errorf("the progress of %d members came in %d calls", members, n)
	}
	if n := count(`SELECT count(*) FROM writes WHERE n > $1 AND tab NOT IN ('allocations', 'attempts', 'machine_leases')`); n != 0 {
		t.Errorf("%d other rows were written", n)
	}
}
