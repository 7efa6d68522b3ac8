package controlplane

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth"
	"berth/db"
	"berth/db/dbtest"
)

// firstToken is a start of a replica, as far as its token goes, with that token file.
func firstToken(t *testing.T, d *db.DB, file string) error {
	t.Helper()
	cfg := Default()
	cfg.DatabaseURL, cfg.BlobURL, cfg.AdminTokenFile = "postgres://localhost/berth", "file:///blobs", file
	c, err := New(cfg, Options{FirstToken: func(string) { t.Error("a token was printed although there is a file") }})
	if err != nil {
		t.Fatal(err)
	}
	return c.makeFirstToken(t.Context(), d)
}

// text returns the content of a token file without the line end.
func text(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(b), "\n")
}

func valid(t *testing.T, d *db.DB, token string) bool {
	t.Helper()
	p, err := d.Tokens.Authenticate(t.Context(), token)
	if err != nil && berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Fatal(err)
	}
	return err == nil && p.Role == "admin" && p.Name == "admin"
}

func TestTheFirstStartWritesTheTokenFile(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	file := filepath.Join(t.TempDir(), "admin-token")
	for range 2 {
		if err := firstToken(t, d, file); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token file has mode %v, %v", info.Mode(), err)
	}
	if !valid(t, d, text(t, file)) {
		t.Error("the token of the file is not valid")
	}
	// A replica on another host has nothing to write, and its operator looks here.
	other := filepath.Join(t.TempDir(), "admin-token")
	if err := firstToken(t, d, other); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(other); !os.IsNotExist(err) {
		t.Errorf("another replica wrote a token file: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(file)); len(left) != 1 {
		t.Errorf("the folder holds %v", left)
	}
}

func TestATokenFileSurvivesItsDatabase(t *testing.T) {
	t.Parallel()
	before, after := dbtest.DB(t, db.Options{}), dbtest.Open(t, dbtest.URL(t), db.Options{})
	file := filepath.Join(t.TempDir(), "admin-token")
	if err := firstToken(t, before, file); err != nil {
		t.Fatal(err)
	}
	token := text(t, file)
	// A database of before the token, or one whose commit was lost in a crash.
	if err := firstToken(t, after, file); err != nil || !valid(t, after, token) || text(t, file) != token {
		t.Errorf("the token of the file is not valid in a new database: %v", err)
	}
}

func TestAResetReplacesTheTokenFile(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	d := dbtest.Open(t, url, db.Options{})
	file := filepath.Join(t.TempDir(), "admin-token")
	if err := firstToken(t, d, file); err != nil {
		t.Fatal(err)
	}
	lost := text(t, file)
	if _, err := ResetToken(t.Context(), TokenReset{DatabaseURL: url, File: file, Actor: "reset:test"}); err != nil {
		t.Fatal(err)
	}
	if token := text(t, file); valid(t, d, lost) || !valid(t, d, token) {
		t.Errorf("after the reset the old token is valid: %t, and the new one: %t", valid(t, d, lost),
			valid(t, d, token))
	}
	// A start after a crash between the commit and the new file: the old token stays revoked.
	if err := os.WriteFile(file, []byte(lost), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := firstToken(t, d, file); err != nil || valid(t, d, lost) || text(t, file) != lost {
		t.Errorf("a start with the revoked token: %v, valid %t", err, valid(t, d, lost))
	}
	// Without any valid admin token, the start replaces the revoked one.
	if _, err := d.Pool().Exec(t.Context(), `UPDATE tokens SET revoked_at = coalesce(revoked_at, now())`); err != nil {
		t.Fatal(err)
	}
	if err := firstToken(t, d, file); err != nil || !valid(t, d, text(t, file)) {
		t.Errorf("a start without a valid token: %v", err)
	}
}

func TestATokenFileThatCannotServeChangesNothing(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	d := dbtest.Open(t, url, db.Options{})
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token := "berth_000000000001_" + berth.NewSecret()
	missing := filepath.Join(dir, "missing", "admin-token")
	for file, says := range map[string]string{
		missing:                         "missing",
		dir:                             "not a regular file",
		write("shared", token, 0o622):   "chmod 600",
		write("other", "hello", 0o600):  "holds no token",
		write("empty", "", 0o600):       "holds no token",
		write("bad", token[:40], 0o600): "berth_<12 hex digits>_<64 hex digits>",
	} {
		if err := firstToken(t, d, file); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("a start with token file %s: %v", file, err)
		}
	}
	if _, err := ResetToken(t.Context(), TokenReset{DatabaseURL: url, File: missing}); err == nil ||
		!strings.Contains(err.Error(), "missing") {
		t.Errorf("a reset without the folder of its file: %v", err)
	}
	var n int
	if err := d.Pool().QueryRow(t.Context(), `SELECT count(*) FROM tokens`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d tokens were created, %v", n, err)
	}
}
