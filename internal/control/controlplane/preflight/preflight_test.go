package preflight_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/authority"
	"berth/internal/control/controlplane"
	"berth/internal/control/controlplane/preflight"
	"berth/internal/lib/sealer"
	"berth/spec"
)

// installation returns the input of one without faults, but for Temporal: no server listens at its address.
// The end-to-end tests examine an installation with a server.
func installation(t *testing.T, database string) preflight.Input {
	t.Helper()
	c := controlplane.Default()
	c.DatabaseURL = database
	c.BlobURL = "file://" + t.TempDir()
	c.TemporalAddress = "127.0.0.1:1"
	// Each check waits for the whole limit of Temporal.
	return preflight.Input{Config: c, UID: 1000, Limit: time.Minute, TemporalLimit: 5 * time.Second}
}

// want fails unless one of the findings of a check has the state and contains the text.
func want(t *testing.T, findings []preflight.Finding, check string, state preflight.State, text string) {
	t.Helper()
	for _, f := range findings {
		if f.Check == check && f.State == state && strings.Contains(f.Detail+": "+f.Remedy, text) {
			return
		}
	}
	var b bytes.Buffer
	_ = preflight.Print(&b, findings)
	t.Errorf("no %s of %s contains %q:\n%s", state, check, text, b.String())
}

