package temporaldev_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"berth/internal/control/authority"
	"berth/internal/devstack/postgres"
	"berth/internal/devstack/temporaldev"
)

// certificates makes an authority with the certificates NAME.crt and NAME.key for each name, valid for the
// name and for 127.0.0.1.
func certificates(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := authority.Init(dir, "test", time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := authority.Issue(dir, name, []string{name + ".internal", "127.0.0.1"}, 1, authority.Access{}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func filesOf(dir, name string) *temporaldev.TLS {
	return &temporaldev.TLS{
		CertFile: filepath.Join(dir, name+".crt"), KeyFile: filepath.Join(dir, name+".key"),
		CAFile: filepath.Join(dir, authority.CertFile),
	}
}

// trust returns a client's settings that trust the authority of a folder.
func trust(t *testing.T, dir string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, authority.CertFile))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: roots, ServerName: "temporal.internal"}
}

// secure makes the test's PostgreSQL accept TLS, with the certificate of name in a folder, and returns a URL that
// verifies the server.
func secure(t *testing.T, pg *postgres.Cluster, dir, name string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var data string
	if err := conn.QueryRow(t.Context(), `SHOW data_directory`).Scan(&data); err != nil {
		t.Fatal(err)
	}
	owner, err := os.Stat(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, ext := range []string{".crt", ".key"} {
		text, err := os.ReadFile(filepath.Join(dir, name+ext))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(data, "server"+ext)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		of := owner.Sys().(*syscall.Stat_t)
		if err := os.Chown(path, int(of.Uid), int(of.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	for _, sql := range []string{`ALTER SYSTEM SET ssl = on`, `SELECT pg_reload_conf()`} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	u := pg.URL("postgres")
	u, _, _ = strings.Cut(u, "?")
	u += "?sslmode=verify-full&sslrootcert=" + filepath.Join(dir, authority.CertFile)
	eventually(t, "PostgreSQL accepts TLS", func() bool {
		c, err := pgx.Connect(t.Context(), u)
		if err == nil {
			_ = c.Close(t.Context())
		}
		return err == nil
	})
	return u
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(5 * time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not seen in 5 minutes: %s", what)
		}
	}
}

// A server of a site runs with certificates on every connection, also to its database, and on an address that other hosts
// reach. Clients without a certificate of the authority, and without TLS, get no answer.
func TestAServerWithCertificatesAnswersTheirHoldersAlone(t *testing.T) {
	dir, strangers := certificates(t, "temporal", "client", "postgres"), certificates(t, "client")
	pg := database(t)
	url := secure(t, pg, dir, "postgres")
	metrics, err := temporaldev.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	s, err := temporaldev.Start(t.Context(), temporaldev.Options{
		DatabaseURL: url, FrontendHost: "0.0.0.0", TLS: filesOf(dir, "temporal"), MetricsAddress: metrics, Exclusive: true,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })

	dialAs := func(settings *tls.Config) (client.Client, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return client.DialContext(ctx, client.Options{
			HostPort: s.Address(), Namespace: temporaldev.Namespace, ConnectionOptions: client.ConnectionOptions{TLS: settings},
			Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
		})
	}
	pair := func(folder string) []tls.Certificate {
		p, err := tls.LoadX509KeyPair(filepath.Join(folder, "client.crt"), filepath.Join(folder, "client.key"))
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{p}
	}
	refused := map[string]*tls.Config{"no TLS": nil, "no certificate": trust(t, dir), "a stranger's certificate": trust(t, dir)}
	refused["a stranger's certificate"].Certificates = pair(strangers)
	for who, settings := range refused {
		if c, err := dialAs(settings); err == nil {
			c.Close()
			t.Errorf("a client with %s gets an answer", who)
		}
	}
	holder := trust(t, dir)
	holder.Certificates = pair(dir)
	c, err := dialAs(holder)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w := work(t, c)
	defer w.Stop()
	if got := greet(t, c, "secure"); got != "hello world" {
		t.Errorf("result %q", got)
	}

	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var secure, plain int
	const sessions = `
		SELECT count(*) FILTER (WHERE s.ssl), count(*) FILTER (WHERE NOT s.ssl)
		FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
		WHERE a.datname LIKE 'temporal%'`
	if err := conn.QueryRow(t.Context(), sessions).Scan(&secure, &plain); err != nil {
		t.Fatal(err)
	}
	if secure == 0 || plain != 0 {
		t.Errorf("%d sessions of the database have TLS and %d have none", secure, plain)
	}
	eventually(t, "metrics of the server", func() bool {
		resp, err := http.Get("http://" + metrics + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return err == nil && strings.Contains(string(text), "service_requests")
	})
}

// lines is a log that may be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) contain(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// A database with tables of another program is refused, and stays as it is, also after repeated starts.
func TestDatabasesOfOthersAreLeftAlone(t *testing.T) {
	pg := database(t)
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), `CREATE DATABASE temporal`); err != nil {
		t.Fatal(err)
	}
	own, err := pgx.Connect(t.Context(), pg.URL("temporal"))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close(context.WithoutCancel(t.Context()))
	if _, err := own.Exec(t.Context(), `CREATE TABLE theirs AS SELECT 1 AS n`); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s, err := temporaldev.Start(t.Context(), temporaldev.Options{DatabaseURL: pg.URL("postgres"), NoUI: true})
		if err == nil {
			_ = s.Stop()
		}
		if err == nil || !strings.Contains(err.Error(), "it has tables, and none of Temporal") {
			t.Errorf("got %v", err)
		}
	}
	var n int
	if err := own.QueryRow(t.Context(), `SELECT n FROM theirs`).Scan(&n); err != nil {
		t.Errorf("the table of another program: %v", err)
	}
}

// The guard takes the lock again after its session has ended, and gives up once another server has taken it. A second server
// waits until the first one stops.
func TestExclusiveServersTakeTurns(t *testing.T) {
	pg := database(t)
	exclusive := func(log io.Writer, database string) (*temporaldev.Server, error) {
		return temporaldev.Start(t.Context(), temporaldev.Options{
			DatabaseURL: pg.URL(database), NoUI: true, Exclusive: true, LockGrace: 5 * time.Second,
			Logger: slog.New(slog.NewTextHandler(io.MultiWriter(log, t.Output()), nil)),
		})
	}
	first, err := exclusive(io.Discard, "postgres")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	holder := func() (pid int) {
		err := conn.QueryRow(t.Context(), `SELECT coalesce((SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
			AND classid = hashtext('berth-temporal')::oid), 0)`).Scan(&pid)
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	was := holder()
	if _, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, was); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lock is taken again", func() bool { now := holder(); return now != 0 && now != was })
	select {
	case <-first.Lost():
		t.Error("the server counts as replaced, though nobody took its lock")
	default:
	}

	second := make(chan *temporaldev.Server, 1)
	var says lines
	go func() {
		s, err := exclusive(&says, "temporal") // the lock does not depend on the database of the URL
		if err != nil {
			t.Error(err)
		}
		second <- s
	}()
	eventually(t, "the second server waits", func() bool { return says.contain("another temporal server uses the databases") })
	select {
	case <-second:
		t.Fatal("two exclusive servers run")
	default:
	}
	if err := first.Stop(); err != nil {
		t.Error(err)
	}
	s := <-second
	if s == nil {
		return
	}
	defer s.Stop()

	// Another session takes the lock in the moment in which the server's session ends.
	thief, err := pgx.Connect(t.Context(), pg.URL("temporal"))
	if err != nil {
		t.Fatal(err)
	}
	// Closed here, since the garbage collector closes a connection that nothing refers to, and so frees the lock.
	defer thief.Close(context.WithoutCancel(t.Context()))
	waiting := make(chan error, 1)
	go func() {
		_, err := thief.Exec(context.WithoutCancel(t.Context()), `SELECT pg_advisory_lock(hashtext('berth-temporal'), 0)`)
		waiting <- err
	}()
	eventually(t, "the other session waits for the lock", func() bool {
		var n int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n > 0
	})
	if _, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, holder()); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Lost():
	case <-time.After(5 * time.Minute):
		t.Error("a server whose lock another one holds runs on")
	}
}

