package db_test

import (
	"strings"
	"testing"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/spec"
)

// signedIn is a token with a session.
func signedIn(t *testing.T, d *db.DB) (token, text string) {
	t.Helper()
	made, err := d.Tokens.Create(t.Context(), spec.NewToken{Name: "alice", Tenant: "a", Role: spec.RoleViewer}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	if text, err = d.WebSessions.Create(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	return made.ID, text
}

func TestAWebSessionHasTheRightsOfItsToken(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	token, text := signedIn(t, d)
	p, err := d.WebSessions.Find(t.Context(), text)
	if err != nil || p.TokenID != token || p.Tenant != "a" || p.Role != spec.RoleViewer || p.Name != "alice" {
		t.Fatalf("%+v, %v", p, err)
	}
	var stored string
	if err := d.Pool().QueryRow(t.Context(), `SELECT string_agg(s::text, '') FROM web_sessions s`).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(stored, text) || len(text) < 64 {
		t.Errorf("the table holds the text of a session: %s", stored)
	}
	if _, err := d.WebSessions.Find(t.Context(), text+"0"); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("another text: %v", err)
	}
}

func TestAWebSessionEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{
		"with its revoked token":   `UPDATE tokens SET revoked_at = now()`,
		"with its expired token":   `UPDATE tokens SET expires_at = now()`,
		"with its deleted token":   `DELETE FROM tokens`,
		"after 12 h without use":   `UPDATE web_sessions SET used_at = now() - interval '12 hours 1 second'`,
		"seven days after sign-in": `UPDATE web_sessions SET expires_at = expires_at - interval '168 hours'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := dbtest.DB(t, db.Options{})
			token, text := signedIn(t, d)
			if _, err := d.Pool().Exec(t.Context(), end); err != nil {
				t.Fatal(err)
			}
			if p, err := d.WebSessions.Find(t.Context(), text); berth.CodeOf(err) != berth.CodeUnauthorized {
				t.Errorf("the session is still open: %+v, %v", p, err)
			}
			if strings.Contains(name, "token") {
				if _, err := d.WebSessions.Create(t.Context(), token); berth.CodeOf(err) != berth.CodeUnauthorized {
					t.Errorf("the token signs in: %v", err)
				}
			}
		})
	}
}

func TestAWebSessionEndsAtTheSignOut(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	token, text := signedIn(t, d)
	other, err := d.WebSessions.Create(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.WebSessions.Delete(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	if _, err := d.WebSessions.Find(t.Context(), text); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("the session is still open: %v", err)
	}
	if _, err := d.WebSessions.Find(t.Context(), other); err != nil {
		t.Errorf("another browser lost its session: %v", err)
	}
}

func TestTheOldestWebSessionGivesWay(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	token, first := signedIn(t, d)
	last := ""
	for range 50 {
		var err error
		if last, err = d.WebSessions.Create(t.Context(), token); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.WebSessions.Find(t.Context(), first); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("51 sessions of one token: %v", err)
	}
	if _, err := d.WebSessions.Find(t.Context(), last); err != nil {
		t.Error(err)
	}
}

func TestUseKeepsAWebSessionOpen(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	_, text := signedIn(t, d)
	if _, err := d.Pool().Exec(t.Context(), `UPDATE web_sessions SET used_at = now() - interval '11 hours'`); err != nil {
		t.Fatal(err)
	}
	var fresh bool
	if _, err := d.WebSessions.Look(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	if err := d.Pool().QueryRow(t.Context(), `SELECT used_at > now() - interval '1 hour' FROM web_sessions`).Scan(&fresh); err != nil || fresh {
		t.Errorf("a look counts as a use: %v, %v", fresh, err)
	}
	if _, err := d.WebSessions.Find(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	if err := d.Pool().QueryRow(t.Context(), `SELECT used_at > now() - interval '1 hour' FROM web_sessions`).Scan(&fresh); err != nil || !fresh {
		t.Errorf("the use was not recorded: %v, %v", fresh, err)
	}
}

// A caller sees and ends the sessions of all valid tokens with its name and tenant, and no other session.
func TestOwnWebSessions(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	first, text := signedIn(t, d)
	second, _ := signedIn(t, d)
	idle, idleText := signedIn(t, d)
	revoked, _ := signedIn(t, d)
	other, err := d.Tokens.Create(t.Context(), spec.NewToken{Name: "alice", Tenant: "b", Role: spec.RoleUser}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	otherText, err := d.WebSessions.Create(t.Context(), other.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Pool().Exec(t.Context(), `UPDATE web_sessions SET used_at = now() - interval '13 hours' WHERE token = $1`, idle); err != nil {
		t.Fatal(err)
	}
	if err := d.Tokens.Revoke(t.Context(), revoked, "operator:test"); err != nil {
		t.Fatal(err)
	}
	p, err := d.WebSessions.Find(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	list, err := d.WebSessions.Own(t.Context(), p, text)
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, s := range list {
		if s.Current != (s.Token == first) || s.Token != first && s.Token != second || !s.ExpiresAt.Equal(s.UsedAt.Add(db.WebSessionIdle)) {
			t.Errorf("%+v", s)
		}
	}
	if n, err := d.WebSessions.DeleteOwn(t.Context(), p); err != nil || n < 3 {
		t.Errorf("%d, %v", n, err)
	}
	for name, text := range map[string]string{"own": text, "idle": idleText} {
		if _, err := d.WebSessions.Find(t.Context(), text); berth.CodeOf(err) != berth.CodeUnauthorized {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := d.WebSessions.Find(t.Context(), otherText); err != nil {
		t.Errorf("of another tenant: %v", err)
	}
}

// A token of a lesser role with the name of an admin's neither sees nor ends the admin's sessions.
func TestOnlyAdminsEndWebSessionsOfAdmins(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	texts := map[spec.Role]string{}
	for _, role := range []spec.Role{spec.RoleAdmin, spec.RoleUser, spec.RoleViewer} {
		made, err := d.Tokens.Create(t.Context(), spec.NewToken{Name: "ops", Tenant: "a", Role: role}, "operator:test")
		if err != nil {
			t.Fatal(err)
		}
		if texts[role], err = d.WebSessions.Create(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		role spec.Role
		ends int64
	}{{spec.RoleViewer, 2}, {spec.RoleUser, 0}, {spec.RoleAdmin, 1}} {
		p := db.Principal{Name: "ops", Tenant: "a", Role: c.role}
		list, err := d.WebSessions.Own(t.Context(), p, "")
		if err != nil || int64(len(list)) != c.ends {
			t.Errorf("a token of role %s sees %+v, %v", c.role, list, err)
		}
		if n, err := d.WebSessions.DeleteOwn(t.Context(), p); err != nil || n != c.ends {
			t.Errorf("a token of role %s ended %d sessions, %v", c.role, n, err)
		}
		_, err = d.WebSessions.Find(t.Context(), texts[spec.RoleAdmin])
		if (err == nil) != (c.role != spec.RoleAdmin) {
			t.Errorf("after a token of role %s, the session of the admin: %v", c.role, err)
		}
	}
}
