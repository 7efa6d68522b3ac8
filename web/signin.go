package web

import (
	"context"
	"net/http"
	"strings"

	"berth"
	"berth/api/client"
	"berth/db"
	"berth/spec"
)

// signInView is the data of the sign-in page.
type signInView struct {
	Next    string // path to go to afterwards
	Problem string // why the last try failed
	Plain   bool   // sign-in is refused: the connection is readable
	Host    string
}

// signInPage shows the form that takes a token.
func (s *Site) signInPage(_ context.Context, v *visit) (result, error) {
	if _, err := s.reader(v.r, true); err == nil {
		return result{redirect: localPath(v.query("next"))}, nil
	}
	return s.signInForm(v, localPath(v.query("next")), "", http.StatusOK), nil
}

// signInForm returns the sign-in page, or the page that says why there is none.
func (s *Site) signInForm(v *visit, next, problem string, status int) result {
	_, ok := s.cookieName(v.r)
	if !ok {
		status = http.StatusForbidden
	}
	return result{template: "login", title: "Sign in", status: status,
		data: signInView{Next: next, Problem: problem, Plain: !ok, Host: v.r.Host}}
}

// askToSignIn shows the sign-in page in place of the one that was asked for, with status 401. The
// address stays, so that the reader comes back to it.
func (s *Site) askToSignIn(v *visit) {
	next := "/"
	if v.r.Method == http.MethodGet {
		next = v.r.URL.RequestURI()
	}
	v.page.Reader = nil
	s.show(v.w, v.r, v.page, s.signInForm(v, localPath(next), "", http.StatusUnauthorized))
}

// signIn starts a session for a token. The API judges the token, so that guesses count against
// their address as all guesses do.
func (s *Site) signIn(ctx context.Context, v *visit) (result, error) {
	next := localPath(v.r.PostFormValue("next"))
	name, ok := s.cookieName(v.r)
	if !ok {
		return s.signInForm(v, next, "", http.StatusForbidden), nil
	}
	token := strings.TrimSpace(v.r.PostFormValue("token"))
	if !db.TokenShaped(token) {
		return s.signInForm(v, next, "This text is not a token. A token looks like berth_<id>_<secret>.",
			http.StatusUnprocessableEntity), nil
	}
	caller, err := client.Over(s.API.RoundTripper(v.r, nil), token).Whoami(ctx)
	if err == nil && caller.Role == spec.RoleMetrics {
		err = berth.Errorf(berth.CodeForbidden, "a token of role metrics opens only GET /metrics")
	}
	switch berth.CodeOf(err) {
	case berth.CodeUnauthorized, berth.CodeForbidden:
		return s.signInForm(v, next, sentence(messageOf(err)), http.StatusUnauthorized), nil
	}
	if err != nil {
		return result{}, err
	}
	text, err := s.Sessions.Create(ctx, caller.TokenID)
	if err != nil {
		return result{}, err
	}
	s.Logger.Info("signed in to the dashboard", "token_id", caller.TokenID, "name", caller.Name,
		"tenant", caller.Tenant)
	http.SetCookie(v.w, s.cookie(v.r, name, text, int(db.WebSessionLife.Seconds())))
	return result{redirect: next}, nil
}

// cookie returns a cookie that only this server gets, and no script.
func (s *Site) cookie(r *http.Request, name, value string, age int) *http.Cookie {
	return &http.Cookie{Name: name, Value: value, Path: "/", MaxAge: age, HttpOnly: true, Secure: s.encrypted(r),
		SameSite: http.SameSiteLaxMode}
}

// signOut ends the session of this browser.
func (s *Site) signOut(ctx context.Context, v *visit) (result, error) {
	if text := s.sessionText(v.r); text != "" {
		if err := s.sessions.end(ctx, text); err != nil {
			return result{}, err
		}
	}
	if name, ok := s.cookieName(v.r); ok {
		http.SetCookie(v.w, s.cookie(v.r, name, "", -1))
	}
	return result{redirect: "/login"}, nil
}

// setPreferences stores the look of the pages in a cookie of this browser.
func setPreferences(_ context.Context, v *visit) (result, error) {
	theme := v.r.PostFormValue("theme")
	if theme != "dark" && theme != "light" {
		theme = ""
	}
	c := v.site.cookie(v.r, themeCookie, theme, 365*24*3600)
	if theme == "" {
		c.MaxAge = -1
	}
	http.SetCookie(v.w, c)
	return result{redirect: localPath(v.r.PostFormValue("back"))}, nil
}

// themeCookie is the cookie that overrides the theme of the browser.
const themeCookie = "berth-theme"
