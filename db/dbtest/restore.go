package dbtest

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/db"
	"berth/internal/devstack/postgres"
)

// Dump writes the database at url to a file with pg_dump.
func Dump(t testing.TB, url, file string) {
	t.Helper()
	tool(t, "pg_dump", "--format", "custom", "--file", file, "--dbname", plain(t, url, ""))
}

// Restore replaces the database at url with the contents of a file from Dump, by
// pg_restore. Open connections to the database are closed.
func Restore(t testing.TB, url, file string) {
	t.Helper()
	admin, name := plain(t, url, "postgres"), pgx.Identifier{databaseOf(t, url)}.Sanitize()
	for _, sql := range []string{"DROP DATABASE " + name + " WITH (FORCE)",
		"CREATE DATABASE " + name + " TEMPLATE template0"} {
		if err := onceUnused(func() error { return run(admin, sql) }); err != nil {
			t.Fatalf("dbtest: %s: %v", sql, err)
		}
	}
	tool(t, "pg_restore", "--exit-on-error", "--dbname", plain(t, url, ""), file)
}

// tool runs a program of PostgreSQL from PG_BINDIR, else from the newest installed
// version, else from the PATH. A failure fails the test.
func tool(t testing.TB, name string, args ...string) {
	t.Helper()
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well-formed
	slices.Reverse(dirs)
	path := name
	for _, dir := range append([]string{os.Getenv("PG_BINDIR")}, dirs...) {
		if p := filepath.Join(dir, name); dir != "" && exec.Command("test", "-x", p).Run() == nil {
			path = p
			break
		}
	}
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Fatalf("dbtest: %s, of the same package as the server: %v: %s", name, err, out)
	}
}

// plain returns the URL without the parameters that only Berth's driver knows. A
// non-empty database replaces the database in the URL.
func plain(t testing.TB, address, database string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	u.RawQuery = "sslmode=disable"
	if database != "" {
		u.Path = "/" + database
	}
	return u.String()
}

// databaseOf returns the name of the database in a URL.
func databaseOf(t testing.TB, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	return strings.TrimPrefix(u.Path, "/")
}

// Server is a PostgreSQL server for one test, with one migrated database. A test can copy
// the server's data folder and restore the copy. The methods stop and start the server,
// so they must not run concurrently.
type Server struct {
	t       testing.TB
	dir     string
	port    int
	cluster *postgres.Cluster
}

// NewServer starts a server and stops it when the test ends.
func NewServer(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp(parent(), dirPrefix+fmt.Sprint(os.Getpid())+"-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	s := &Server{t: t, dir: dir}
	t.Cleanup(func() {
		s.stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("dbtest: %v", err)
		}
	})
	s.start()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.cluster.CreateDatabase(ctx, "berth"); err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	if err := db.Migrate(ctx, s.cluster.URL("berth")); err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	return s
}

// URL returns the database's address, which restarts do not change.
func (s *Server) URL() string { return s.cluster.URL("berth") + patient }

// start starts the server, on the port of the first start.
func (s *Server) start() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := postgres.Start(ctx, postgres.Options{
		Dir: s.dir, BinDir: os.Getenv("PG_BINDIR"), Port: s.port, Volatile: true, SharedBuffers: "16MB",
		MaxConnections: 60,
	})
	if err != nil {
		s.t.Fatalf("dbtest: %v", err)
	}
	s.cluster, s.port = c, c.Port()
}

// stop stops a running server; a second call does nothing.
func (s *Server) stop() {
	s.t.Helper()
	if s.cluster == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.cluster.Stop(ctx); err != nil {
		s.t.Errorf("dbtest: %v", err)
	}
	s.cluster = nil
}

// CopyFiles stops the server, copies the data folder, restarts the server, and returns
// the path of the copy.
func (s *Server) CopyFiles() (backup string) {
	s.t.Helper()
	s.stop()
	backup = s.copyData("copy")
	s.start()
	return backup
}

// PutFilesBack stops the server, replaces the data folder with a copy from CopyFiles, and
// starts the server.
func (s *Server) PutFilesBack(backup string) {
	s.t.Helper()
	s.stop()
	s.replaceData(backup)
	s.start()
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) copyData(name string) string {
	s.t.Helper()
	to := filepath.Join(s.dir, name)
	s.cp(s.data(), to)
	return to
}

func (s *Server) replaceData(backup string) {
	s.t.Helper()
	if err := os.RemoveAll(s.data()); err != nil {
		s.t.Fatalf("dbtest: %v", err)
	}
	s.cp(backup, s.data())
}

