package api_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"berth"
	"berth/api/client"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// within returns a client of calls inside the process, as a principal of the site.
func (s *site) within(name string) *client.Client {
	s.t.Helper()
	p, err := s.db.Tokens.Authenticate(s.t.Context(), s.tokens[name])
	if err != nil {
		s.t.Fatal(err)
	}
	return client.Over(s.server.RoundTripper(httptest.NewRequest(http.MethodGet, "/", nil), &p), "")
}

func TestCallsInsideTheProcessHaveTheRightsOfTheirPrincipal(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	j := s.submit("alice", nil)
	if got, err := s.within("viewer").Job(t.Context(), j.ID); err != nil || got.ID != j.ID {
		t.Errorf("%v, %v", got.ID, err)
	}
	if _, err := s.within("viewer").Cancel(t.Context(), j.ID); berth.CodeOf(err) != berth.CodeForbidden {
		t.Errorf("a viewer cancels: %v", err)
	}
	if _, err := s.within("bob").Job(t.Context(), j.ID); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("another tenant: %v", err)
	}
	nobody := client.Over(s.server.RoundTripper(httptest.NewRequest(http.MethodGet, "/", nil), nil), "")
	if _, err := nobody.Whoami(t.Context()); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("nobody: %v", err)
	}
	if who, err := client.Over(s.server.RoundTripper(httptest.NewRequest(http.MethodGet, "/", nil), nil), s.tokens["bob"]).
		Whoami(t.Context()); err != nil || who.Name != "bob" {
		t.Errorf("with a token: %+v, %v", who, err)
	}
}

// A call without a principal has none, even on behalf of a request that had one.
func TestAPrincipalDoesNotPassToOtherCalls(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	p := db.Principal{TokenID: "x", Name: "root", Tenant: "default", Role: spec.RoleAdmin}
	outer := s.server.RoundTripper(httptest.NewRequest(http.MethodGet, "/", nil), &p)
	inner := s.server.RoundTripper(httptest.NewRequest(http.MethodGet, "/", nil), nil)
	if _, err := client.Over(outer, "").Whoami(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Over(inner, "").Whoami(t.Context()); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("%v", err)
	}
	if a := s.call("", http.MethodGet, "/v1/whoami", "", "X-Berth-Visitor", "root"); a.status != http.StatusUnauthorized {
		t.Errorf("a header: %d", a.status)
	}
}

func TestAStreamInsideTheProcessEndsWithItsToken(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	j := s.submit("bob", nil)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	revoked := false
	err := s.within("bob").FollowEvents(ctx, j.ID, 0, func(wire.Event) error {
		if !revoked {
			revoked = true
			s.exec(`UPDATE tokens SET revoked_at = now() WHERE name = 'bob'`)
		}
		return nil
	})
	if berth.CodeOf(err) != berth.CodeUnauthorized && !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("the stream ended with %v", err)
	}
}

func TestAStreamInsideTheProcessEndsWithItsReader(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	j := s.submit("alice", nil)
	enough := errors.New("enough")
	if err := s.within("alice").FollowEvents(t.Context(), j.ID, 0, func(wire.Event) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("%v", err) // the end of the body has awaited the handler
	}
}
