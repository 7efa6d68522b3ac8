package web_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestSigningInAndOut(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.anonymous()
	if a := b.get("/jobs?q=owner:me"); a.status != http.StatusUnauthorized || !strings.Contains(a.body, `value="/jobs?q=owner:me"`) {
		t.Errorf("without a session: %d %s", a.status, a.body)
	}
	a := b.post("/login", url.Values{"token": {" " + s.tokens["alice"].Secret + "\n"}, "next": {"/jobs?q=owner:me"}})
	if a.status != http.StatusSeeOther || a.header.Get("Location") != "/jobs?q=owner:me" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	cookie := a.header.Get("Set-Cookie")
	if !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Lax") || strings.Contains(cookie, s.tokens["alice"].Secret) {
		t.Errorf("cookie: %s", cookie)
	}
	if a := b.get("/jobs"); a.status != http.StatusOK || !strings.Contains(a.body, "alice") {
		t.Errorf("with a session: %d", a.status)
	}
	if a := b.post("/logout", nil); a.status != http.StatusSeeOther {
		t.Errorf("sign-out: %d", a.status)
	}
	b.http.Jar.SetCookies(mustURL(t, s.url), []*http.Cookie{mustCookie(t, cookie)}) // a thief kept it
	if a := b.get("/jobs"); a.status != http.StatusUnauthorized {
		t.Errorf("after the sign-out: %d", a.status)
	}
}

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func mustCookie(t *testing.T, text string) *http.Cookie {
	t.Helper()
	c, err := http.ParseSetCookie(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWrongTokensDoNotSignIn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for name, token := range map[string]string{
		"no token": "", "another text": "hello",
		"a wrong secret": s.tokens["alice"].Secret[:len(s.tokens["alice"].Secret)-4] + "0000",
	} {
		b := s.anonymous()
		a := b.post("/login", url.Values{"token": {token}})
		if a.status != http.StatusUnauthorized && a.status != http.StatusUnprocessableEntity || a.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %d", name, a.status)
		}
		if token != "" && strings.Contains(a.body, token) {
			t.Errorf("%s: the page repeats the token", name)
		}
	}
}

// A session dies with its token. The API and the pages remember a look-up for a second.
func TestARevokedTokenEndsItsSession(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.signedIn("alice")
	if a := b.get("/jobs"); a.status != http.StatusOK {
		t.Fatalf("%d", a.status)
	}
	if err := s.as("admin").RevokeToken(t.Context(), s.tokens["alice"].ID); err != nil {
		t.Fatal(err)
	}
	revoked := time.Now()
	for b.get("/jobs").status == http.StatusOK {
		if time.Since(revoked) > 5*time.Minute {
			t.Fatal("the session outlives its token")
		}
	}
	if a := b.get("/jobs"); a.status != http.StatusUnauthorized {
		t.Errorf("after the revocation: %d", a.status)
	}
}

func TestPlainHTTPFromElsewhereSignsNobodyIn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.anonymous()
	form := url.Values{"token": {s.tokens["alice"].Secret}}
	for name, header := range map[string][]string{
		"another name":                {"Host", "berth.example.com", "Origin", "http://berth.example.com"},
		"through a proxy":             {"X-Forwarded-For", "192.0.2.1"},
		"a proxy that is not trusted": {"Host", "berth.example.com", "Origin", "http://berth.example.com", "X-Forwarded-Proto", "https"},
		"a name that resolves to lo0": {"Host", "127.0.0.1.example.com", "Origin", "http://127.0.0.1.example.com"},
	} {
		a := b.post("/login", form, header...)
		if a.status != http.StatusForbidden || a.header.Get("Set-Cookie") != "" || !strings.Contains(a.body, "plain HTTP") {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
}

func TestAnotherSiteChangesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	job := s.submit("alice", nil)
	alice := s.signedIn("alice")
	form := url.Values{"do": {"cancel"}, "id": {string(job.ID)}, "confirmed": {"1"}}
	for name, header := range map[string][]string{
		"by its origin":   {"Origin", "https://evil.example.com"},
		"by fetch's word": {"Sec-Fetch-Site", "cross-site"},
	} {
		for _, path := range []string{"/login", "/logout", "/preferences"} {
			if a := alice.post(path, form, header...); a.status != http.StatusForbidden {
				t.Errorf("%s %s: %d", path, name, a.status)
			}
		}
	}
	if a := alice.get("/jobs"); a.status != http.StatusOK {
		t.Errorf("another site signed the reader out: %d", a.status)
	}
}

func TestSignInLeadsToThisSiteOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, next := range []string{"https://evil.example.com/", "//evil.example.com/", `/\evil.example.com`, "javascript:alert(1)", ""} {
		a := s.anonymous().post("/login", url.Values{"token": {s.tokens["alice"].Secret}, "next": {next}})
		if a.status != http.StatusSeeOther || a.header.Get("Location") != "/" {
			t.Errorf("%q leads to %q", next, a.header.Get("Location"))
		}
	}
}
