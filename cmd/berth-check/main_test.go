package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"berth/db/dbtest"
	"berth/internal/check"
)

const job = "01900000-0000-7000-8000-00000000000a"

// Each exit status, on a database of its own: clean, with a counter that
// drifted, with an engine's event of an unknown container, and unreachable.
func TestExitStatuses(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	exec(t, url, `INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb) VALUES ('m1', 'ready', 4000, 4096, 1000), ('m2', 'ready', 4000, 4096, 1000)`)
	exec(t, url, `INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
		VALUES ('`+job+`', 'default', 'x', 'c', 500, true, 0, 90000, 'user:test')`)
	exec(t, url, `INSERT INTO job_specs (job, spec) VALUES ('`+job+`', '{}')`)
	var cluster string
	one(t, url, &cluster, `SELECT id FROM cluster`)
	events := filepath.Join(t.TempDir(), "events")
	if err := os.WriteFile(events, []byte(fmt.Sprintf(`{"Type":"network","Action":"connect"}
{"status":"create","id":"abc","Type":"container","Action":"create","Actor":{"ID":"abc","Attributes":{"berth.cluster":%q,"berth.machine":"m1","berth.job":%q,"berth.attempt":"1","berth.rank":"0","berth.alloc":"7"}},"timeNano":1772366400000000000}
{"Type":"container","Act`, cluster, "01900000-0000-7000-8000-00000000000b")), 0o600); err != nil {
		t.Fatal(err)
	}

	expect(t, exitClean, "0 breaches; looked at 1 jobs and 2 machines", "--database-url", url)
	expect(t, exitBreaches, "the job is still submitted", "--database-url", url, "--settled")
	expect(t, exitBreaches, "container abc is of a job that does not exist", "--database-url", url, "--docker-events", events)
	expect(t, exitUsage, "--database-url is not set")
	expect(t, exitUsage, "allowed are text, json", "--database-url", url, "-o", "xml")
	expect(t, exitUsage, "unknown flag", "--nonsense")
	expect(t, exitUnread, "no such file", "--database-url", url, "--docker-events", "/nonexistent")
	expect(t, exitUnread, "", "--database-url", "postgres://127.0.0.1:1/none")

	exec(t, url, `UPDATE machines SET cpu_m_used = 5 WHERE id = 'm2'`)
	text := expect(t, exitBreaches, "invariant 9", "--database-url", url, "--since", "1h", "-o", "json")
	var r check.Result
	if err := json.Unmarshal([]byte(text), &r); err != nil || len(r.Breaches) != 1 || r.Breaches[0].Machine != "m2" || len(r.Breaches[0].Rows) == 0 {
		t.Errorf("json: %v\n%s", err, text)
	}
}

func expect(t *testing.T, status int, want string, args ...string) string {
	t.Helper()
	var out strings.Builder
	got := run(t.Context(), args, func(string) (string, bool) { return "", false }, &out, &out)
	if text := strings.ReplaceAll(out.String(), `"invariant": `, "invariant "); got != status || !strings.Contains(text, want) {
		t.Errorf("berth-check %s: status %d, want %d and %q in:\n%s", strings.Join(args, " "), got, status, want, out.String())
	}
	return out.String()
}

func exec(t *testing.T, url, sql string) {
	t.Helper()
	with(t, url, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql)
		return err
	})
}

func one(t *testing.T, url string, into any, sql string) {
	t.Helper()
	with(t, url, func(ctx context.Context, c *pgx.Conn) error { return c.QueryRow(ctx, sql).Scan(into) })
}

func with(t *testing.T, url string, f func(context.Context, *pgx.Conn) error) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if err := f(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}
