package controlplane

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"berth/db"
	"berth/db/dbtest"
	"berth/spec"
)

// A new cluster needs no choice. An upgraded one works as before, with a warning until the operator chooses.
func TestOnlyAnUpgradedClusterWarnsOfRoot(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	starts := func(flag string) (user string, warned bool) {
		t.Helper()
		var log bytes.Buffer
		a := &assembly{ControlPlane: &ControlPlane{cfg: Config{ContainerUser: flag},
			log: slog.New(slog.NewTextHandler(&log, nil))}, db: d}
		if err := a.readUsers(t.Context()); err != nil {
			t.Fatal(err)
		}
		return a.cfg.ContainerUser, strings.Contains(log.String(), "--container-user")
	}
	for _, upgraded := range []bool{false, true} {
		if upgraded {
			if _, err := d.Pool().Exec(t.Context(), `UPDATE cluster SET container_user = 'image'`); err != nil {
				t.Fatal(err)
			}
		}
		own := map[bool]string{false: spec.UserTenant, true: spec.UserImage}[upgraded]
		for flag, want := range map[string]string{"": own, spec.UserTenant: spec.UserTenant, spec.UserImage: spec.UserImage} {
			user, warned := starts(flag)
			if user != want || warned != (upgraded && flag == "") {
				t.Errorf("upgraded %v, flag %q: containers run as %q, want %q; warned: %v", upgraded, flag, user, want, warned)
			}
		}
	}
}