// execute runs statements on a database as its superuser.
func execute(t *testing.T, database string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, s := range statements {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func TestAnInstallationWithoutFaultsSaysSo(t *testing.T) {
	t.Parallel()
	findings := preflight.Run(t.Context(), installation(t, dbtest.URL(t)))
	want(t, findings, "settings", preflight.OK, "every flag")
	want(t, findings, "database", preflight.OK, "PostgreSQL ")
	want(t, findings, "database", preflight.OK, "as this program")
	want(t, findings, "clock", preflight.OK, "agree within a second")
	want(t, findings, "keys", preflight.Advice, "set secret-key-file")
	want(t, findings, "store", preflight.OK, "was written, read and deleted")
	want(t, findings, "temporal", preflight.Fault, "127.0.0.1:1")
	if n := preflight.Faults(findings); n != 1 {
		t.Errorf("%d faults; want that of Temporal alone", n)
	}
}

func TestTheCheckLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	in := installation(t, dbtest.EmptyURL(t))
	findings := preflight.Run(t.Context(), in)
	want(t, findings, "database", preflight.OK, "there is no schema yet")
	if i, err := db.Inspect(t.Context(), in.Config.DatabaseURL); err != nil || i.Version != 0 {
		t.Errorf("schema version %d, %v after the check of an empty database", i.Version, err)
	}
	folder := strings.TrimPrefix(in.Config.BlobURL, "file://")
	err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("the check left %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	in.Config.BlobURL = "file://" + filepath.Join(folder, "absent", "blobs")
	want(t, preflight.Run(t.Context(), in), "store", preflight.OK, "the first start creates the folder")
	if _, err := os.Stat(filepath.Join(folder, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the check created the folder of the store: %v", err)
	}
}

func TestAllFaultsOfSettingsAreReported(t *testing.T) {
	t.Parallel()
	in := installation(t, "")
	in.Config.Listen, in.Config.BlobURL, in.Config.LostShare = "0.0.0.0:7070", "", 3
	in.Config.TemporalAddress = "temporal.invalid:7233"
	in.Config.CloudFile = filepath.Join(t.TempDir(), "clouds.yaml")
	in.Config.AdminTokenFile = "/nonexistent/folder/token"
	in.Faults = []error{errors.Join(errors.New("BERTH_GRACE: invalid"), errors.New("berthd.yaml:3: unknown"))}
	in.UID = 0
	findings := preflight.Run(t.Context(), in)
	for _, text := range []string{"BERTH_GRACE", "berthd.yaml:3", "no database", "no blob store", "lost-share",
		"it has no TLS", "TEMPORAL_TLS=true", "needs secret-key-file"} {
		want(t, findings, "settings", preflight.Fault, text)
	}
	want(t, findings, "files", preflight.Fault, "cloud file")
	want(t, findings, "files", preflight.Fault, "/nonexistent/folder")
	want(t, findings, "user", preflight.Advice, "systemd-run")
}

func TestFaultsOfTheDatabase(t *testing.T) {
	t.Parallel()
	t.Run("unreachable", func(t *testing.T) {
		t.Parallel()
		findings := preflight.Run(t.Context(), installation(t, "postgres://berth@127.0.0.1:1/berth"))
		want(t, findings, "database", preflight.Fault, "PostgreSQL at 127.0.0.1")
		want(t, findings, "clock", preflight.Advice, "not compared")
		want(t, findings, "keys", preflight.Advice, "not compared")
	})
	for name, c := range map[string]struct{ statement, text string }{
		"newer":     {`UPDATE schema_version SET version = 1000`, "run a newer one"},
		"other":     {`UPDATE applied_migrations SET sha256 = 'x' WHERE sequence = 3`, "another content"},
		"unmarked":  {`DROP TABLE applied_migrations`, "unreleased program"},
		"no limits": {`ALTER ROLE CURRENT_USER CONNECTION LIMIT -1`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := dbtest.URL(t)
			execute(t, url, c.statement)
			findings := preflight.Run(t.Context(), installation(t, url))
			if c.text == "" {
				want(t, findings, "database", preflight.OK, "as this program")
				return
			}
			want(t, findings, "database", preflight.Fault, c.text)
		})
	}
	t.Run("older", func(t *testing.T) {
		t.Parallel()
		url := dbtest.URL(t)
		execute(t, url, `UPDATE schema_version SET version = 60`)
		want(t, preflight.Run(t.Context(), installation(t, url)), "database", preflight.OK, "migrates it to")
	})
	t.Run("connections", func(t *testing.T) {
		t.Parallel()
		in := installation(t, dbtest.URL(t))
		in.Config.DatabaseConns = 5000 // more than the tests' server allows
		want(t, preflight.Run(t.Context(), in), "database", preflight.Fault, "opens up to 5004 connections")
	})
}

// A role that only reads, or not even that, cannot run berthd.
func TestRightsOfTheRole(t *testing.T) {
	t.Parallel()
	database := dbtest.URL(t)
	role := "reader_" + strings.ToLower(rand.Text()) // of the cluster, which tests share
	execute(t, database, `CREATE ROLE `+role+` LOGIN PASSWORD 'x' CONNECTION LIMIT 10`)
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "x")
	findings := preflight.Run(t.Context(), installation(t, u.String()))
	want(t, findings, "database", preflight.Fault, "may not create tables")
	want(t, findings, "database", preflight.Fault, "cannot migrate them")
	want(t, findings, "database", preflight.Fault, "may not read the tables")
	want(t, findings, "database", preflight.Fault, "may open 10")

	execute(t, database, `GRANT SELECT ON ALL TABLES IN SCHEMA public TO `+role)
	findings = preflight.Run(t.Context(), installation(t, u.String()))
	want(t, findings, "database", preflight.OK, "as this program")
	want(t, findings, "database", preflight.Fault, "cannot migrate them")
}

func TestFaultsOfTheStore(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for url, text := range map[string]string{
		"file://" + file + "/below": "not a directory",
		"file://host/folder":        "file:///absolute/path",
		"ftp://bucket":              "ftp",
		"file:///%zz":               "not a URL",
	} {
		in := installation(t, "")
		in.Config.BlobURL = url
		want(t, preflight.Run(t.Context(), in), "store", preflight.Fault, text)
	}
}

// berthd would refuse to start with a store that the database does not name.
func TestTheStoreMustBeTheClustersOwn(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	in := installation(t, d.Pool().Config().ConnString())
	if findings := preflight.Run(t.Context(), in); slices.ContainsFunc(findings, func(f preflight.Finding) bool {
		return strings.Contains(f.Detail, "not the store of this cluster")
	}) {
		t.Errorf("a cluster without an id: %v", findings)
	}
	if _, err := d.Cluster.RecordStoreID(t.Context(), "ABCDEFGHIJKLMNOPQRSTUVWXYZ"); err != nil {
		t.Fatal(err)
	}
	want(t, preflight.Run(t.Context(), in), "store", preflight.Fault, "not the store of this cluster")
}

// certificate issues one for berth.internal, as of a time, in a folder of its own.
func certificate(t *testing.T, days int, at time.Time) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	if err := authority.Init(dir, "test", time.Now().AddDate(-2, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if err := authority.Issue(dir, "api", []string{"berth.internal"}, days, authority.Access{}, at); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "api.crt"), filepath.Join(dir, "api.key")
}

func TestFaultsOfCertificates(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		days  int
		at    time.Time
		url   string
		state preflight.State
		text  string
	}{
		"valid":       {90, now, "https://berth.internal", preflight.OK, "is valid until"},
		"ends soon":   {20, now.AddDate(0, 0, -10), "", preflight.Advice, "ends on"},
		"ended":       {20, now.AddDate(0, 0, -30), "", preflight.Fault, "ended on"},
		"not yet":     {20, now.AddDate(0, 0, 5), "", preflight.Fault, "is not valid before"},
		"other names": {90, now, "https://elsewhere.internal", preflight.Advice, "elsewhere.internal"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := installation(t, "")
			in.Config.PublicURL = c.url
			in.Config.TLSCert, in.Config.TLSKey = certificate(t, c.days, c.at)
			want(t, preflight.Run(t.Context(), in), "tls", c.state, c.text)
		})
	}
	cert, _ := certificate(t, 90, now)
	_, key := certificate(t, 90, now)
	in := installation(t, "")
	in.Config.TLSCert, in.Config.TLSKey = cert, key
	want(t, preflight.Run(t.Context(), in), "tls", preflight.Fault, "private key does not match")
	in.Config.TLSKey = key + ".absent"
	want(t, preflight.Run(t.Context(), in), "tls", preflight.Fault, "no such file")
}

