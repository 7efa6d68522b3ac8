package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth"
	"berth/db"
	"berth/db/dbtest"
)

// berthd runs the command with that environment, without the settings of an installation on this host, and
// returns its standard output and error.
func berthd(t *testing.T, env map[string]string, args ...string) (out, says string, err error) {
	t.Helper()
	cmd := command(func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok || name == "BERTH_SETTINGS_FILE"
	})
	var o, e strings.Builder
	cmd.SetOut(&o)
	cmd.SetErr(&e)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return o.String(), e.String(), err
}

func TestATokenResetPrintsTheTokenAlone(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	d := dbtest.Open(t, url, db.Options{})
	lost, err := d.Tokens.CreateFirst(t.Context(), "default", "admin", "start:test", nil)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"BERTH_DATABASE_URL": url}
	out, says, err := berthd(t, env, "token", "reset")
	if err != nil || !strings.HasPrefix(says, "revoked "+lost[6:18]+", created token ") {
		t.Errorf("the reset says %q, %v", says, err)
	}
	if _, err := d.Tokens.Authenticate(t.Context(), lost); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("the old token: %v", err)
	}
	p, err := d.Tokens.Authenticate(t.Context(), strings.TrimSuffix(out, "\n"))
	if err != nil || p.Role != "admin" {
		t.Errorf("the output %q stands for %+v, %v", out, p, err)
	}
	events, _, err := d.Tokens.Events(t.Context(), db.Paging{})
	if err != nil || len(events) != 3 || !strings.HasPrefix(events[1].Actor, "reset:") {
		t.Errorf("events are %+v, %v", events, err)
	}

	// The same with a file, which gets the token in place of the output.
	file := filepath.Join(t.TempDir(), "admin-token")
	env["BERTH_ADMIN_TOKEN_FILE"] = file
	out, says, err = berthd(t, env, "token", "reset")
	b, _ := os.ReadFile(file)
	if err != nil || out != "" || !strings.Contains(says, file) {
		t.Errorf("with a file: %q, %q, %v", out, says, err)
	}
	if _, err := d.Tokens.Authenticate(t.Context(), strings.TrimSpace(string(b))); err != nil {
		t.Errorf("the token of the file: %v", err)
	}
	// Another name has nothing to revoke, and leaves the others.
	_, says, err = berthd(t, env, "token", "reset", "--token-name", "ops")
	if err != nil || !strings.Contains(says, `no valid admin token "ops"`) ||
		!strings.Contains(says, "1 admin tokens of other names") {
		t.Errorf("another name: %q, %v", says, err)
	}
}

func TestATokenResetRefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	for says, c := range map[string]struct {
		env  map[string]string
		args []string
	}{
		"BERTH_DATABASE_URL": {},
		"absolute path":      {args: []string{"--database-url", "postgres://x/berth", "--admin-token-file", "token"}},
		"start berthd once":  {env: map[string]string{"BERTH_DATABASE_URL": dbtest.EmptyURL(t)}},
	} {
		if _, _, err := berthd(t, c.env, append([]string{"token", "reset"}, c.args...)...); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("want an error about %q: %v", says, err)
		}
	}
}
