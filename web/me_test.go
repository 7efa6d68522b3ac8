package web_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/spec"
)

// second gives alice a second token, and a browser that is signed in with it.
func (s *site) second() (id string, b *browser) {
	s.t.Helper()
	made, err := s.db.Tokens.Create(s.t.Context(), spec.NewToken{Name: "alice", Tenant: "a", Role: spec.RoleUser}, "operator:test")
	if err != nil {
		s.t.Fatal(err)
	}
	s.tokens["laptop"] = made
	return made.ID, s.signedIn("laptop")
}

func TestAReaderSeesTheOwnTokensAndBrowsers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	phone := s.signedIn("alice")
	id, laptop := s.second()
	bob := s.signedIn("bob")
	for name, b := range map[string]*browser{"phone": phone, "laptop": laptop} {
		a := b.get("/me")
		if a.status != http.StatusOK || strings.Count(a.body, id) < 2 || strings.Count(a.body, `<span class="tag">this browser</span>`) != 2 ||
			strings.Contains(a.body, s.tokens["bob"].ID) || strings.Contains(a.body, s.tokens["viewer"].ID) {
			t.Errorf("%s: %d\n%s", name, a.status, a.body)
		}
	}
	if a := bob.get("/me"); strings.Contains(a.body, id) || strings.Contains(a.body, s.tokens["alice"].ID) {
		t.Errorf("bob sees a token of alice:\n%s", a.body)
	}
	if a := bob.get("/me?revoke=" + id); a.status != http.StatusNotFound {
		t.Errorf("bob is asked about a token of alice: %d", a.status)
	}
}

// Signing out everywhere ends the sessions of all tokens of the name, and no other one. The tokens stay valid.
func TestSigningOutEverywhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	phone, viewer, bob := s.signedIn("alice"), s.signedIn("viewer"), s.signedIn("bob")
	_, laptop := s.second()
	for _, b := range []*browser{phone, laptop, viewer, bob} {
		if a := b.get("/me"); a.status != http.StatusOK { // the process remembers these sessions now
			t.Fatal(a.status)
		}
	}
	if a := s.signedIn("viewer").post("/me", url.Values{"do": {"signout"}}); a.status != http.StatusSeeOther || viewer.get("/jobs").status != http.StatusUnauthorized {
		t.Errorf("a viewer: %d", a.status)
	}
	viewer = s.signedIn("viewer")
	if a := phone.post("/me", url.Values{"do": {"signout"}}); a.status != http.StatusSeeOther || a.header.Get("Location") != "/login" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	for name, b := range map[string]*browser{"phone": phone, "laptop": laptop} {
		if a := b.get("/jobs"); a.status != http.StatusUnauthorized {
			t.Errorf("%s is still signed in: %d", name, a.status)
		}
	}
	for name, b := range map[string]*browser{"viewer": viewer, "bob": bob} {
		if a := b.get("/jobs"); a.status != http.StatusOK {
			t.Errorf("%s is signed out: %d", name, a.status)
		}
	}
	if a := s.signedIn("alice").get("/me"); a.status != http.StatusOK || strings.Count(a.body, `<span class="tag">this browser</span>`) != 2 {
		t.Errorf("a new sign-in: %d", a.status)
	}
}

func TestATokenIsRevokedAfterAQuestion(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id, laptop := s.second()
	phone := s.signedIn("alice")
	if a := phone.get("/me?revoke=" + id); a.status != http.StatusOK || !strings.Contains(a.body, `name="id" value="`+id+`"`) ||
		strings.Contains(a.body, "This browser is signed in with it") {
		t.Errorf("the question: %d\n%s", a.status, a.body)
	}
	if a := laptop.get("/me?revoke=" + id); !strings.Contains(a.body, "This browser is signed in with it") {
		t.Errorf("the question about the own session:\n%s", a.body)
	}
	if _, err := s.as("laptop").Whoami(t.Context()); err != nil {
		t.Errorf("the question has revoked the token: %v", err)
	}
	if a := phone.post("/me", url.Values{"do": {"revoke"}, "id": {id}}); a.status != http.StatusSeeOther {
		t.Errorf("%d %s", a.status, a.body)
	}
	for began := time.Now(); laptop.get("/jobs").status == http.StatusOK; {
		if time.Since(began) > 5*time.Minute {
			t.Fatal("the session outlives its token")
		}
	}
	if a := phone.get("/me"); !strings.Contains(a.body, "revoked") || strings.Contains(a.body, "/me?revoke="+id) {
		t.Errorf("the revoked token:\n%s", a.body)
	}
	for do, want := range map[string]int{"revoke": http.StatusNotFound, "rotate": http.StatusUnprocessableEntity} {
		if a := phone.post("/me", url.Values{"do": {do}, "id": {s.tokens["bob"].ID}}); a.status != want {
			t.Errorf("%s of bob's token: %d", do, a.status)
		}
	}
	if a := s.signedIn("viewer").post("/me", url.Values{"do": {"revoke"}, "id": {s.tokens["viewer"].ID}}); a.status != http.StatusForbidden {
		t.Errorf("a viewer revokes: %d", a.status)
	}
}

// A reader is not asked about the token of an admin with the same name, which only an admin can revoke. A viewer can
// revoke no token.
func TestThePageOffersOnlyRevocationsThatAreAllowed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	roles := []spec.Role{spec.RoleAdmin, spec.RoleUser, spec.RoleViewer}
	for _, role := range roles {
		made, err := s.db.Tokens.Create(t.Context(), spec.NewToken{Name: "ops", Tenant: "a", Role: role}, "operator:test")
		if err != nil {
			t.Fatal(err)
		}
		s.tokens["ops-"+string(role)] = made
	}
	may := map[spec.Role][]spec.Role{spec.RoleAdmin: roles, spec.RoleUser: roles[1:]}
	for _, reader := range roles {
		b := s.signedIn("ops-" + string(reader))
		page := b.get("/me")
		for _, of := range roles {
			id, allowed := s.tokens["ops-"+string(of)].ID, slices.Contains(may[reader], of)
			if strings.Contains(page.body, "/me?revoke="+id) != allowed {
				t.Errorf("the page of role %s about the token of role %s:\n%s", reader, of, page.body)
			}
			if a := b.get("/me?revoke=" + id); (a.status == http.StatusOK) != allowed || !allowed && a.status != http.StatusNotFound {
				t.Errorf("role %s is asked about the token of role %s: %d", reader, of, a.status)
			}
			if allowed {
				continue
			}
			if a := b.post("/me", url.Values{"do": {"revoke"}, "id": {id}}); a.status == http.StatusSeeOther {
				t.Errorf("role %s revokes the token of role %s", reader, of)
			}
		}
	}
	admin := s.signedIn("ops-admin")
	if a := s.signedIn("ops-viewer").post("/me", url.Values{"do": {"signout"}}); a.status != http.StatusSeeOther {
		t.Errorf("a viewer signs out: %d", a.status)
	}
	if a := admin.get("/me"); a.status != http.StatusOK {
		t.Errorf("a viewer has signed an admin out: %d", a.status)
	}
}