// Certificates with which the server could not work are refused at the start, with the file and the reason.
func TestUnusableCertificatesAreNamed(t *testing.T) {
	t.Parallel()
	dir, other := certificates(t, "temporal"), certificates(t, "temporal")
	foreign := filesOf(dir, "temporal")
	foreign.CAFile = filepath.Join(other, authority.CertFile)
	noKey := filesOf(dir, "temporal")
	noKey.KeyFile = filepath.Join(dir, "none.key")
	noCA := filesOf(dir, "temporal")
	noCA.CAFile = noCA.KeyFile
	for want, files := range map[string]*temporaldev.TLS{
		"must be valid for servers and for clients": foreign, "none.key": noKey, "has no certificate in PEM form": noCA,
	} {
		_, err := temporaldev.Start(t.Context(), temporaldev.Options{
			DatabaseURL: "postgres://berth@127.0.0.1:1/postgres", NoUI: true, TLS: files,
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// A URL from which the server would build another one is refused.
func TestDatabaseURLsThatTheServerWouldChangeAreRefused(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"host=db.internal user=temporal dbname=temporal sslmode=require": "write postgres://",
		"postgres:///temporal?host=/run/postgresql":                      "with a host and not a socket",
		"postgres://t@a:5432,b:5432/temporal":                            "name one host",
		"postgres://t:a%20b@a/temporal":                                  "the password no spaces",
		"postgres://t%40x@a/temporal":                                    "no special characters",
		"postgres://t@a/temporal?port=5433":                              "port must not be a parameter",
	} {
		_, err := temporaldev.Start(t.Context(), temporaldev.Options{DatabaseURL: url, NoUI: true})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", url, err, want)
		}
	}
}
