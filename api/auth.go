package api

import (
	"context"
	"crypto/sha256"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
)

type principalKey struct{}

// caller is who makes this call. It is only asked where authenticate has run.
func caller(ctx context.Context) db.Principal {
	p, ok := ctx.Value(principalKey{}).(db.Principal)
	if !ok {
		panic("caller of an open route")
	}
	return p
}

// scope is the tenant whose rows the caller may see: "" is all of them, which
// only an admin gets.
func scope(ctx context.Context) berth.TenantID {
	if p := caller(ctx); p.Role != berth.RoleAdmin {
		return p.Tenant
	}
	return ""
}

// actor is how the caller is named in events.
func actor(ctx context.Context) string { return "user:" + caller(ctx).Name }

// operator is how the caller is named where machines are concerned.
func operator(ctx context.Context) string { return "operator:" + caller(ctx).Name }

// joinPath is the one route of the agents' protocol without a machine's token.
const joinPath = "/agent/v1/join"

// authenticate lets a call pass that its token allows. Routes outside /v1 and
// /agent/v1 are open.
func (s *Server) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		agent := strings.HasPrefix(r.URL.Path, "/agent/")
		if !agent && !strings.HasPrefix(r.URL.Path, "/v1/") || r.URL.Path == joinPath {
			return next(c)
		}
		p, err := s.identify(r)
		if err != nil {
			return err
		}
		if err := allowed(p, r.Method, agent, c.Path()); err != nil {
			return err
		}
		// A machine's calls are our own agent's, and grow with what runs there.
		if p.Role != berth.RoleMachine && !s.limits.allow(p.TokenID) {
			return &berth.Error{Code: berth.CodeCapacity, Slug: slugRateLimited, Message: "too many calls with this token; slow down"}
		}
		c.SetRequest(r.WithContext(context.WithValue(r.Context(), principalKey{}, p)))
		return next(c)
	}
}

// identify finds the principal of a request's token. Guessing is limited by
// the caller's address: a wrong token costs as much as ten calls a second.
func (s *Server) identify(r *http.Request) (db.Principal, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	if s.limits.guessing(host) {
		return db.Principal{}, &berth.Error{Code: berth.CodeCapacity, Slug: slugRateLimited, Message: "too many wrong tokens from this address; wait"}
	}
	if !ok || len(token) > 256 {
		s.limits.guessed(host)
		return db.Principal{}, problemOfStatus(http.StatusUnauthorized, "")
	}
	lookUp := s.DB.Authenticate
	if strings.HasPrefix(r.URL.Path, "/agent/") {
		lookUp = s.DB.AuthenticateMachine
	}
	p, err := s.auth.principal(r.Context(), token, lookUp)
	if berth.CodeOf(err) == berth.CodeUnauthorized {
		s.limits.guessed(host)
	}
	return p, err
}

// allowed is the whole table of roles: machines speak the agents' protocol and
// nothing else does, viewers only read, and what concerns every tenant is for
// admins.
func allowed(p db.Principal, method string, agent bool, route string) error {
	if agent != (p.Role == berth.RoleMachine) {
		return berth.Errorf(berth.CodeForbidden, "a token of role %s does not open this route", p.Role)
	}
	read := method == http.MethodGet || method == http.MethodHead
	switch {
	case p.Role == berth.RoleAdmin, p.Role == berth.RoleMachine:
		return nil
	case adminOnly(method, route):
		return berth.Errorf(berth.CodeForbidden, "this call is for tokens of role admin; yours is %s", p.Role)
	case p.Role == berth.RoleViewer && !read && route != "/v1/plans":
		return berth.Errorf(berth.CodeForbidden, "a token of role viewer only reads")
	}
	return nil
}

// adminOnly says which routes concern every tenant.
func adminOnly(method, route string) bool {
	for _, prefix := range []string{"/v1/tokens", "/v1/join-tokens"} {
		if route == prefix || strings.HasPrefix(route, prefix+"/") {
			return true
		}
	}
	if method == http.MethodGet || method == http.MethodHead {
		return false
	}
	for _, prefix := range []string{"/v1/machines", "/v1/tenants", "/v1/quotas"} {
		if strings.HasPrefix(route, prefix) {
			return true
		}
	}
	return false
}

// authenticator remembers tokens for a moment, so that a busy client costs one
// look-up a second and a revoked token still dies within authMemory.
type authenticator struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]knownToken
}

type knownToken struct {
	principal db.Principal
	until     time.Time
}

const (
	authMemory = time.Second
	authRoom   = 10_000
)

func newAuthenticator() *authenticator {
	return &authenticator{known: map[[sha256.Size]byte]knownToken{}}
}

func (a *authenticator) principal(ctx context.Context, token string, lookUp func(context.Context, string) (db.Principal, error)) (db.Principal, error) {
	key, now := sha256.Sum256([]byte(token)), time.Now()
	a.mu.Lock()
	k, ok := a.known[key]
	a.mu.Unlock()
	if ok && now.Before(k.until) {
		return k.principal, nil
	}
	p, err := lookUp(ctx, token)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		delete(a.known, key)
		return p, err
	}
	if len(a.known) >= authRoom {
		clear(a.known)
	}
	a.known[key] = knownToken{p, now.Add(authMemory)}
	return p, nil
}

// forget drops what is remembered: a token was revoked here.
func (a *authenticator) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.known)
}
