package controlplane

import (
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
)

// TestTheGraceOfAProcessThatOnlyServesTheAPILeavesTimeForACall checks that after a gap of the API machines have the
// time to call before a verdict, also with --grace 0 and whether or not the process may lead.
func TestTheGraceOfAProcessThatOnlyServesTheAPILeavesTimeForACall(t *testing.T) {
	t.Parallel()
	cfg := Default()
	cfg.DatabaseURL, cfg.BlobURL = "postgres://localhost/berth", "file://"+t.TempDir()
	cfg.Roles, cfg.Grace = []Role{RoleAPI}, 0
	c, err := New(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := dbtest.DB(t, db.Options{})
	_, err = d.Pool().Exec(t.Context(),
		`INSERT INTO leases (name, holder, expires_at) VALUES ('api', 'x', now() - interval '1 hour')`)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.newBeacon(d).renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	var grace time.Duration
	err = d.Pool().QueryRow(t.Context(), `
		SELECT g.expires_at - (a.expires_at - $1::interval)
		FROM leases g, leases a
		WHERE g.name = 'grace' AND a.name = 'api'`, cfg.silence().Beacon()).Scan(&grace)
	if err != nil {
		t.Fatal(err)
	}
	if least := cfg.SuspectAfter + berth.SyncWait; grace < least {
		t.Errorf("the grace is %s, want at least %s", grace, least)
	}
}
