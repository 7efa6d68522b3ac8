package dbtest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/db/dbtest"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func count(t *testing.T, conn *pgx.Conn, sql string) int {
	t.Helper()
	var n int
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func TestEachTestHasItsOwnMigratedDatabase(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			pool := dbtest.New(t)
			if _, err := pool.Exec(t.Context(), "CREATE TABLE mine (id int)"); err != nil {
				t.Fatalf("the table of another test is here: %v", err)
			}
			if n := count(t, connect(t, pool.Config().ConnString()), "SELECT count(*) FROM jobs"); n != 0 {
				t.Errorf("%d jobs in a fresh database", n)
			}
		})
	}
}

// A server that still ends the process of a closed connection refuses to drop the database.
func TestAStatementIsRepeatedWhileADatabaseIsInUse(t *testing.T) {
	t.Parallel()
	admin, user := connect(t, dbtest.EmptyURL(t)), connect(t, dbtest.EmptyURL(t))
	tries := 0
	err := dbtest.OnceUnused(func() error {
		if tries++; tries == 2 {
			_ = user.Close(t.Context())
		}
		_, err := admin.Exec(t.Context(), "DROP DATABASE "+user.Config().Database)
		return err
	})
	if err != nil || tries < 2 {
		t.Errorf("%v after %d tries", err, tries)
	}
	if err := dbtest.OnceUnused(func() error { return context.Canceled }); !errors.Is(err, context.Canceled) {
		t.Errorf("another error: %v", err)
	}
}

func TestDatabaseGoesWithItsTest(t *testing.T) {
	t.Parallel()
	admin := connect(t, dbtest.EmptyURL(t))
	var name string
	t.Run("inner", func(t *testing.T) {
		cfg, err := pgx.ParseConfig(dbtest.URL(t))
		if err != nil {
			t.Fatal(err)
		}
		name = cfg.Database
		left := context.Background() // a connection that the test forgot
		if _, err := pgx.ConnectConfig(left, cfg); err != nil {
			t.Fatal(err)
		}
	})
	if n := count(t, admin, "SELECT count(*) FROM pg_database WHERE datname = '"+name+"'"); n != 0 {
		t.Errorf("database %s outlived its test", name)
	}
}

func TestEmptyURLHasNoTables(t *testing.T) {
	t.Parallel()
	conn := connect(t, dbtest.EmptyURL(t))
	if n := count(t, conn, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"); n != 0 {
		t.Errorf("%d tables in an empty database", n)
	}
}

// helperEnv makes this test binary print its cluster's URL and then wait to be
// killed.
const helperEnv = "BERTH_DBTEST_HELPER"

func TestHelperProcess(t *testing.T) {
	if os.Getenv(helperEnv) == "" {
		return // run by TestKilledProcessLeavesNothing only
	}
	fmt.Printf("\nURL %s\n", dbtest.EmptyURL(t))
	select {}
}

func TestKilledProcessLeavesNothing(t *testing.T) {
	t.Parallel()
	tmp, err := os.MkdirTemp("", "berth-dbtest.") // not t.TempDir: the server's user has to enter it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	if err := os.Chmod(tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	// A folder of a process that died together with its reaper.
	stale := filepath.Join(tmp, "berth-dbtest-2147483646-x")
	if err := os.Mkdir(stale, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperProcess$")
	cmd.Env = append(os.Environ(), helperEnv+"=1", "TMPDIR="+tmp)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url := ""
	for lines := bufio.NewScanner(out); url == "" && lines.Scan(); {
		url, _ = strings.CutPrefix(lines.Text(), "URL ")
		if !strings.HasPrefix(url, "postgres://") {
			url = ""
		}
	}
	connect(t, url)
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("the folder of a dead process was left: %v", err)
	}

	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left, _ := filepath.Glob(filepath.Join(tmp, "*"))
		if len(left) == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("left behind: %v", left)
		}
	}
	if conn, err := pgx.Connect(t.Context(), url); err == nil {
		_ = conn.Close(t.Context())
		t.Error("the server outlived its test process")
	}
}