// cp copies a folder and keeps the owners: the server refuses data of another user. Files
// that vanish during the copy are no error, since a base backup copies a running server.
func (s *Server) cp(from, to string) {
	s.t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil &&
		!bytes.Contains(out, []byte("vanished")) {
		s.t.Fatalf("dbtest: copy %s: %v: %s", from, err, out)
	}
}

// BackUpForRecovery takes a base backup, archives the WAL written after the backup, and
// creates a restore point named moment. Recover(backup) returns to that point.
func (s *Server) BackUpForRecovery() (backup, moment string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	archive := filepath.Join(s.dir, "archive")
	var like syscall.Stat_t
	err := os.Mkdir(archive, 0o700)
	if err == nil {
		err = syscall.Stat(s.data(), &like)
	}
	if err == nil {
		err = os.Chown(archive, int(like.Uid), int(like.Gid))
	}
	if err != nil {
		s.t.Fatalf("dbtest: %v", err)
	}
	admin := s.cluster.URL("postgres")
	for _, sql := range []string{"ALTER SYSTEM SET archive_mode = on",
		"ALTER SYSTEM SET archive_command = 'cp %p " + archive + "/%f'"} {
		if err := run(admin, sql); err != nil {
			s.t.Fatalf("dbtest: %s: %v", sql, err)
		}
	}
	s.stop()
	s.start()
	conn, err := pgx.Connect(ctx, s.cluster.URL("postgres"))
	if err != nil {
		s.t.Fatalf("dbtest: %v", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "SELECT pg_backup_start('test', true)"); err != nil {
		s.t.Fatalf("dbtest: begin base backup: %v", err)
	}
	backup = s.copyData("base")
	_ = os.Remove(filepath.Join(backup, "postmaster.pid"))
	var label string
	if err := conn.QueryRow(ctx, "SELECT labelfile FROM pg_backup_stop(false)").Scan(&label); err != nil {
		s.t.Fatalf("dbtest: end base backup: %v", err)
	}
	moment = "here"
	config := fmt.Sprintf("restore_command = 'cp %s/%%f %%p'\nrecovery_target_name = '%s'\n"+
		"recovery_target_action = 'promote'\n", archive, moment)
	s.write(&like, filepath.Join(backup, "backup_label"), label, false)
	s.write(&like, filepath.Join(backup, "recovery.signal"), "", false)
	s.write(&like, filepath.Join(backup, "postgresql.auto.conf"), config, true)
	var file string
	if err := conn.QueryRow(ctx, "SELECT pg_walfile_name(pg_create_restore_point($1))",
		moment).Scan(&file); err != nil {
		s.t.Fatalf("dbtest: name the moment: %v", err)
	}
	if _, err := conn.Exec(ctx, "SELECT pg_switch_wal()"); err != nil {
		s.t.Fatalf("dbtest: %v", err)
	}
	s.await(ctx, "the log is archived", func() bool {
		_, err := os.Stat(filepath.Join(archive, file))
		var done bool
		return err == nil && conn.QueryRow(ctx, "SELECT last_archived_wal >= $1 FROM pg_stat_archiver",
			file).Scan(&done) == nil && done
	})
	return backup, moment
}

// Recover restores a copy from BackUpForRecovery and waits until the server has replayed
// the archived WAL up to the restore point.
func (s *Server) Recover(backup string) {
	s.t.Helper()
	s.PutFilesBack(backup)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.await(ctx, "the recovery is over", func() bool {
		return run(s.cluster.URL("postgres"), "DO $$ BEGIN IF pg_is_in_recovery() THEN RAISE 'in recovery'; END "+
			"IF; END $$") == nil
	})
}

func (s *Server) write(like *syscall.Stat_t, path, text string, more bool) {
	s.t.Helper()
	flag := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if more {
		flag = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	}
	f, err := os.OpenFile(path, flag, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
		_ = f.Close()
	}
	if err == nil {
		err = os.Chown(path, int(like.Uid), int(like.Gid))
	}
	if err != nil {
		s.t.Fatalf("dbtest: %v", err)
	}
}

func (s *Server) await(ctx context.Context, what string, ok func() bool) {
	s.t.Helper()
	for tick := time.NewTicker(50 * time.Millisecond); !ok(); <-tick.C {
		if ctx.Err() != nil {
			s.t.Fatalf("dbtest: never: %s", what)
		}
	}
}
