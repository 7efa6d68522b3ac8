package postgres_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/internal/devstack/postgres"
)

// helperEnv turns this test binary into a process that runs a cluster in the
// folder named by the variable, so that a test can kill it.
const helperEnv = "BERTH_POSTGRES_TEST_HELPER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperEnv); dir != "" {
		runHelper(dir)
		return
	}
	os.Exit(m.Run())
}

func runHelper(dir string) {
	c, err := postgres.Start(context.Background(), testOptions(dir))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(c.URL("postgres"))
	<-c.Exited()
}

func testOptions(dir string) postgres.Options {
	return postgres.Options{Dir: dir, BinDir: os.Getenv("PG_BINDIR"), Volatile: true, SharedBuffers: "16MB", MaxConnections: 20}
}

// tempDir is open to the server's user, which t.TempDir is not.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-postgres-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func start(t *testing.T, opts postgres.Options) *postgres.Cluster {
	t.Helper()
	c, err := postgres.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, c) })
	return c
}

func stop(t *testing.T, c *postgres.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func exec1(t *testing.T, url, sql string) {
	t.Helper()
	if _, err := connect(t, url).Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func text(t *testing.T, url, sql string) string {
	t.Helper()
	var s string
	if err := connect(t, url).QueryRow(t.Context(), sql).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return s
}

func TestStopAndStartKeepData(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	c := start(t, testOptions(dir))
	for range 2 { // the second time it exists
		if err := c.CreateDatabase(t.Context(), "app-1"); err != nil {
			t.Fatal(err)
		}
	}
	exec1(t, c.URL("app-1"), `CREATE TABLE kept AS SELECT 'still here' AS v`)
	stop(t, c)
	stop(t, c) // idempotent

	again := start(t, testOptions(dir))
	if got := text(t, again.URL("app-1"), `SELECT v FROM kept`); got != "still here" {
		t.Errorf("got %q after a restart", got)
	}
}

func TestDurableUnlessAskedOtherwise(t *testing.T) {
	t.Parallel()
	c := start(t, postgres.Options{Dir: tempDir(t), BinDir: os.Getenv("PG_BINDIR")})
	for name, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "data_checksums": "on",
		"max_connections": "200", "listen_addresses": "127.0.0.1", "TimeZone": "UTC", "server_encoding": "UTF8",
	} {
		if got := text(t, c.URL("postgres"), "SHOW "+name); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestPasswordIsAsked(t *testing.T) {
	t.Parallel()
	c := start(t, testOptions(tempDir(t)))
	cfg, err := pgx.ParseConfig(c.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Password = "guess"
	if conn, err := pgx.ConnectConfig(t.Context(), cfg); err == nil {
		_ = conn.Close(t.Context())
		t.Error("a wrong password was let in")
	}
}

func TestRestartAfterKillKeepsPortAndData(t *testing.T) {
	t.Parallel()
	c := start(t, testOptions(tempDir(t)))
	url := c.URL("postgres")
	exec1(t, url, `CREATE TABLE kept AS SELECT 'still here' AS v`)
	// A connection with a backend of its own that outlives the postmaster for a
	// moment makes the server refuse the data folder at first.
	busy := connect(t, url)
	exited := c.Exited()
	c.Kill()
	<-exited
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := busy.Ping(t.Context()); err == nil {
		t.Error("the connection outlived the server")
	}
	if got := text(t, url, `SELECT v FROM kept`); got != "still here" {
		t.Errorf("got %q after a crash", got)
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Errorf("restart of a running server: %v", err)
	}
	stop(t, c)
	if err := c.Restart(t.Context()); err == nil {
		t.Error("restart after Stop was allowed")
	}
}

func TestServerEndsWithItsStarter(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("helper said %q: %v", line, err)
	}
	var url string
	if err := json.Unmarshal([]byte(line), &url); err != nil {
		t.Fatal(err)
	}
	exec1(t, url, `CREATE TABLE kept AS SELECT 'still here' AS v`)
	pid := postmasterPID(t, dir)

	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
	// The next start waits for the orphan by itself; that is the claim.
	c := start(t, testOptions(dir))
	if got := text(t, c.URL("postgres"), `SELECT v FROM kept`); got != "still here" {
		t.Errorf("got %q", got)
	}
	if now := postmasterPID(t, dir); now == pid {
		t.Errorf("the server of the killed process, pid %d, still runs", pid)
	}
	log, err := os.ReadFile(filepath.Join(dir, "postgres.log"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "received fast shutdown request") {
		t.Errorf("the orphan was not asked to shut down; log:\n%s", log)
	}
}

func postmasterPID(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.SplitN(string(b), "\n", 2)[0])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestSecondManagerIsRefused(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	start(t, testOptions(dir))
	_, err := postgres.Start(t.Context(), testOptions(dir))
	if err == nil || !strings.Contains(err.Error(), "another process runs the cluster in "+dir) {
		t.Errorf("got %v", err)
	}
}

func TestStalePIDFileOfAnotherProgramIsCleared(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	first := start(t, testOptions(dir))
	config, err := pgx.ParseConfig(first.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	stop(t, first)
	// After a reboot the pid in the file may belong to any process. The server itself knows that its
	// parent, and processes of other users, are no servers.
	other := exec.Command("sleep", "1000")
	other.SysProcAttr = &syscall.SysProcAttr{Credential: ownerOf(t, filepath.Join(dir, "data"))}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	stale := fmt.Sprintf("%d\n%s/data\n1\n5432\n\n127.0.0.1\n0 0\nready\n", other.Process.Pid, dir)
	opts := testOptions(dir)
	opts.Port = int(config.Port) // a part of the name of the socket's lock
	lock := filepath.Join(dir, "socket", fmt.Sprintf(".s.PGSQL.%d.lock", opts.Port))
	for _, file := range []string{filepath.Join(dir, "data", "postmaster.pid"), lock} {
		if err := os.WriteFile(file, []byte(stale), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	start(t, opts)
}

// ownerOf returns the account of a file, nil if it is the test's own.
func ownerOf(t *testing.T, file string) *syscall.Credential {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	if int(owner.Uid) == os.Geteuid() {
		return nil
	}
	return &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
}

func TestTakenPortIsNamed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	opts := testOptions(tempDir(t))
	opts.Port = l.Addr().(*net.TCPAddr).Port
	want := fmt.Sprintf("port %d on 127.0.0.1 is taken", opts.Port)
	if _, err := postgres.Start(t.Context(), opts); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestMissingBinariesSayWhatToInstall(t *testing.T) {
	t.Parallel()
	opts := testOptions(tempDir(t))
	opts.BinDir = t.TempDir()
	_, err := postgres.Start(t.Context(), opts)
	if err == nil || !strings.Contains(err.Error(), "no initdb and postgres in "+opts.BinDir+": apt-get install postgresql") {
		t.Errorf("got %v", err)
	}
}

func TestDataOfAnotherVersionIsRefusedAndKept(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"PG_VERSION": "9\n", "precious": "rows"} {
		if err := os.WriteFile(filepath.Join(data, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := postgres.Start(t.Context(), testOptions(dir))
	if err == nil || !strings.Contains(err.Error(), "made by PostgreSQL 9") {
		t.Errorf("got %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(data, "precious")); err != nil || string(b) != "rows" {
		t.Errorf("the refused folder was touched: %q, %v", b, err)
	}
}

func TestFolderThatIsNoClusterIsRefusedAndKept(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	thesis := filepath.Join(dir, "data", "thesis.tex")
	if err := os.MkdirAll(filepath.Dir(thesis), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(thesis, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.Start(t.Context(), testOptions(dir)); err == nil || !strings.Contains(err.Error(), "holds no PG_VERSION") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(thesis); err != nil {
		t.Error(err)
	}
}

func TestHalfMadeDataFolderIsMadeAgain(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	if err := os.MkdirAll(filepath.Join(dir, "data.new", "base"), 0o755); err != nil {
		t.Fatal(err)
	}
	start(t, testOptions(dir))
	if _, err := os.Stat(filepath.Join(dir, "data.new")); !os.IsNotExist(err) {
		t.Errorf("data.new is left behind: %v", err)
	}
}

func TestClosedPathIsNamed(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		// An ordinary user's server runs as that user, who may enter his own folders with any
		// mode: this branch tests that the start succeeds.
		dir := tempDir(t)
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		start(t, testOptions(filepath.Join(dir, "pg")))
		return
	}
	dir := tempDir(t)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := postgres.Start(t.Context(), testOptions(filepath.Join(dir, "pg")))
	if err == nil || !strings.Contains(err.Error(), "may not enter "+dir+" (mode 0700)") {
		t.Errorf("got %v", err)
	}
}

func TestSecretsAreNotReadableByOthers(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	start(t, testOptions(dir))
	for name, want := range map[string]fs.FileMode{"password": 0o600, "postgres.log": 0o600, "data": 0o700, "socket": 0o700} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s: mode %04o, want %04o", name, got, want)
		}
	}
}

func TestLongPathRunsWithoutSocket(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(tempDir(t), strings.Repeat("long", 25))
	c := start(t, testOptions(dir))
	if got := text(t, c.URL("postgres"), "SHOW unix_socket_directories"); got != "" {
		t.Errorf("got socket folder %q", got)
	}
}