// keyFile writes a key file with one key for each digit.
func keyFile(t *testing.T, digits ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	var lines []string
	for _, d := range digits {
		lines = append(lines, strings.Repeat(d, 64))
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKeysOpenWhatIsStored(t *testing.T) {
	t.Parallel()
	database := dbtest.URL(t)
	in := installation(t, database)
	in.Config.SecretKeyFile = keyFile(t, "2", "1")
	want(t, preflight.Run(t.Context(), in), "keys", preflight.OK, "all 0 stored secrets")

	d := dbtest.Open(t, database, db.Options{})
	if err := d.Tenants.Create(t.Context(), spec.NewTenant{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	old, err := sealer.Load(keyFile(t, "1"))
	if err != nil {
		t.Fatal(err)
	}
	set := func(name string, damage byte) {
		t.Helper()
		id, sealed := old.Seal("a", name, []byte("value"))
		sealed[len(sealed)-1] ^= damage
		s := db.SealedSecret{Tenant: "a", Name: name, Key: id, Sealed: sealed}
		if _, _, err := d.Secrets.Set(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	set("GOOD", 0)
	want(t, preflight.Run(t.Context(), in), "keys", preflight.OK, "all 1 stored secrets")
	in.Config.SecretKeyFile = keyFile(t, "2")
	want(t, preflight.Run(t.Context(), in), "keys", preflight.Fault, "sealed with key "+old.Current())
	in.Config.SecretKeyFile = ""
	want(t, preflight.Run(t.Context(), in), "keys", preflight.Fault, old.Current())
	set("BAD", 1)
	in.Config.SecretKeyFile = keyFile(t, "2", "1")
	want(t, preflight.Run(t.Context(), in), "keys", preflight.Fault, "secret BAD of tenant a")
	in.Config.SecretKeyFile = keyFile(t, "z")
	want(t, preflight.Run(t.Context(), in), "keys", preflight.Fault, "line 1")
}
